"""Which configs are compared with each other, and the ranks that follow.

Models are not compared with each other: a small model is faster than a large one, which is not a
finding.

A config's rank is a range. It begins at one more than the number of configs that are significantly
better. It ends at the number of all configs less those that are significantly worse. A config with
a single start has no rank: the next start may differ as much as two configs do. Claims come from
differences within blocks (`make_sequential_analysis`).
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
    find_baseline,
    get_primary_metric,
    make_sequential_analysis,
)
from bitbench.analysis.unpaired import estimate_unpaired_ratio
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.study.plan import Config, Plan


@dataclass(frozen=True, eq=False)  # a key by identity: plans are large
class ModelGroup:
    """One model of a study. `plan` has only its configs, which are compared with `baseline`."""

    model: str
    plan: Plan
    baseline: Config | None

    @property
    def configs(self) -> tuple[Config, ...]:
        """Return all configs of the model, including those that were refused."""
        return self.plan.asked

    def standing(
        self, trials: Sequence[TrialRecord], others: Sequence[InstanceRecord | QualityRecord] = ()
    ) -> SequentialAnalysis:
        """Return the analysis of this model from all records of the study, which share its time."""
        return make_sequential_analysis(
            self.plan, trials, others, get_primary_metric(self.plan), self.baseline
        )


def list_model_groups(plan: Plan) -> tuple[ModelGroup, ...]:
    """Return the models of a study in its order."""
    chosen = find_baseline(plan)
    groups = []
    for model in plan.models:
        model_plan = plan.select_model(model)
        baseline = _choose_baseline(plan, model_plan, chosen) if chosen else None
        groups.append(ModelGroup(model, model_plan, baseline))
    return tuple(groups)


def collect_baselines(plan: Plan) -> dict[Config, Config]:
    """Return the baseline of each config, which is the baseline of its model."""
    baselines: dict[Config, Config] = {}
    for group in list_model_groups(plan):
        if group.baseline:
            baselines |= dict.fromkeys(group.configs, group.baseline)
    return baselines


def collect_group_speeds(analyses: Mapping[ModelGroup, SequentialAnalysis]) -> dict[str, LogSpeeds]:
    """Return the speeds of every workload of every model."""
    by_name = {}
    for group, analysis in analyses.items():
        for workload, speeds in analysis.speeds.items():
            by_name[f"{group.model} {workload}"] = speeds
    return by_name


def get_model_group(plan: Plan, config: Config) -> ModelGroup:
    """Return the model group of a config."""
    return next(group for group in list_model_groups(plan) if config in group.configs)


def _choose_baseline(plan: Plan, model_plan: Plan, chosen: Config) -> Config | None:
    """Return the baseline of a model: the study's, or the config that is most like it.

    For another model, this is the same recipe on the same engine, else the first config on that
    engine, else the first config.
    """
    recipes = {variant.name: variant.recipe for variant in plan.variants}

    def likeness(config: Config) -> tuple[bool, bool, bool]:
        same_engine = config.engine == chosen.engine
        same_recipe = recipes.get(config.variant) == recipes.get(chosen.variant)
        return config == chosen, same_engine and same_recipe, same_engine

    return max(model_plan.asked, key=likeness, default=None)


FEWEST_STARTS = 3  # two give an interval so wide that it decides nothing


def rank_configs(
    workload: str,
    samples: Mapping[Config, Sample],
    analysis: SequentialAnalysis,
    *,
    baseline: Config | None,
    confidence: float,
) -> Ranking:
    """Rank the configs of one workload. `samples` are of the primary metric."""
    reference = baseline if baseline in samples else None
    claims = analysis.claims.get(workload)
    higher_is_better = analysis.primary_metric.higher_is_better
    ratios: dict[Config, Estimate | None] = {}
    # Configs are sorted by the ratio that a report shows, so no two ratios contradict the order.
    figures: dict[Config, float] = {}
    for config, sample in samples.items():
        ratio = None
        if reference is not None and config != reference:
            ratio = analysis.ratio(workload, config, reference, confidence)
            ratio = ratio or estimate_unpaired_ratio(sample, samples[reference], confidence)
        ratios[config] = ratio
        figures[config] = sample.mean
        if ratio is not None and reference is not None:
            figures[config] = ratio.value * samples[reference].mean
    by_figure = sorted(samples, key=figures.__getitem__, reverse=higher_is_better)
    apart = claims.ordered if claims else frozenset()
    order = _sort_by_claims(by_figure, apart)
    ranked = [config for config in order if samples[config].n_instances > 1]
    starts_needed = None
    if len(ranked) < 2 and len(order) > 1:
        starts_needed = FEWEST_STARTS
        ranked = []
    entries = []
    for config in order:
        entries.append(
            RankingEntry(
                config=config,
                **_compute_ranks(config, ranked, apart),
                ratio_to_baseline=ratios[config],
                against_baseline=_find_baseline_claim(config, claims, reference),
            )
        )
    possible_bests = claims.possible_bests if claims else frozenset()
    return Ranking(
        workload=workload,
        metric=analysis.primary_metric.metric,
        baseline=reference,
        entries=tuple(entries),
        possible_bests=tuple(config for config in order if config in possible_bests),
        starts_needed=starts_needed,
    )


def _sort_by_claims(by_figure: Sequence[Config], apart: frozenset[Ordered]) -> list[Config]:
    """Return the best first, but no config before one that is claimed to be better.

    The two may have run in different blocks.
    """
    left = list(by_figure)
    order: list[Config] = []
    while left:
        best = next((config for config in left if not _is_beaten(config, left, apart)), left[0])
        order.append(best)
        left.remove(best)
    return order


def _is_beaten(config: Config, others: Sequence[Config], apart: frozenset[Ordered]) -> bool:
    return any((other, config) in apart for other in others)


def _compute_ranks(
    config: Config, ranked: Sequence[Config], apart: frozenset[Ordered]
) -> dict[str, Any]:
    """Return the fields of a RankingEntry that depend on the claims."""
    if config not in ranked:
        return {"rank_low": None, "rank_high": None, "undecided_with": ()}
    better = [other for other in ranked if (other, config) in apart]
    worse = [other for other in ranked if (config, other) in apart]
    rivals = [other for other in ranked if other not in (config, *better, *worse)]
    return {
        "rank_low": 1 + len(better),
        "rank_high": len(ranked) - len(worse),
        "undecided_with": tuple(rivals),
    }


def _find_baseline_claim(
    config: Config, claims: Claims | None, baseline: Config | None
) -> AgainstBaseline | None:
    """Return the claim about a config and the baseline. None for the baseline or without one."""
    if baseline is None or config == baseline:
        return None
    if claims is None:
        return AgainstBaseline.UNDECIDED
    return claims.against_baseline.get(config, AgainstBaseline.UNDECIDED)
