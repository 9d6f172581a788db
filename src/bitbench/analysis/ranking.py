"""Who is compared with whom, and the ranks that follow.

A small model is faster than a large one, and no finding.

A config's rank is a range: from one more than the number that are significantly better to the number of all less
those that are significantly worse. A config with a single start has none: the next start may differ as much as two
configs do. Claims come from differences within blocks (`sequential_standing`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitbench.analysis.claims import Claims, Ordered
from bitbench.analysis.intervals import Sample
from bitbench.analysis.pairs import LogSpeeds
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import AgainstBaseline, Ranking, RankingEntry
from bitbench.analysis.sequential import (
    SequentialAnalysis,
    baseline_of,
    primary_metric_of,
    sequential_standing,
)
from bitbench.analysis.unpaired import unpaired_ratio
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.study.plan import Config, Plan


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
        return sequential_standing(
            self.plan, trials, others, primary_metric_of(self.plan), self.baseline
        )


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
    return {
        config: group.baseline for group in groups if group.baseline for config in group.configs
    }


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
    reference = baseline if baseline in samples else None
    claims = found.claims.get(workload)

    def ratio(config: Config) -> Estimate | None:
        if reference is None or config == reference:
            return None
        paired = found.ratio(workload, config, reference, confidence)
        return paired or unpaired_ratio(samples[config], samples[reference], confidence)

    def figure(config: Config) -> float:
        """By the ratio that is shown, so that no two of them contradict the order."""
        quoted = ratios[config]
        if quoted is None or reference is None:
            return samples[config].mean
        return quoted.value * samples[reference].mean

    ratios = {config: ratio(config) for config in samples}
    by_figure = sorted(samples, key=figure, reverse=found.primary_metric.higher_is_better)
    apart = claims.ordered if claims else frozenset()
    order = _in_claimed_order(by_figure, apart)
    ranked = [config for config in order if samples[config].n_instances > 1]
    can_compare = len(ranked) > 1 or len(order) < 2

    return Ranking(
        workload=workload,
        metric=found.primary_metric.metric,
        baseline=reference,
        entries=tuple(
            RankingEntry(
                config=config,
                **_ranks(config, ranked if can_compare else [], apart),
                ratio_to_baseline=ratios[config],
                against_baseline=_against(config, claims, reference),
            )
            for config in order
        ),
        possible_bests=tuple(config for config in order if config in claims.possible_bests)
        if claims
        else (),
        starts_needed=None if can_compare else FEWEST_STARTS,
    )


def _in_claimed_order(by_figure: Sequence[Config], apart: frozenset[Ordered]) -> list[Config]:
    """The best first, but none before one that is claimed to be better: they may have run in other blocks."""
    left, order = list(by_figure), list[Config]()
    while left:
        best = next(
            (config for config in left if not any((other, config) in apart for other in left)),
            left[0],
        )
        order.append(best)
        left.remove(best)
    return order


def _ranks(config: Config, ranked: Sequence[Config], apart: frozenset[Ordered]) -> dict[str, Any]:
    if config not in ranked:
        return {"rank_low": None, "rank_high": None, "undecided_with": ()}
    better = [other for other in ranked if (other, config) in apart]
    worse = [other for other in ranked if (config, other) in apart]
    rivals = tuple(other for other in ranked if other not in (config, *better, *worse))
    return {
        "rank_low": 1 + len(better),
        "rank_high": len(ranked) - len(worse),
        "undecided_with": rivals,
    }


def _against(
    config: Config, claims: Claims | None, baseline: Config | None
) -> AgainstBaseline | None:
    if baseline is None or config == baseline:
        return None
    known = claims.against_baseline if claims else {}
    return known.get(config, AgainstBaseline.UNDECIDED)
