"""Whatever goes wrong in a cell is its result, with a cause, and the study goes on. On real processes."""

import pytest

from bitbench.core.recorded.trial import Outcome
from bitbench.lab.study import Lab
from tests.chain.conftest import RunStudy

STUDY = """
name: outcomes
engines:
  - {{engine: null, name: bad, args: {{{args}}}}}
  - {{engine: null, name: good, args: {{ttft: 5ms, tpot: 1ms}}}}
workloads:
  - {{name: w, concurrency: 2, input_tokens: 8, output_tokens: 10}}
measure: {{instances: 2, trials: 2}}
limits: {{start: 8s, request: 20s, stall: 1s, memory: 300MiB}}
"""


@pytest.mark.parametrize(
    ("args", "outcome", "cause"),
    [
        ("fail: memory, memory_mb: 600", Outcome.OOM, "300 MiB"),
        ("fail: exit", Outcome.CRASHED, "exit"),
        ("fail: never_ready", Outcome.TIMEOUT, "8"),
        ("fail: hang", Outcome.TIMEOUT, "no byte"),
        ("fail: short", Outcome.INVALID, "tokens"),
        ("fail: disconnect", Outcome.CRASHED, ""),
    ],
)
def test_outcome(run_study: RunStudy, args: str, outcome: Outcome, cause: str) -> None:
    folder = run_study(STUDY.format(args=args))
    trials = [trial for trial in folder.trials() if trial.kind == "measured"]
    bad = [trial for trial in trials if trial.cell.contender.engine == "bad"]
    good = [trial for trial in trials if trial.cell.contender.engine == "good"]
    assert {trial.outcome for trial in bad} == {outcome}
    assert all(trial.cause and cause in trial.cause for trial in bad), [trial.cause for trial in bad]
    assert [trial.outcome for trial in good].count(Outcome.OK) == 4
    report = Lab().report(folder).read_text()
    assert bad[0].cause is not None
    assert outcome.value in report
    assert "good" in report
