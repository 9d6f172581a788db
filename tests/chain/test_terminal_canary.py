"""Every command that prints, on a pseudo-terminal, over hostile names in studies, records and answers.

The terminal gets our own colours and movements of the cursor, and nothing of the canary that it would obey or hide.
"""

import re
from pathlib import Path

import pytest

from bitbench.reports.formats import list_formats
from bitbench.util.text import escape_hidden
from tests.chain.hostile_place import CANARY, PIECES, WORD, WRONG, hostile_server, write_place
from tests.pseudo_terminal import Shown, on_terminal

OURS = re.compile(
    r"\x1b\[[0-9;]*[mK]|\x1b\[1A|\x1b\[\?25[lh]|\r"
)  # styles, clearing a line, going up, the cursor
DEFECT = 70
NAMED = CANARY.replace("/", "-")  # as a file's name
COMMANDS: dict[str, tuple[str, ...]] = {
    "plan": ("plan", "good.yaml"),
    **{f"plan: wrong {name}": ("plan", f"wrong-{name}.yaml") for name in WRONG},
    "plan: twice": ("plan", "twice.yaml"),
    "plan: missing": ("plan", f"{NAMED}.yaml"),
    "plan: debug": ("--debug", "plan", f"{NAMED}.yaml"),
    "run: wrong": ("run", "wrong-engine.yaml"),
    "run: budget": ("run", "good.yaml", "--budget", CANARY),
    "init": ("init", f"new {NAMED}.yaml"),
    "report": ("report", "records"),
    **{f"report: {form}": ("report", "records", "--format", form) for form in list_formats()},
    "report: unknown format": ("report", "records", "--format", CANARY),
    "report: missing": ("report", NAMED),
    "report: markdown-kernels": ("report", "kernels", "--format", "markdown-kernels"),
    "recommend": ("recommend", "records"),
    "recommend: markdown": ("recommend", "records", "--format", "markdown"),
    "recommend: limit": ("recommend", "records", "--slo", CANARY),
    "compare": ("compare", "records", "later"),
    "compare: markdown": ("compare", "records", "later", "--format", "markdown"),
    "compare: variants": ("compare", "records", "--variants", CANARY, "nothing"),
    "explain": ("explain", "records", CANARY),
    "history": ("history", ".", "--point", CANARY),
    "query": ("query", ".", "SELECT variant, cause FROM trials"),
    "query: csv": ("query", ".", "SELECT * FROM trials", "--format", "csv"),
    "query: json": ("query", ".", "SELECT * FROM trials", "--format", "json"),
    "query: wrong": ("query", ".", f"SELECT '{CANARY}' FROM nothing"),
    "import": ("import", "results.json", "--from", "vllm", "--into", "imported"),
    "import: wrong": ("import", NAMED, "--from", "vllm"),
    "variant list": ("variant", "list"),
    "variant show": ("variant", "show", "m"),
    "variant show: missing": ("variant", "show", CANARY),
    "variant rm: missing": ("variant", "rm", CANARY),
    "recipes: missing": ("recipes", CANARY),
    "quantize: model": ("quantize", CANARY, "-r", "w8a8-rtn"),
    "quantize: recipe": ("quantize", "smollm2-135m", "-r", CANARY),
    "quality": ("quality", NAMED, "--recipes", "bf16"),
    "kernels": ("kernels", "--quick", "--cases", CANARY),
    "model get": ("model", "get", CANARY),
    "env list": ("env", "list"),
    "env create": ("env", "create", CANARY),
    "doctor": ("doctor",),
    "load: URL": ("load", CANARY),
    "load: model": ("load", "http://127.0.0.1:9", "--model", CANARY),
    "no such command": (CANARY,),
    "no such option": ("plan", f"--{CANARY}"),
}
# That need not repeat what they were given.
QUIET = {"report: html", "report: markdown-profile", "quality", "load: model", "query: wrong"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_place(tmp_path_factory.mktemp("hostile"))


def show(place: Path, *arguments: str, answer: bytes = b"") -> Shown:
    shown = on_terminal(
        *arguments, cwd=place, env={"BITBENCH_HOME": str(place / "home")}, answer=answer
    )
    assert_harmless(shown.output)
    assert shown.exit_code != DEFECT, shown.output[-2000:]
    return shown


def assert_harmless(output: bytes) -> None:
    for piece in PIECES:
        assert f"{piece}{WORD}".encode() not in output
    text = OURS.sub("", output.decode())
    assert escape_hidden(text) == text


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_lets_it_through(command: str, place: Path) -> None:
    shown = show(place, *COMMANDS[command])
    assert command in QUIET or WORD.encode() in shown.output, shown.output[-2000:]


def test_a_study_runs_and_reports_it(place: Path) -> None:
    """The lines of trials, failures of engines, and the report."""
    shown = show(place, "run", "good.yaml", "--into", "out")
    assert shown.exit_code == 0, shown.output[-2000:]
    assert rb"\x1b]52;c;Q0FO" in shown.output
    assert b"[bold red]CANARY[/]" in shown.output


@pytest.mark.parametrize("refuses", [False, True], ids=["streams", "refuses"])
def test_a_server_says_it(place: Path, refuses: bool, tmp_path: Path) -> None:
    with hostile_server(refuses=refuses) as url:
        options = ("--concurrency", "1", "--requests", "2", "--trials", "1", "--output-tokens", "1")
        shown = show(place, "load", url, "--model", "m", *options, "--into", str(tmp_path / "load"))
    assert (WORD.encode() in shown.output) == refuses  # answers are not shown, errors are
    assert (shown.exit_code != 0) == refuses, shown.output[-2000:]
