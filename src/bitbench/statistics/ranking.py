"""Ranks with ties: two contenders differ in rank only where the difference is significant after Holm's correction.

Many pairs are asked at once, so some would differ by chance; Holm keeps the chance of *any* false difference in a
workload below the allowed error. A contender's rank is a range: from one more than the number that are
significantly better to the number of all less those that are significantly worse.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

from bitbench.core.cell import Contender
from bitbench.core.found.summary import Ranking, RankingEntry
from bitbench.statistics.comparison import compare
from bitbench.statistics.intervals import Sample

# A study stops when it is precise enough, and each such look gives chance another opportunity. Told apart at this share
# of the allowed error, about 3 % of equal pairs are ranked apart over all designs that were simulated; at all of it,
# 5 to 6 % were.
SHARE_OF_ERROR = 0.6


def rank(
    workload: str,
    metric: str,
    samples: Mapping[Contender, Sample],
    *,
    higher_is_better: bool,
    baseline: Contender | None,
    confidence: float,
) -> Ranking:
    """Rank the contenders of one workload; `samples` are of the headline metric."""
    order = sorted(samples, key=lambda contender: samples[contender].mean, reverse=higher_is_better)
    apart = _told_apart(order, samples, confidence)
    reference = samples.get(baseline) if baseline is not None else None
    entries = []
    for place, contender in enumerate(order):
        better = sum((other, contender) in apart for other in order[:place])
        worse = sum((contender, other) in apart for other in order[place + 1 :])
        own = contender == baseline or reference is None
        entries.append(
            RankingEntry(
                contender=contender,
                rank_low=1 + better,
                rank_high=len(order) - worse,
                tied_with=tuple(
                    other
                    for other in order
                    if other != contender and (other, contender) not in apart and (contender, other) not in apart
                ),
                ratio_to_baseline=None
                if own or reference is None
                else compare(samples[contender], reference, confidence),
            )
        )
    return Ranking(workload=workload, metric=metric, baseline=baseline if reference else None, entries=tuple(entries))


def _told_apart(
    order: Sequence[Contender], samples: Mapping[Contender, Sample], confidence: float
) -> set[tuple[Contender, Contender]]:
    """Pairs (better, worse) whose difference stands after the correction."""
    pairs = list(combinations(order, 2))
    ratios = [compare(samples[better], samples[worse], confidence) for better, worse in pairs]
    # A pair that cannot be compared (one trial) still counts as asked: leaving it out would favour the others.
    p_values = [1.0 if ratio is None or ratio.p_value is None else ratio.p_value for ratio in ratios]
    adjusted = holm(p_values)
    return {pair for pair, p_value in zip(pairs, adjusted, strict=True) if p_value < SHARE_OF_ERROR * (1 - confidence)}


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the order given (Holm 1979, step down)."""
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - step) * p_values[place]))
        adjusted[place] = reached
    return adjusted
