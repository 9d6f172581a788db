"""The chosen one, measured once more: the best of several estimates looks better than it is.

A config is chosen because its ratio came out largest, by its speed or by luck. So a study with a budget keeps one
block back, of the chosen config and the baseline alone, both started anew. The choice knew nothing of that block,
so its difference d is not biased by it. One block has no variance of its own; it varies as the blocks that chose did:

    se² = max(b·se_s²·max(1, R_s / R), f),   df as in the selection

where se_s, b and R_s are the standard error, the blocks and the rounds of the pair in the selection (`pairs`), R the
rounds of the block and f the variance of d by its rounds alone.
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from bitbench.analysis.families import Claims
from bitbench.analysis.log_speeds import Floats, LogRatio, LogSpeeds, log_speeds
from bitbench.analysis.pairs import PairedRatio, PairTable
from bitbench.analysis.results.summary import AgainstBaseline, ConfirmedChoice
from bitbench.analysis.sequential import PrimaryMetric, SequentialAnalysis, turns_of
from bitbench.records.trial import TrialRecord
from bitbench.study.plan import Config, Point


def chosen(found: SequentialAnalysis, baseline: Config | None) -> dict[str, Config]:
    """By workload: of those that may be the best and are faster than the baseline, the one with the largest ratio."""
    best = {
        workload: _best(claims, found.tables[workload], baseline)
        for workload, claims in found.claims.items()
        if workload in found.tables
    }
    return {workload: config for workload, config in best.items() if config is not None}


def points_to_confirm(found: SequentialAnalysis, baseline: Config | None) -> frozenset[Point]:
    return frozenset(
        Point(config=config, workload=workload)
        for workload, best in chosen(found, baseline).items()
        for config in (best, baseline)
        if config is not None
    )


def confirmations(
    trials: Sequence[TrialRecord], found: SequentialAnalysis, baseline: Config | None, confidence: float
) -> dict[str, ConfirmedChoice]:
    """By workload, where the config that is chosen was measured once more."""
    confirming = [trial for trial in trials if trial.confirms]
    last = max((trial.block for trial in confirming), default=None)
    made = {}
    for workload, best in chosen(found, baseline).items():
        own = [trial for trial in confirming if trial.block == last and trial.point.workload == workload]
        pair = found.tables[workload].between(best, baseline) if baseline else None
        ratio = _fresh_ratio(own, pair, found.speeds[workload], found.primary_metric) if pair else None
        if ratio is not None:
            made[workload] = ConfirmedChoice(config=best, ratio=ratio.ratio(confidence))
    return made


def _best(claims: Claims, table: PairTable, baseline: Config | None) -> Config | None:
    faster = {config for config, said in claims.against_baseline.items() if said is AgainstBaseline.FASTER}
    ratios = {
        config: pair.log_mean
        for config in claims.configs
        if baseline
        and config in faster & claims.possible_bests
        and (pair := table.between(config, baseline)) is not None
    }
    return max(ratios, key=ratios.__getitem__, default=None)


def _fresh_ratio(
    trials: Sequence[TrialRecord], pair: PairedRatio, selection: LogSpeeds, primary_metric: PrimaryMetric
) -> LogRatio | None:
    """Of the figures themselves. None where the two have no round of the block in common."""
    figures = {turn: getattr(trial.metrics, primary_metric.metric) for turn, trial in turns_of(trials).items()}
    differences = _differences(log_speeds(figures, higher_is_better=primary_metric.higher_is_better), pair)
    rounds = int(np.isfinite(differences).sum())
    if rounds == 0:
        return None
    before = np.isfinite(_differences(selection, pair)).sum(1)
    of_blocks = pair.standard_error**2 * pair.blocks * max(1.0, float(before[before > 0].mean()) / rounds)
    by_rounds = float(np.nanvar(differences, ddof=1)) / rounds if rounds > 1 else 0.0
    mean = float(np.nanmean(differences))
    return LogRatio(
        log_mean=mean if primary_metric.higher_is_better else -mean,
        standard_error=sqrt(max(of_blocks, by_rounds)),
        degrees_of_freedom=pair.degrees_of_freedom,
    )


def _differences(speeds: LogSpeeds, pair: PairedRatio) -> Floats:
    """Block × round; empty where one of the two has no trial."""
    if not {pair.first, pair.second} <= set(speeds.configs):
        return np.empty((0, 0))
    first, second = (speeds.values[speeds.configs.index(config)] for config in (pair.first, pair.second))
    return np.asarray(first - second)
