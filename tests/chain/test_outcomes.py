"""Whatever goes wrong in a point is its result, with a cause, and the study goes on. On real processes."""

import pytest

from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import Outcome
from bitbench.reports.write import StudyReport
from bitbench.running.progress import CLIENT_BOUND_REPEATS
from tests.chain.conftest import run_study_file

STUDY = """
name: outcomes
engines:
  - {engine: null, name: too-large, args: {fail: memory, memory_mb: 600}}
  - {engine: null, name: exits, args: {fail: exit}}
  - {engine: null, name: never-ready, args: {fail: never_ready}}
  - {engine: null, name: hangs, args: {fail: hang}}
  - {engine: null, name: short, args: {fail: short}}
  - {engine: null, name: disconnects, args: {fail: disconnect}}
  - {engine: null, name: good, args: {ttft: 5ms, tpot: 1ms}}
workloads:
  - {name: w, concurrency: 2, input_tokens: 8, output_tokens: 10}
measure: {starts: 2, trials: 2}
limits: {start: 8s, request: 20s, stall: 1s, memory: 300MiB}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    return run_study_file(STUDY, tmp_path_factory.mktemp("outcomes"))


@pytest.fixture(scope="module")
def report(folder: StudyFolder) -> str:
    return StudyReport(folder, get_default_home()).write().read_text()


@pytest.mark.parametrize(
    ("engine", "outcome", "cause"),
    [
        ("too-large", Outcome.OOM, "300 MiB"),
        ("exits", Outcome.CRASHED, "exit"),
        ("never-ready", Outcome.TIMEOUT, "8"),
        ("hangs", Outcome.TIMEOUT, "no byte"),
        ("short", Outcome.INVALID, "tokens"),
        ("disconnects", Outcome.CRASHED, ""),
    ],
)
def test_outcome(
    folder: StudyFolder, report: str, engine: str, outcome: Outcome, cause: str
) -> None:
    bad = [
        trial
        for trial in folder.trials()
        if trial.kind == "measured" and trial.point.config.engine == engine
    ]
    assert {trial.outcome for trial in bad} == {outcome}
    assert all(trial.cause and cause in trial.cause for trial in bad), [
        trial.cause for trial in bad
    ]
    assert outcome.value in report
    assert engine in report


def test_the_others_do_not_stop_what_works(folder: StudyFolder, report: str) -> None:
    good = [
        trial
        for trial in folder.trials()
        if trial.kind == "measured" and trial.point.config.engine == "good"
    ]
    for block in range(2):
        outcomes = [trial.outcome for trial in good if trial.block == block and trial.turn == 0]
        assert set(outcomes) <= {Outcome.OK, Outcome.CLIENT_BOUND}
        late = outcomes.count(Outcome.CLIENT_BOUND)  # on a busy machine; repeated, but not for ever
        assert outcomes.count(Outcome.OK) == 2 or late > CLIENT_BOUND_REPEATS, outcomes
    assert "good" in report
