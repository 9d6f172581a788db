"""A variant that cannot be made is a result. From study file to report, with null engines and a stand-in that makes."""

from pathlib import Path
from typing import Any

import pytest

from bitbench.engines import registry
from bitbench.engines.null import NullEngine
from bitbench.planning import plan as planning
from bitbench.planning.plan import plan_study_points
from bitbench.quantize import backends
from bitbench.quantize.backends import Maker
from bitbench.records.folder import StudyFolder
from bitbench.study.plan import Plan
from bitbench.study.recipe import Backend
from bitbench.util.errors import ExitCode
from tests.command_line import bitbench
from tests.support.quantize_stand_in import StandIn, pretend_environment, write_model

STUDY = """
name: making
models: [tiny]
recipes: [bf16, w8a8-rtn, w4a16-rtn]
engines:
  - {engine: null, args: {ttft: 100ms}}
workloads:
  - {name: a, concurrency: 1, input_tokens: 8, output_tokens: 1}
  - {name: b, concurrency: 2, input_tokens: 8, output_tokens: 1}
measure: {starts: 1, trials: 1}
"""


class NullEngineWithModel(NullEngine):
    """Takes a variant, and does nothing with it."""

    needs_model = True


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A place with a model, a study and all that a run needs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(registry, "engine", lambda _: NullEngineWithModel())
    stand_in = StandIn()
    maker = Maker("quantize", ("llmcompressor",), stand_in.compress)
    monkeypatch.setitem(backends.MAKERS, Backend.LLMCOMPRESSOR, maker)
    pretend_environment(tmp_path / "home")
    write_model(tmp_path / "tiny")
    Path("study.yaml").write_text(STUDY)
    return stand_in


def measured() -> set[str]:
    """Which variants have trials; how many depends on how busy this machine is."""
    return {
        one.point.config.variant
        for one in StudyFolder(Path("out")).trials()
        if one.kind == "measured"
    }


def test_the_others_are_made_and_measured_and_the_next_run_tries_again(
    backend: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.cannot_make = {"w8a8-rtn"}
    first = bitbench(capsys, "run", "study.yaml", "--into", "out")
    assert first.exit_code == 0, first.err
    assert (
        "warning: tiny/w8a8-rtn could not be created (log: variants/tiny--w8a8-rtn--" in first.out
    )
    assert "the same command retries it" in first.out
    assert measured() == {"tiny/bf16", "tiny/w4a16-rtn"}
    report = Path("out/report/report.md").read_text()
    assert "- Could not be made: `tiny/w8a8-rtn`; run the study again to retry." in report
    assert (
        "**not made**: `w8a8-rtn` on `a` and `b`: could not be created (log: variants/tiny--w8a8"
        in report
    )
    assert "ValueError: no luck" in report
    assert "Refused up front" not in report
    assert "not made: w8a8-rtn on a and b: could not be created" in " ".join(first.out.split())

    backend.cannot_make = set()
    second = bitbench(capsys, "run", "study.yaml", "--into", "out")
    assert second.exit_code == 0, second.err
    assert "warning: tiny" not in second.out
    assert measured() == {"tiny/bf16", "tiny/w4a16-rtn", "tiny/w8a8-rtn"}
    assert backend.made == 3
    assert "ould not be made" not in Path("out/report/report.md").read_text()


def test_a_study_is_planned_once_also_where_variants_are_made(
    backend: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = []

    def counting(*arguments: Any, **named: Any) -> Plan:
        planned.append(plan_study_points(*arguments, **named))
        return planned[-1]

    monkeypatch.setattr(planning, "plan_study_points", counting)
    assert bitbench(capsys, "run", "study.yaml", "--into", "out").exit_code == 0
    (plan,) = planned
    assert {one.name for one in plan.variants if one.path is None} == {
        "tiny/w8a8-rtn",
        "tiny/w4a16-rtn",
    }
    kept = StudyFolder(Path("out")).read().plan
    assert kept.points == plan.points
    assert all(one.path is not None and one.weight_bytes for one in kept.variants)


def test_when_none_can_be_made_there_is_still_a_report(
    backend: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.yaml").write_text(STUDY.replace("bf16, w8a8-rtn, w4a16-rtn", "w8a8-rtn"))
    backend.cannot_make = {"w8a8-rtn"}
    answer = bitbench(capsys, "run", "study.yaml", "--into", "out")
    assert answer.exit_code == ExitCode.NOTHING_MEASURED, answer.err
    assert "no config has a result" in answer.out


def test_a_group_size_that_does_not_fit_one_of_two_models_refuses_its_points(
    backend: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "odd", columns=592)
    Path("study.yaml").write_text(
        STUDY.replace("[tiny]", "[tiny, odd]").replace("bf16, w8a8-rtn, ", "")
    )
    plan = " ".join(bitbench(capsys, "plan", "study.yaml").out.split())
    assert "refused: recipe w4a16-rtn: group_size 64 does not divide the 592 columns" in plan
    assert "sizes that divide them: 16." in plan
    assert "variant odd/w4a16-rtn: cannot be created" in plan
    assert "variant tiny/w4a16-rtn: will be created" in plan
    answer = bitbench(capsys, "run", "study.yaml", "--into", "out")
    assert answer.exit_code == 0, answer.err
    assert measured() == {"tiny/w4a16-rtn"}
    assert backend.made == 1
    assert "## Refused up front" in Path("out/report/report.md").read_text()


def test_without_an_environment_to_make_variants_in_nothing_starts(
    backend: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home" / "envs" / "quantize" / "bitbench-environment.json").unlink()
    answer = bitbench(capsys, "run", "study.yaml", "--into", "out")
    assert answer.exit_code == ExitCode.UNAVAILABLE
    assert "this study cannot run yet; first: bitbench env create quantize" in answer.err
    assert not Path("out").exists()
    assert backend.made == 0


def test_what_no_engine_would_run_is_not_made(
    backend: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: NullEngine, setup: object, variant: object, workload: object) -> str | None:
        return "it runs decompressed" if getattr(variant, "recipe", "") == "w8a8-rtn" else None

    monkeypatch.setattr(NullEngineWithModel, "refuse", refuse)
    assert (
        "variant tiny/w8a8-rtn: not created: all its points are refused"
        in bitbench(capsys, "plan", "study.yaml").out
    )
    assert bitbench(capsys, "run", "study.yaml", "--into", "out").exit_code == 0
    assert backend.made == 1
