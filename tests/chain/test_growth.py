"""What bitbench itself takes for a trial does not depend on how many points the study has."""

import time
from pathlib import Path

from bitbench.machine.workplace import Workplace
from bitbench.records.trial import TrialRecord
from bitbench.running.offers import LogObserver
from bitbench.running.runner import measure_study
from bitbench.study.plan import Plan
from tests.growth import null_study
from tests.length import by_length

MANY = by_length(10, 200)  # engines


class Stopwatch(LogObserver):
    """Processor time of this process from the first group to the last trial: what a run needs once is not in it."""

    def study_started(self, plan: Plan, trials_done: int) -> None:
        self.began_s = time.process_time()
        self.trials = 0

    def trial_finished(self, record: TrialRecord) -> None:
        self.ended_s = time.process_time()
        self.trials += 1


def harness_s_per_trial(folder: Path, *, engines: int, workloads: int) -> float:
    """Of the process that runs a study, without the load client and the engines."""
    study = null_study(engines, workloads, {"starts": 1, "trials": 2, "schedule": "visits"})
    watch = Stopwatch()
    measure_study(study, folder, watch, Workplace())
    assert watch.trials >= engines * workloads * 3  # with a warm-up
    return (watch.ended_s - watch.began_s) / watch.trials


def test_a_trial_among_many_points_costs_what_one_among_ten_does(tmp_path: Path) -> None:
    harness_s_per_trial(tmp_path / "first", engines=1, workloads=1)  # what is imported once
    before_s = harness_s_per_trial(tmp_path / "before", engines=2, workloads=5)
    many_s = harness_s_per_trial(tmp_path / "many", engines=MANY, workloads=5)
    after_s = harness_s_per_trial(tmp_path / "after", engines=2, workloads=5)
    few_s = max(
        before_s, after_s
    )  # a processor whose caches others use takes longer, for some seconds or for all
    print(f"per trial: {1e3 * few_s:.2f} ms of 10 points, {1e3 * many_s:.2f} ms of {5 * MANY}")
    assert many_s < 1.5 * few_s
