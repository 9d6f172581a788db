"""A search on null engines, from the file to the command line: the best is known, and so is why the others are out."""

import json
from pathlib import Path

import pytest

from bitbench.records.folder import StudyFolder
from bitbench.util.errors import ExitCode
from tests.busy_machine import CALLS
from tests.command_line import Answer, bitbench
from tests.length import by_length

# The fastest of all answers too late; of the others the one with 2 ms per token and no penalty per stream is the best.
TPOTS, BUDGET_S = by_length(("[6ms, 2ms]", 60), ("[6ms, 4ms, 2ms]", 90))
FILE = f"""
name: null-tune
engines:
  - engine: null
    args: {{ttft: 20ms, tpot: {TPOTS}, per_stream: [null, 0.2], vary: 0.01, vary_instance: 0.01}}
  - {{engine: null, name: late, args: {{ttft: 400ms, tpot: 0.1ms}}}}
  - {{engine: null, name: broken, args: {{fail: exit}}}}
workloads:
  - {{name: four, concurrency: 4, input_tokens: 64, output_tokens: 32}}
measure: {{budget: {BUDGET_S}s}}
objectives: {{ttft: 100ms}}
tune: {{}}
baseline: null tpot=6ms per_stream=unset
"""
BEST = "null tpot=2ms per_stream=unset"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune")
    (path / "tune.yaml").write_text(FILE)
    return path


def tune(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *more: str
) -> Answer:
    monkeypatch.chdir(place)
    monkeypatch.setenv("BITBENCH_HOME", str(place / "home"))
    monkeypatch.setenv("COLUMNS", "60")
    return bitbench(capsys, "tune", "tune.yaml", "--into", "out", *more)


def trials_in(place: Path) -> list[int]:
    return [len(StudyFolder(place / "out" / name).trials()) for name in ("search", "confirmation")]


def test_the_known_best_wins_and_is_confirmed(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(CALLS):  # the same command measures again what it gave up for a busy machine
        said = tune(place, capsys, monkeypatch)
        if said.exit_code != ExitCode.INCONCLUSIVE:
            break
    assert said.exit_code == ExitCode.DONE, said.out + said.err
    text = " ".join(said.out.split())
    assert f"Use {BEST}. In a fresh study, its output throughput is" in text
    assert "Ruled out: ttft" in text
    assert "No result: " in text
    fresh = StudyFolder.existing(place / "out" / "confirmation")
    assert {trial.point.config.engine for trial in fresh.trials()} == {
        BEST,
        "null tpot=6ms per_stream=unset",
    }
    searched = StudyFolder.existing(place / "out" / "search").trials()
    late = {trial.block for trial in searched if trial.point.config.engine == "late"}
    assert len(late) == 2  # it was dropped after the second
    assert (place / "out" / "search" / "report" / "index.html").exists()


def test_the_same_command_answers_again_without_measuring(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (place / "out").exists():  # this test runs alone
        tune(place, capsys, monkeypatch)
    for _ in range(CALLS):  # what was given up for a busy machine is measured first
        before = trials_in(place)
        said = tune(place, capsys, monkeypatch, "--json")
        if trials_in(place) == before:
            break
    assert trials_in(place) == before
    answer = json.loads(said.out)["answer"]
    assert answer["chosen"]["engine"] == BEST
    assert len(answer["tried"]) == by_length(6, 8)
    fates = {one["config"]["engine"]: one["fate"] for one in answer["tried"]}
    assert (fates["late"], fates["broken"], fates[BEST]) == ("ruled out", "no result", "best")
    confirmed = answer["confirmed"]
    truth = (20 + 31 * 6) / (20 + 31 * 2)  # ttft and 31 tokens
    assert confirmed["is_gain"]
    assert confirmed["ratio"]["value"] == pytest.approx(truth, rel=0.15)
