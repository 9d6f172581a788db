"""Ranks with ties: two configs are told apart only where a claim says so, corrected for all that is asked at once.

A config's rank is a range: from one more than the number that are significantly better to the number of all less
those that are significantly worse. One with a single trial has none: a tie of all with all would be no finding. Claims
come from differences within blocks (`standing`); a study with one start of each config has none, and falls back to
what its trials say about that start.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from bitbench.analysis.families import Claims, Ordered, holm
from bitbench.analysis.intervals import Sample
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import AgainstBaseline, Ranking, RankingEntry
from bitbench.analysis.sequential import SequentialAnalysis
from bitbench.analysis.unpaired import compare
from bitbench.study.plan import Config


def rank(
    workload: str,
    samples: Mapping[Config, Sample],
    found: SequentialAnalysis,
    *,
    baseline: Config | None,
    confidence: float,
) -> Ranking:
    """Rank the configs of one workload; `samples` are of the primary metric."""
    order = sorted(samples, key=lambda config: samples[config].mean, reverse=found.primary_metric.higher_is_better)
    reference = baseline if baseline in samples else None
    ranked = [config for config in order if samples[config].n_trials > 1]
    claims = found.claims.get(workload)
    apart = claims.ordered if claims else _of_one_start(order, samples, confidence)

    def ratio(config: Config) -> Estimate | None:
        if reference is None or config == reference:
            return None
        paired = found.ratio(workload, config, reference, confidence)
        return paired or compare(samples[config], samples[reference], confidence)

    return Ranking(
        workload=workload,
        metric=found.primary_metric.metric,
        baseline=reference,
        entries=tuple(
            RankingEntry(
                config=config,
                **_ranks(config, ranked, apart),
                ratio_to_baseline=ratio(config),
                against_baseline=_against(config, apart, claims, reference),
            )
            for config in order
        ),
        possible_bests=tuple(config for config in order if config in claims.possible_bests) if claims else (),
    )


def _ranks(config: Config, ranked: Sequence[Config], apart: frozenset[Ordered]) -> dict[str, Any]:
    if config not in ranked:
        return {"rank_low": None, "rank_high": None, "tied_with": ()}
    better = [other for other in ranked if (other, config) in apart]
    worse = [other for other in ranked if (config, other) in apart]
    tied = tuple(other for other in ranked if other not in (config, *better, *worse))
    return {"rank_low": 1 + len(better), "rank_high": len(ranked) - len(worse), "tied_with": tied}


def _against(
    config: Config, apart: frozenset[Ordered], claims: Claims | None, baseline: Config | None
) -> AgainstBaseline | None:
    if baseline is None or config == baseline:
        return None
    if claims is not None:
        return claims.against_baseline.get(config, AgainstBaseline.UNDECIDED)
    if (config, baseline) in apart:
        return AgainstBaseline.FASTER
    return AgainstBaseline.SLOWER if (baseline, config) in apart else AgainstBaseline.UNDECIDED


def _of_one_start(order: Sequence[Config], samples: Mapping[Config, Sample], confidence: float) -> frozenset[Ordered]:
    """Pairs (better, worse) by trials alone, where no start is repeated; nothing where some have several."""
    if any(sample.n_instances > 1 for sample in samples.values()):
        return frozenset()  # it has not been looked at yet
    pairs = list(combinations(order, 2))
    ratios = [compare(samples[better], samples[worse], confidence) for better, worse in pairs]
    # A pair that cannot be compared (one trial) still counts as asked: leaving it out would favour the others.
    adjusted = holm([1.0 if ratio is None or ratio.p_value is None else ratio.p_value for ratio in ratios])
    return frozenset(pair for pair, p_value in zip(pairs, adjusted, strict=True) if p_value < 1 - confidence)
