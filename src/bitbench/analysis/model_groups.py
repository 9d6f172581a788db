"""Who is compared with whom: the configs of one model. A small model is faster than a large one, and no finding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bitbench.analysis.log_speeds import LogSpeeds
from bitbench.analysis.sequential import SequentialAnalysis, baseline_of, primary_metric_of, standing
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
        return _configs(self.plan)

    def standing(
        self, trials: Sequence[TrialRecord], others: Sequence[InstanceRecord | QualityRecord] = ()
    ) -> SequentialAnalysis:
        """`trials`, `others`: all of the study, since its time is what all of them took."""
        return standing(self.plan, trials, others, primary_metric_of(self.plan), self.baseline)


def fields_of(plan: Plan) -> tuple[ModelGroup, ...]:
    """In the order of the study."""
    chosen = baseline_of(plan)
    fields = []
    for model in plan.models:
        own = plan.of_model(model)
        fields.append(ModelGroup(model, own, _baseline(plan, own, chosen) if chosen else None))
    return tuple(fields)


def log_speeds_of(found: Mapping[ModelGroup, SequentialAnalysis]) -> dict[str, LogSpeeds]:
    """Of every workload of every model."""
    return {
        f"{field.model} {workload}": speeds
        for field, standing_ in found.items()
        for workload, speeds in standing_.speeds.items()
    }


def field_of(plan: Plan, config: Config) -> ModelGroup:
    return next(field for field in fields_of(plan) if config in field.configs)


def _baseline(plan: Plan, own: Plan, chosen: Config) -> Config | None:
    """The study's; for another model the same recipe on the same engine, else the first on that engine, else the
    first."""
    recipes = {variant.name: variant.recipe for variant in plan.variants}

    def likeness(config: Config) -> tuple[bool, bool, bool]:
        same_engine = config.engine == chosen.engine
        same_recipe = recipes.get(config.variant) == recipes.get(chosen.variant)
        return config == chosen, same_engine and same_recipe, same_engine

    return max(_configs(own), key=likeness, default=None)


def _configs(plan: Plan) -> tuple[Config, ...]:
    refused = (refusal.point.config for refusal in plan.refusals)
    return tuple(dict.fromkeys([*plan.configs, *refused]))
