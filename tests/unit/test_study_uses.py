"""A study that a person runs is trusted: plan shows what it uses, and one rule is left for keys."""

from pathlib import Path

import pytest

from bitbench.api import interface
from bitbench.study.study_file import StudySource
from bitbench.util.errors import ExitCode, StudyFileError
from tests.command_line import bitbench

STUDY = """\
name: x
seed: 1
engines:
  - {engine: endpoint, name: there, args: {url: "http://127.0.0.1:1", model: m, api_key_env: NAME}}
workloads: [interactive]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def test_plan_shows_what_a_study_uses(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine.txt").write_text("text " * 99)
    (place / "s.yaml").write_text(
        STUDY.replace(
            "workloads: [interactive]",
            "  - {engine: null, args: {ttft: 20ms}, env: {LD_PRELOAD: x.so}}\n",
        )
        + "workloads: [{name: w, concurrency: 1, input_tokens: 8, output_tokens: 8, text: {file: mine.txt}}]\n"
    )
    shown = bitbench(capsys, "plan", "s.yaml").out
    uses = shown[shown.index("What it would use") :]
    for used in (
        "url=http://127.0.0.1:1",
        "NAME",
        "ttft=20ms",
        "LD_PRELOAD=x.so",
        str(place / "mine.txt"),
        "./x",
    ):
        assert used in uses


def test_a_key_of_another_name_is_given_by_its_name(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "s.yaml").write_text(STUDY.replace("NAME", "AWS_KEY"))
    refused = bitbench(capsys, "run", "s.yaml")
    assert refused.exit_code == ExitCode.USAGE
    assert refused.err.startswith(
        "error: s.yaml:4: engines[0].args.api_key_env: there sends the value of AWS_KEY"
    )
    assert not (place / "x").exists()
    assert bitbench(capsys, "run", "s.yaml", "--key-from", "OTHER").exit_code == ExitCode.USAGE
    assert (
        bitbench(capsys, "run", "s.yaml", "--key-from", "AWS_KEY").exit_code
        == ExitCode.NOTHING_MEASURED
    )
    with pytest.raises(StudyFileError, match="AWS_KEY"):
        interface.run(place / "s.yaml", place / "out")


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "BITBENCH_MINE"])
def test_a_usual_key_needs_no_word(
    place: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (place / "s.yaml").write_text(STUDY.replace("NAME", name))
    assert bitbench(capsys, "run", "s.yaml").exit_code == ExitCode.NOTHING_MEASURED


@pytest.mark.parametrize(
    "task", ["/tmp/evil.txt", "./evil", "~/evil.YAML", "../evil", "evil/", "evil task", "-x", ""]
)
def test_a_task_that_is_a_path_is_no_name(task: str, place: Path) -> None:
    """lm-eval takes any path for a task file, and runs the code that it names."""
    (place / "s.yaml").write_text(f"{STUDY}quality: {{tasks: ['{task}']}}\n")
    with pytest.raises(
        StudyFileError, match=r"neither a name of lm-eval's registry nor a YAML file"
    ):
        StudySource.of(place / "s.yaml")
