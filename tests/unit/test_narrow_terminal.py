"""Lines that are drawn while work runs, and lists of commands, in a terminal of 60 characters."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from bitbench.analysis.results.summary import StudySummary
from bitbench.cli import progress
from bitbench.cli.progress import RunDisplay
from bitbench.records.trial import ObjectiveResult, Outcome, TrialRecord
from bitbench.reports.document.model import Bullets, format_plain_text
from bitbench.reports.sections.failures import build_failures_section
from bitbench.study.plan import Group, Member
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.command_line import bitbench
from tests.support.synthetic import make_plan, make_trial, summarize

WORKLOAD = BUILT_IN_WORKLOADS["interactive"]


def drawn(width: int) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=width), stream


def a_trial() -> TrialRecord:
    record = make_trial(make_plan(["a-long-name"], [WORKLOAD]).points[0], 0, 0)
    figures = {
        "output_throughput": 1541.2,
        "ttft_s": 0.0401,
        "ttft_p50_s": 0.0401,
        "ttft_p99_s": 0.0485,
        "tpot_s": 0.004,
    }
    return record.model_copy(
        update={"id": "t00001", "metrics": record.metrics.model_copy(update=figures)}
    )


def test_the_line_of_a_trial_fits() -> None:
    record = a_trial()
    for width, has_times in ((60, False), (120, True)):
        console, stream = drawn(width)
        RunDisplay(console).trial_finished(record)
        assert max(map(len, stream.getvalue().splitlines())) <= width
        assert ("TPOT" in stream.getvalue()) is has_times


@pytest.mark.parametrize(
    ("holds", "why", "said"),
    [
        (True, None, "  meets"),
        (False, "ttft_p99 is 3 s, limit 1 s", "  fails: ttft_p99 is 3 s, limit 1 s"),
        (None, "ttft_p99 is unknown", "  unknown: ttft_p99 is unknown"),
    ],
)
def test_the_line_of_a_trial_says_whether_it_meets_its_objectives(
    holds: bool | None, why: str | None, said: str
) -> None:
    record = a_trial().model_copy(update={"objectives": ObjectiveResult(holds=holds, why_not=why)})
    console, stream = drawn(200)
    RunDisplay(console).trial_finished(record)
    assert stream.getvalue().rstrip("\n").endswith(said)


def test_a_cause_that_every_workload_has_is_printed_once() -> None:
    refused = a_trial().model_copy(
        update={"outcome": Outcome.UNSUPPORTED, "cause": "no such kernel"}
    )
    console, stream = drawn(120)
    display = RunDisplay(console)
    for number in range(3):
        display.trial_finished(refused.model_copy(update={"id": f"t{number}"}))
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == [
        "no such kernel",
        *["as above"] * 2,
    ]


def test_a_log_is_never_silent_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    console, stream = drawn(120)
    display, plan = RunDisplay(console), make_plan(["null"], [WORKLOAD])
    member = Member(config=plan.configs[0], workloads=())
    display.group_started(Group(block=0, members=(member,), rounds=0), 90.0)
    for now in (110.0, 129.0, 131.0, 140.0, 162.0, 193.0):
        display.quality_running(plan.configs[0], f"window {now:.0f} of 999")
    assert stream.getvalue().splitlines() == [
        f"  {plan.configs[0].name}: quality, window 131 of 999 (about 59 s left)",
        f"  {plan.configs[0].name}: quality, window 162 of 999 (about 28 s left)",
        f"  {plan.configs[0].name}: quality, window 193 of 999",
    ]


def test_a_command_of_the_doctor_stays_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path))
    lines = bitbench(capsys, "doctor").out.splitlines()
    assert any(line.endswith("missing: bitbench env create transformers") for line in lines)
    assert max(len(line) for line in lines if "env create" in line) <= 60
    assert lines[-1].startswith("Next  bitbench quick smollm2-135m gguf-q4_0")


def causes_told(summary: StudySummary) -> list[str]:
    blocks = build_failures_section(summary).blocks
    return [
        format_plain_text(item)
        for block in blocks
        if isinstance(block, Bullets)
        for item in block.items
    ]


def test_trials_that_a_busy_machine_spoiled_are_one_cause() -> None:
    plan = make_plan(["a", "b"], [WORKLOAD])
    causes = (
        "client too slow (+1.82 ms on mean TTFT, limit 1.00 ms)",
        "client too slow (+4 ms on mean TTFT, limit 2 ms)",
    )
    late = [
        make_trial(point, 0, 0, outcome=Outcome.CLIENT_BOUND, cause=cause)
        for point, cause in zip(plan.points, causes, strict=True)
    ]
    (cause,) = causes_told(summarize(plan, late, []))
    assert " and " in cause  # both configs
    died = [
        make_trial(point, 0, 0, outcome=Outcome.CRASHED, cause=f"It ended with exit code {code}")
        for code, point in enumerate(plan.points)
    ]
    assert (
        len(causes_told(summarize(plan, died, []))) == 2
    )  # a number may be all that tells them apart
