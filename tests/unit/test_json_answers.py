"""`--json`: exactly one document on stdout, which the published schema describes, whatever happens."""

import json
from pathlib import Path

import jsonschema
import pytest

from bitbench.cli.json_answers import collect_answers, format_json_answer
from bitbench.cli.load import make_load_answer
from bitbench.cli.schema import FILES
from bitbench.util.errors import ExitCode
from tests.command_line import bitbench
from tests.forked import bitbench_process
from tests.json_answer import read_answer
from tests.support.study_folders import write_folder
from tests.unit.test_recommend_tails import even, study

DATA = Path(__file__).parent / "data"
WHY_INT8 = Path(__file__).parents[1] / "features" / "explain" / "data" / "why-int8"
STUDY = "name: x\nengines: [null]\nworkloads: [interactive]\nmeasure: {budget: 10m}\nobjectives: {ttft_p99: 1s}\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)
    write_folder("demo", tmp_path / "demo")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "plan study.yaml",
        "doctor",
        "compare demo demo",
        "recommend demo --slo ttft_p99=1s --max-memory 4GB",
        f"explain {WHY_INT8} torchao-int8wo --workload one",
    ],
)
@pytest.mark.usefixtures("place")
def test_an_answer_is_one_document(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = bitbench(capsys, *command.split(), "--json")
    found = read_answer(said.out, command.split(maxsplit=1)[0])
    assert found["exit_code"] == said.exit_code < ExitCode.USAGE
    assert found["error"] is None
    assert found["answer"]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("plan none.yaml", ExitCode.USAGE),
        ("compare demo none", ExitCode.REFUSED),
        ("compare demo demo --fail-iff x", ExitCode.USAGE),
        ("recommend demo --max-memory 4", ExitCode.USAGE),
        ("explain demo nothing", ExitCode.USAGE),
        ("load http://127.0.0.1:9", ExitCode.UNAVAILABLE),
        ("doctor --slow", ExitCode.USAGE),
    ],
)
@pytest.mark.usefixtures("place")
def test_an_error_is_one_document_too(
    command: str, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    said = bitbench(capsys, *command.split(), "--json")
    found = read_answer(said.out, command.split(maxsplit=1)[0])
    assert found["exit_code"] == said.exit_code == code
    assert found["answer"] is None
    assert found["error"]
    assert said.err


@pytest.mark.usefixtures("place")
def test_what_a_program_looks_for_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(bitbench(capsys, "plan", "study.yaml", "--json").out)["answer"]
    assert plan["plan"]["study"]["measure"]["budget"] == 600.0  # a number, in seconds
    assert plan["amount"]["points"] == 1
    chosen = json.loads(bitbench(capsys, "recommend", "demo", "--json").out)["answer"]["choices"][0]
    assert {judged["verdict"] for judged in chosen["judged"]} <= {"met", "missed", "inconclusive"}


def test_a_load_answers_with_its_points_and_verdicts() -> None:
    summary = study(even(1, 5, 100), objectives={"ttft_p50": 0.3}, was_running=True)
    text = format_json_answer(
        "load", make_load_answer("out", "out/report/index.html", summary), summary.exit_code()
    )
    (point,) = read_answer(text, "load")["answer"]["points"]
    assert point["objectives"][0]["verdict"] == "met"


def test_names_from_elsewhere_reach_no_terminal_as_they_are() -> None:
    summary = study(even(1, 2, 4), was_running=True)
    text = format_json_answer(
        "load", make_load_answer("\x9b31m\u202ered", "p", summary), ExitCode.DONE
    )
    assert text.isascii()
    assert text.isprintable() or set(text) - {"\n"} == {char for char in text if char.isprintable()}


@pytest.mark.parametrize("what", [*FILES, *collect_answers()])
def test_every_schema_can_be_printed(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(bitbench(capsys, "schema", what).out)
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_can_be_printed(shell: str) -> None:
    variables = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = bitbench_process("--show-completion", shell, cwd=Path(), env=variables)
    assert done.returncode == 0, done.stderr
    assert "_BITBENCH_COMPLETE" in done.stdout or "bitbench" in done.stdout
