"""One table of exit codes, the same for all commands: in the documents, in errors, and at the end of every command."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from bitbench import __version__
from bitbench.analysis.results.estimate import Verdict
from bitbench.cli.app import app
from bitbench.cli.help import LazyCommand
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome, TrialMetrics
from bitbench.study.study import Count, Measure
from bitbench.util import errors
from bitbench.util.errors import BitbenchError, ExitCode
from tests.command_line import bitbench
from tests.support.synthetic import make_lock, make_plan, make_trial
from tests.unit.test_compare import side, write
from tests.unit.test_recommend_tails import LOOP, even, study

PAGE = Path(__file__).parents[2] / "docs" / "scripting.md"


def test_the_page_has_the_table_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(str(int(code)), code.name, code.meaning) for code in ExitCode]


def test_an_error_never_has_the_code_of_an_answer() -> None:
    """But for those that are answers: no rate meets the objectives, or nothing shows whether one does."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, BitbenchError)
    ]
    assert {kind for kind in kinds if kind.exit_code < ExitCode.USAGE} == {
        errors.UnreachableError,
        errors.UndecidedError,
    }


def commands(group: TyperGroup, *names: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        found = command.whole if isinstance(command, LazyCommand) else command
        if isinstance(found, TyperGroup):
            yield from commands(found, *names, name)
        else:
            yield (*names, name)


COMMANDS = get_command(app)
assert isinstance(COMMANDS, TyperGroup)


@pytest.mark.parametrize("command", list(commands(COMMANDS)), ids=" ".join)
def test_a_mistyped_option_is_a_mistake_of_usage_in_every_command(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    said = bitbench(capsys, *command, "--no-such-option")
    assert (said.exit_code, said.out) == (ExitCode.USAGE, "")
    assert "No such option" in said.err
    assert bitbench(capsys, *command, "--help").exit_code == ExitCode.DONE


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`fast` and `slow`: the same engines, the second with a fifth less output."""
    place = tmp_path_factory.mktemp("studies")
    write(side("fast", 1.0, 18, engines=("old", "new")), place / "fast")
    write(side("slow", 0.8, 19, engines=("old", "new")), place / "slow")
    (place / "study.yaml").write_text("name: x\nengines: [null]\nworkloads: [interactive]\n")
    return place


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], ExitCode.USAGE),
        (["rum"], ExitCode.USAGE),
        (["env", "creat"], ExitCode.USAGE),
        (["--version"], ExitCode.DONE),
        (["--help"], ExitCode.DONE),
        (["recipes", "--device", "cpu"], ExitCode.DONE),
        (["recipes", "--device", "tpu"], ExitCode.USAGE),
        (["plan", "study.yaml"], ExitCode.DONE),
        (["plan", "missing.yaml"], ExitCode.USAGE),
        (["report", "missing"], ExitCode.REFUSED),
        (["recommend", "fast"], ExitCode.DONE),
        (["recommend", "fast", "--max-memory", "4"], ExitCode.USAGE),
        (["compare", "fast", "slow"], ExitCode.DONE),
        (["compare", "fast", "slow", "--fail-if", "output_throughput < -3%"], ExitCode.FAILED),
        (["compare", "slow", "fast", "--fail-if", "output_throughput < -3%"], ExitCode.DONE),
        (["load", "http://127.0.0.1:9"], ExitCode.UNAVAILABLE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_ends_with_its_code(
    arguments: list[str],
    code: ExitCode,
    folders: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folders)
    said = bitbench(capsys, *arguments)
    assert said.exit_code == code, said.err
    assert (said.out == f"bitbench {__version__}\n") is (arguments == ["--version"])


@pytest.mark.parametrize(
    ("study_line", "said"),
    [
        (
            "engines: [{engine: null, args: {tpott: 3ms}}]",
            "study.yaml:2: engines[0].args.tpott: the null engine has no",
        ),
        ("engines: [null]\nobjectives: {tpott_p99: 20ms}", "did you mean `tpot_p99`?"),
        (
            "engines: [null]\nobjectives: {ttft_p99: 200}",
            "200 needs a unit; write 200ms, 200s or 200m",
        ),
        (
            "engines: [null]\nlimits: {memory: 4}",
            "limits.memory: 4 needs a unit; write 4GB, 4MB or 4B",
        ),
        (
            "engines: [null]\nmeasure: {budget: 10}",
            "measure.budget: 10 needs a unit; write 10ms, 10s or 10m",
        ),
        (
            "engines: [null]\nmeasure: {confidence: 95}",
            "measure.confidence: 95 needs a percent sign; write 95%",
        ),
    ],
)
def test_a_typo_in_a_study_stops_it(
    study_line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"name: x\n{study_line}\nworkloads: [interactive]\n")
    for command in ("plan", "run"):
        answer = bitbench(capsys, command, str(path))
        assert answer.exit_code == ExitCode.USAGE
        assert said in " ".join(answer.err.split())


def failed_folder(path: Path, outcome: Outcome) -> Path:
    """A study of two points: one ends so, the other crashes."""
    plan = make_plan(["one", "other"], [LOOP], Measure(starts=Count(min=1, max=1)))
    with StudyFolder(path).open_writer() as writer:
        writer.write_study("name: made-up\n")
        writer.write_lock(make_lock(plan))
        for point, ended in zip(plan.points, (outcome, Outcome.CRASHED), strict=True):
            cause = None if ended is Outcome.OK else "it ended"
            metrics = (
                TrialMetrics(output_throughput=100.0) if ended is Outcome.OK else TrialMetrics()
            )
            writer.append_trial(
                make_trial(point, 0, 0, outcome=ended, cause=cause, metrics=metrics), None
            )
    return path


def test_a_study_in_which_every_point_failed_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    all_failed = bitbench(capsys, "report", str(failed_folder(tmp_path / "all", Outcome.CRASHED)))
    assert all_failed.exit_code == ExitCode.NOTHING_MEASURED
    assert f"exit code 3: {ExitCode.NOTHING_MEASURED.meaning}" in " ".join(all_failed.out.split())
    some_failed = bitbench(capsys, "report", str(failed_folder(tmp_path / "some", Outcome.OK)))
    assert some_failed.exit_code == ExitCode.DONE


def test_a_plan_in_which_every_point_is_refused_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitbench.engines.null.NullEngine.refuse", lambda *_: "not here")
    path = tmp_path / "study.yaml"
    path.write_text("name: x\nengines: [null]\nworkloads: [interactive]\n")
    assert bitbench(capsys, "plan", str(path)).exit_code == ExitCode.NOTHING_MEASURED


@pytest.mark.parametrize(
    ("limit", "code", "if_allowed"),
    [
        (0.3, ExitCode.DONE, ExitCode.DONE),
        (0.05, ExitCode.FAILED, ExitCode.FAILED),
        (0.15, ExitCode.INCONCLUSIVE, ExitCode.DONE),
    ],
)
def test_objectives_of_a_study_decide(limit: float, code: ExitCode, if_allowed: ExitCode) -> None:
    summary = study(even(6, 5, 100), objectives={"ttft_p50": limit})
    assert summary.exit_code() is code
    assert summary.exit_code(allow_inconclusive=True) is if_allowed


def test_an_objective_that_was_not_measured_is_never_allowed() -> None:
    (point,) = (summary := study(even(3, 3, 8), objectives={"ttft_p50": 0.3})).points
    unknown = {"verdict": Verdict.INCONCLUSIVE, "estimate": None}
    unmeasured = point.model_copy(
        update={"objectives": tuple(one.model_copy(update=unknown)
                                    for one in point.objectives)}
    )  # fmt: skip
    both = summary.model_copy(update={"points": (point, unmeasured)})
    assert both.exit_code(allow_inconclusive=True) is ExitCode.INCONCLUSIVE


def test_the_mean_of_an_endpoint_is_judged_on_its_trials() -> None:
    """One start, which says nothing about the next; but this server was not started by bitbench."""
    asked = {"objectives": {"ttft": 0.3}}
    assert study(even(1, 5, 100), **asked).exit_code() is ExitCode.INCONCLUSIVE
    assert study(even(1, 5, 100), **asked, was_running=True).exit_code() is ExitCode.DONE


def test_a_defect_is_told_from_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("bitbench.cli.plan.plan_study_with_readiness", broken)
    said = bitbench(capsys, "plan", "study.yaml")
    assert said.exit_code == ExitCode.DEFECT
    assert "this is a bug in bitbench" in said.err


def test_ctrl_c_is_told_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bitbench.cli.plan.plan_study_with_readiness", stopped)
    said = bitbench(capsys, "plan", "study.yaml")
    assert said.exit_code == ExitCode.STOPPED
    assert said.err == "error: stopped\n"
    monkeypatch.setattr("bitbench.running.runner.ready_plan", stopped)
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text("name: stopped\nengines: [null]\nworkloads: [interactive]\n")
    said = bitbench(capsys, "run", "study.yaml")
    assert said.exit_code == ExitCode.STOPPED
    assert "the same command resumes" in said.err


@pytest.mark.parametrize("command", [["recipes"], ["schema"]])
def test_a_reader_that_goes_away_is_no_failed_gate(command: list[str]) -> None:
    """By rich and by plain output; so much that it does not fit into the pipe's buffer is not needed: it is closed."""
    script = (
        "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); sys.argv[0] = 'bitbench'\n"
        "from bitbench.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command], capture_output=True, text=True, check=False
    )
    assert done.returncode in (ExitCode.PIPE_CLOSED, -signal.SIGPIPE), done.stderr
