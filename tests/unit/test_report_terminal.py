import io
import re

import pytest
from rich.console import Console

from bitbench.records.trial import Outcome
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.reports.study import build_study_report
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.synthetic import demo_study, make_plan, make_trial, summarize


def rendered(width: int) -> str:
    plan, trials, instances, lock = demo_study()
    console = Console(file=io.StringIO(), width=width)
    render_in_terminal(build_study_report(summarize(plan, trials, instances), lock), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_it_fits_and_says_the_answer(width: int) -> None:
    text = rendered(width)
    assert max(map(len, text.splitlines())) <= width
    joined = " ".join(text.split())
    assert joined.rindex("Use quick. 1.") > joined.rindex(
        "Workload medium_batch"
    )  # what is read last stays on the screen
    assert "2–3" in text
    assert re.search(
        r"unsupported \(\d+ trials\): broken on interactive and medium_batch: Quant type", joined
    )
    assert "refused" in text


def test_a_wide_terminal_shows_more() -> None:
    assert "TTFT" in rendered(120)
    assert "TTFT" not in rendered(80)


def test_memory_is_shown_whatever_the_width() -> None:
    for width in (80, 100, 120):
        lines = rendered(width).splitlines()
        assert sum("Memory peak" in line for line in lines) == 2
        table = lines[lines.index("Memory") :]
        assert "KV/token" in table[1]
        assert table[3].split() == ["quick", "140", "500", "605", "1,024", "22.5", "46,592"]


def test_names_are_not_markup() -> None:
    point = Point(config=Config(variant="[red]x[/nope]\x1b[2J", engine="a"), workload="interactive")
    plan = make_plan(["a"], [BUILT_IN_WORKLOADS["interactive"]])
    plan = Plan(study=plan.study, variants=(), points=(point,))
    bad = make_trial(point, 0, 0, outcome=Outcome.CRASHED, cause="[bold]no[/italic]")
    console = Console(file=io.StringIO(), width=100)
    render_in_terminal(build_study_report(summarize(plan, [bad], []), demo_study()[3]), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "[red]x[/nope]" in text
    assert "[bold]no[/italic]" in text
    assert "\x1b" not in text
