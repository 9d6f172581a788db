"""Who is compared with whom, the ranks that follow with their ties, and the chosen config measured once more.

A small model is faster than a large one, and no finding.

A config's rank is a range: from one more than the number that are significantly better to the number of all less
those that are significantly worse. A config with a single start has none: the next start may differ as much as two
configs do. Claims come from differences within blocks (`sequential_standing`).

A config is chosen because its ratio came out largest, by its speed or by luck. So a study with a budget keeps one
block back, of the chosen config and the baseline alone, both started anew. The choice knew nothing of that block, so
its difference d is not biased by it. One block has no variance of its own; it varies as the blocks that chose did:

    se² = max(b·se_s²·max(1, R_s / R), f),   df as in the selection

where se_s, b and R_s are the standard error, the blocks and the rounds of the pair in the selection (`pairs`), R the
rounds of the block and f the variance of d by its rounds alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from bitbench.analysis.claims import Claims, Ordered
from bitbench.analysis.intervals import Sample
from bitbench.analysis.pairs import Floats, LogRatio, LogSpeeds, PairedRatio, PairTable, log_speeds
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import AgainstBaseline, ConfirmedChoice, Ranking, RankingEntry
from bitbench.analysis.sequential import (
    PrimaryMetric,
    SequentialAnalysis,
    baseline_of,
    primary_metric_of,
    sequential_standing,
    sequential_turns,
)
from bitbench.analysis.unpaired import unpaired_ratio
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.study.plan import Config, Plan, Point


@dataclass(frozen=True, eq=False)  # a key by identity: plans are large
class ModelGroup:
    """One model of a study: `plan` has its configs alone, `baseline` is what they are compared with."""

    model: str
    plan: Plan
    baseline: Config | None

    @property
    def configs(self) -> tuple[Config, ...]:
        """Those that were refused as well."""
        return self.plan.asked

    def standing(
        self, trials: Sequence[TrialRecord], others: Sequence[InstanceRecord | QualityRecord] = ()
    ) -> SequentialAnalysis:
        """`trials`, `others`: all of the study, since its time is what all of them took."""
        return sequential_standing(self.plan, trials, others, primary_metric_of(self.plan), self.baseline)


def ranking_model_groups(plan: Plan) -> tuple[ModelGroup, ...]:
    """In the order of the study."""
    chosen = baseline_of(plan)
    fields = []
    for model in plan.models:
        own = plan.of_model(model)
        fields.append(ModelGroup(model, own, _baseline(plan, own, chosen) if chosen else None))
    return tuple(fields)


def baselines_of(plan: Plan) -> dict[Config, Config]:
    """Of each config, the one of its model."""
    groups = ranking_model_groups(plan)
    return {config: group.baseline for group in groups if group.baseline for config in group.configs}


def model_group_speeds(found: Mapping[ModelGroup, SequentialAnalysis]) -> dict[str, LogSpeeds]:
    """Of every workload of every model."""
    return {
        f"{field.model} {workload}": speeds
        for field, standing_ in found.items()
        for workload, speeds in standing_.speeds.items()
    }


def ranking_model_group(plan: Plan, config: Config) -> ModelGroup:
    return next(field for field in ranking_model_groups(plan) if config in field.configs)


def _baseline(plan: Plan, own: Plan, chosen: Config) -> Config | None:
    """The study's; for another model the same recipe on the same engine, else the first on that engine, else the
    first."""
    recipes = {variant.name: variant.recipe for variant in plan.variants}

    def likeness(config: Config) -> tuple[bool, bool, bool]:
        same_engine = config.engine == chosen.engine
        same_recipe = recipes.get(config.variant) == recipes.get(chosen.variant)
        return config == chosen, same_engine and same_recipe, same_engine

    return max(own.asked, key=likeness, default=None)


FEWEST_STARTS = 3  # two give an interval so wide that it decides nothing


def rank_configs(
    workload: str,
    samples: Mapping[Config, Sample],
    found: SequentialAnalysis,
    *,
    baseline: Config | None,
    confidence: float,
) -> Ranking:
    """Rank the configs of one workload; `samples` are of the primary metric."""
    by_mean = sorted(samples, key=lambda config: samples[config].mean, reverse=found.primary_metric.higher_is_better)
    reference = baseline if baseline in samples else None
    claims = found.claims.get(workload)
    apart = claims.ordered if claims else frozenset()
    order = _in_claimed_order(by_mean, apart)
    ranked = [config for config in order if samples[config].n_instances > 1]
    can_compare = len(ranked) > 1 or len(order) < 2

    def ratio(config: Config) -> Estimate | None:
        if reference is None or config == reference:
            return None
        paired = found.ratio(workload, config, reference, confidence)
        return paired or unpaired_ratio(samples[config], samples[reference], confidence)

    return Ranking(
        workload=workload,
        metric=found.primary_metric.metric,
        baseline=reference,
        entries=tuple(
            RankingEntry(
                config=config,
                **_ranks(config, ranked if can_compare else [], apart),
                ratio_to_baseline=ratio(config),
                against_baseline=_against(config, claims, reference),
            )
            for config in order
        ),
        possible_bests=tuple(config for config in order if config in claims.possible_bests) if claims else (),
        starts_needed=None if can_compare else FEWEST_STARTS,
    )


def _in_claimed_order(by_mean: Sequence[Config], apart: frozenset[Ordered]) -> list[Config]:
    """The best mean first, but none before one that is claimed to be better: they may have run in other blocks."""
    left, order = list(by_mean), list[Config]()
    while left:
        best = next((config for config in left if not any((other, config) in apart for other in left)), left[0])
        order.append(best)
        left.remove(best)
    return order


def _ranks(config: Config, ranked: Sequence[Config], apart: frozenset[Ordered]) -> dict[str, Any]:
    if config not in ranked:
        return {"rank_low": None, "rank_high": None, "tied_with": ()}
    better = [other for other in ranked if (other, config) in apart]
    worse = [other for other in ranked if (config, other) in apart]
    tied = tuple(other for other in ranked if other not in (config, *better, *worse))
    return {"rank_low": 1 + len(better), "rank_high": len(ranked) - len(worse), "tied_with": tied}


def _against(config: Config, claims: Claims | None, baseline: Config | None) -> AgainstBaseline | None:
    if baseline is None or config == baseline:
        return None
    known = claims.against_baseline if claims else {}
    return known.get(config, AgainstBaseline.UNDECIDED)


def configs_to_confirm(found: SequentialAnalysis, baseline: Config | None) -> dict[str, Config]:
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
        for workload, best in configs_to_confirm(found, baseline).items()
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
    for workload, best in configs_to_confirm(found, baseline).items():
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
    """Above 1 where the first is better. None where the two have no round of the block in common."""
    figures = {turn: getattr(trial.metrics, primary_metric.metric) for turn, trial in sequential_turns(trials).items()}
    differences = _differences(log_speeds(figures, higher_is_better=primary_metric.higher_is_better), pair)
    rounds = int(np.isfinite(differences).sum())
    if rounds == 0:
        return None
    before = np.isfinite(_differences(selection, pair)).sum(1)
    of_blocks = pair.standard_error**2 * pair.blocks * max(1.0, float(before[before > 0].mean()) / rounds)
    by_rounds = float(np.nanvar(differences, ddof=1)) / rounds if rounds > 1 else 0.0
    mean = float(np.nanmean(differences))
    return LogRatio(
        log_mean=mean,
        standard_error=sqrt(max(of_blocks, by_rounds)),
        degrees_of_freedom=pair.degrees_of_freedom,
    )


def _differences(speeds: LogSpeeds, pair: PairedRatio) -> Floats:
    """Block × round; empty where one of the two has no trial."""
    if not {pair.first, pair.second} <= set(speeds.configs):
        return np.empty((0, 0))
    first, second = (speeds.values[speeds.configs.index(config)] for config in (pair.first, pair.second))
    return np.asarray(first - second)
