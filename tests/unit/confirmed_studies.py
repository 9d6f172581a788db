"""Simulated studies that confirm their choice: seven configs are equally fast, and the luckiest is chosen."""

from collections.abc import Iterator
from math import log, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from bitbench.analysis.ranking import configs_to_confirm, confirmations
from bitbench.analysis.sequential import SequentialAnalysis, baseline_of, primary_metric_of, sequential_standing
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import TrialMetrics, TrialRecord
from bitbench.study.plan import Purpose
from bitbench.study.study import Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.unit.machine_simulation import GALLERY, Floats, Simulation
from tests.unit.simulated_claims import allowed
from tests.unit.synthetic import make_plan, make_records, make_trial

SPEEDS = (1.0, *[1.4] * 7)
BLOCKS, ROUNDS = 3, 4
WORKLOAD = BUILT_IN_WORKLOADS["interactive"]
PLAN = make_plan(
    [f"engine-{number}" for number in range(len(SPEEDS))], [WORKLOAD], Measure(starts=BLOCKS, trials=ROUNDS)
)


class Found(NamedTuple):
    """Logarithms of the two ratios over their truth, and whether the confirmed one's interval contains it."""

    selected: float
    confirmed: float
    is_covered: bool


def _trials(figures: Floats, block: int, purpose: Purpose) -> Iterator[TrialRecord]:
    for point, values in zip(PLAN.points, figures, strict=True):
        for index, value in enumerate(values):
            if np.isfinite(value):
                metrics = TrialMetrics(output_throughput=float(np.exp(value)))
                yield make_trial(point, block, index, round=index, metrics=metrics, purpose=purpose)


def _standing(trials: list[TrialRecord]) -> SequentialAnalysis:
    return sequential_standing(PLAN, trials, [], primary_metric_of(PLAN), baseline_of(PLAN))


def confirmed_study(seed: int) -> StudyRecords:
    running = Simulation(GALLERY, SPEEDS, np.random.default_rng(seed), seconds=1500)
    trials: list[TrialRecord] = []
    for block in range(BLOCKS):
        figures, _ = running.block(range(len(SPEEDS)), ROUNDS, alternate=True)
        trials += _trials(figures, block, Purpose.SELECTION)
    best = configs_to_confirm(_standing(trials), baseline_of(PLAN)).get(WORKLOAD.name)
    if best is not None:
        figures, _ = running.block([0, PLAN.configs.index(best)], ROUNDS, alternate=True)
        trials += _trials(figures, BLOCKS, Purpose.CONFIRMATION)
    return make_records(PLAN, trials)


def found_in(of: StudyRecords) -> Found | None:
    found, baseline = _standing(list(of.trials)), baseline_of(PLAN)
    made = confirmations(of.trials, found, baseline, 0.95).get(WORKLOAD.name)
    if made is None or baseline is None or made.ratio.interval is None:
        return None
    selected = found.ratio(WORKLOAD.name, made.config, baseline, 0.95)
    assert selected is not None
    truth = SPEEDS[1] / SPEEDS[0]
    is_covered = made.ratio.interval.low <= truth <= made.ratio.interval.high
    return Found(log(selected.value / truth), log(made.ratio.value / truth), is_covered)


def simulated(studies: int) -> list[Found]:
    return [found for seed in range(studies) if (found := found_in(confirmed_study(seed))) is not None]


def assert_unbiased(studies: int) -> None:
    """The chosen ratio is too large by several percent, the confirmed one by nothing that can be seen; it covers."""
    found = simulated(studies)
    assert len(found) > 0.9 * studies
    assert fmean(one.selected for one in found) > 0.03
    confirmed = [one.confirmed for one in found]
    assert abs(fmean(confirmed)) < 3 * stdev(confirmed) / sqrt(len(confirmed))
    assert fmean(not one.is_covered for one in found) <= allowed(len(found))
