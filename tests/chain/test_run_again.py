"""What an earlier call gave up because its machine was busy, the same command measures."""

from pathlib import Path

from bitbench.machine.workplace import Workplace
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.running.offers import LogObserver
from bitbench.running.progress import CLIENT_BOUND_REPEATS
from bitbench.running.runner import measure_study
from bitbench.study.study import Study

# Half a second to the first token: a client that is a few milliseconds late on a busy machine changes nothing.
STUDY = {
    "name": "again",
    "engines": [
        {"engine": "null", "name": name, "args": {"ttft": "500ms", "tpot": "1ms"}}
        for name in ("a", "b")
    ],
    "workloads": [{"name": "w", "concurrency": 1, "input_tokens": 4, "output_tokens": 8}],
}


class Notes(LogObserver):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, message: str) -> None:
        self.said.append(message)


def run(place: Path, notes: Notes | None = None, **measure: object) -> StudyFolder:
    study = Study.model_validate({**STUDY, "measure": measure})
    return measure_study(study, place / "out", notes or LogObserver(), Workplace())


def spoil(folder: StudyFolder) -> list[TrialRecord]:
    """As if the machine had been busy whenever `b` was measured: what is recorded then."""
    made = folder.trials()
    (folder.path / "trials.jsonl").write_text("")
    with folder.open_writer() as writer:
        for trial in made:
            if trial.point.config.engine == "a" or trial.kind == "warmup":
                writer.append_trial(trial, None)
            elif trial.index == 0:
                late = {"outcome": Outcome.CLIENT_BOUND, "cause": "client too slow"}
                for index in range(CLIENT_BOUND_REPEATS + 1):
                    writer.append_trial(trial.model_copy(update={**late, "index": index}), None)
    return folder.trials()


def counted(folder: StudyFolder, engine: str) -> list[int]:
    """Blocks of the trials that count."""
    return sorted(
        trial.block
        for trial in folder.trials()
        if trial.counts and trial.point.config.engine == engine
    )


def test_a_point_that_was_given_up_is_measured_in_its_blocks(tmp_path: Path) -> None:
    folder = run(tmp_path, starts=2, trials=1)
    spoiled = spoil(folder)
    run(tmp_path, starts=2, trials=1)
    assert counted(folder, "b") == [0, 1]
    assert counted(folder, "a") == [
        0,
        0,
        1,
        1,
    ]  # beside it, where it took turns: a ratio needs common rounds
    measured = [trial for trial in folder.trials() if trial.kind == "measured"]
    numbers = [(trial.point.name, trial.block, trial.index) for trial in measured]
    assert len(numbers) == len(set(numbers))
    complete = len(folder.trials())
    assert complete > len(spoiled)
    run(tmp_path, starts=2, trials=1)
    assert len(folder.trials()) == complete


def test_with_a_budget_that_is_spent(tmp_path: Path) -> None:
    folder = run(tmp_path, notes := Notes(), budget="4s")
    assert any("the budget is less than 3 starts × 1 round take" in said for said in notes.said)
    spoil(folder)
    blocks = set(counted(folder, "a"))
    assert blocks == {0, 1}
    run(tmp_path, budget="4s")
    assert set(counted(folder, "b")) == blocks
    complete = len(folder.trials())
    run(tmp_path, budget="4s")
    assert len(folder.trials()) == complete
