"""What the records of a study say of a config beside its figures: how it started, what it takes, what its engine
counted, which kernels it chose, and what a setting of its engine changes."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from shlex import join
from typing import TypeVar

import numpy as np

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import (
    ConfigSummary,
    EngineSummary,
    FailureGroup,
    MemorySummary,
)
from bitbench.records.folder import StudyRecords
from bitbench.records.roof import Attainable
from bitbench.records.trial import Failure, InstanceRecord, KernelPath, Memory, Outcome, TrialRecord
from bitbench.study.base import Record
from bitbench.study.model_cost import StepCost
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.secrets import without_secret_options
from bitbench.study.variant import NO_MODEL, Variant
from bitbench.study.workload import Workload


class Source(Record):
    """A file of the study folder, and which of its records; without ids: all of it."""

    file: str
    ids: tuple[str, ...] = ()


class PhaseSide(Record):
    """One config in one phase. `cost` is what its stored form asks for."""

    step: Estimate  # seconds
    cost: StepCost | None = None
    loaded_cost: StepCost | None = (
        None  # of weights that were expanded while they were loaded; else None
    )
    attainable: Attainable | None = None  # by `cost`; None where the machine's roof is not known

    @property
    def roof_share(self) -> float | None:
        return None if self.attainable is None else self.attainable.seconds / self.step.value


class Side(Record):
    """What a config is: how much it weighs, and which kernels its instances chose."""

    config: Config
    is_quantized: bool
    # As its recipe leaves it; of what is compressed at load: as loaded; of what computes in float32: in that type.
    stored_bytes: int | None
    loaded_bytes: int | None  # as the engine says; None where it does not
    kernels: tuple[str, ...]
    path: KernelPath | None  # of most of its layers
    is_expanded: bool  # it was loaded as dense weights
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()  # of the engine, about its own speed
    kv_bytes_per_token: int | None = None  # as the engine says; None where it does not
    engine: EngineSummary | None = None  # what it counted at this workload
    trials: Source
    instances: Source


# Weights that an engine holds in so much more than they are stored in were expanded: 8 bits to 16 is 1.65 times even
# with an embedding that stays as it is; rounding up to blocks and scales kept apart is a few per cent.
EXPANDED = 1.25
FLOAT32_BYTES = 4
TRIALS = "trials.jsonl"
T = TypeVar("T")
_NUMBER = re.compile(r"\d[\d.,]*")


def summarize_config(
    config: Config,
    variant: Variant | None,
    instances: Sequence[InstanceRecord],
    trials: Sequence[TrialRecord],
) -> ConfigSummary:
    """From all instances and trials of a study, what those of this config say."""
    own = [record for record in instances if record.config == config]
    ready = [record for record in own if record.outcome is Outcome.OK]
    facts = [record.facts for record in own]
    return ConfigSummary(
        config=config,
        instances=len(own),
        instances_ready=len(ready),
        ready_s=_spread_over_starts(record.ready_s for record in ready),
        weight_load_s=_spread_over_starts(record.facts.weight_load_s for record in ready),
        compile_s=_spread_over_starts(record.facts.compile_s for record in ready),
        idle_memory_bytes=_spread_over_starts(record.memory.resident_bytes for record in ready),
        memory=_summarize_memory(config, variant, ready, trials),
        engine_versions=_distinct(
            known.engine_version for known in facts if known.engine_version is not None
        ),
        kernels=_distinct(kernel for known in facts for kernel in known.kernels),
        kernel_choices=_distinct(known.kernel_choices for known in facts if known.kernel_choices),
        commands=_distinct(
            join(without_secret_options(known.command)) for known in facts if known.command
        ),
        prefix_caching=_distinct(
            known.prefix_caching for known in facts if known.prefix_caching is not None
        ),
        notes=_distinct(note for known in facts for note in known.notes),
        is_reference=variant is not None and (variant.is_dense or variant.model == NO_MODEL),
        random_weights=variant is not None and variant.facts.random_weights,
    )


def summarize_failures(trials: Iterable[TrialRecord]) -> tuple[FailureGroup, ...]:
    """The failures of one point, by cause. An instance that never was ready is a failed trial of each of its points."""
    groups: dict[tuple[Outcome, str], tuple[Failure, list[str]]] = {}
    for trial in trials:
        if trial.outcome is Outcome.OK:
            continue
        cause = trial.cause or "no cause was recorded"
        failure = Failure(outcome=trial.outcome, cause=cause, log_lines=trial.log_lines)
        groups.setdefault((trial.outcome, _NUMBER.sub("#", cause)), (failure, []))[1].append(
            trial.id
        )
    return tuple(FailureGroup(failure=failure, ids=tuple(ids)) for failure, ids in groups.values())


def _distinct(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _summarize_memory(
    config: Config,
    variant: Variant | None,
    instances: Sequence[InstanceRecord],
    trials: Iterable[TrialRecord],
) -> MemorySummary:
    """`instances`: those of this config that came up. Memory counts where a trial was measured and is ok."""
    facts = [record.facts for record in instances]
    by_instance: dict[str, list[Memory]] = {}
    for trial in trials:
        if (
            trial.point.config == config
            and trial.kind == "measured"
            and trial.outcome is Outcome.OK
        ):
            by_instance.setdefault(trial.instance_id, []).append(trial.memory)
    return MemorySummary(
        weight_bytes_stored=variant.weight_bytes if variant else None,
        weight_bytes_loaded=_spread_over_starts(known.weight_bytes_loaded for known in facts),
        steady_bytes=_per_instance(by_instance, lambda memory: memory.resident_bytes, np.mean),
        peak_bytes=_per_instance(by_instance, lambda memory: memory.peak_bytes, max),
        device_steady_bytes=_per_instance(by_instance, lambda memory: memory.device_bytes, np.mean),
        device_peak_bytes=_per_instance(by_instance, lambda memory: memory.device_peak_bytes, max),
        kv_cache_bytes=_spread_over_starts(known.kv_cache_bytes for known in facts),
        kv_bytes_per_token=_spread_over_starts(known.kv_bytes_per_token for known in facts),
        kv_cache_tokens=_spread_over_starts(known.kv_cache_tokens for known in facts),
    )


def _spread_over_starts(values: Iterable[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return (
        Estimate(value=float(np.mean(known)), low=min(known), high=max(known), kind="extremes")
        if known
        else None
    )


def _per_instance(
    by_instance: Mapping[str, Sequence[Memory]],
    figure: Callable[[Memory], int | None],
    combine: Callable[[list[int]], float],
) -> Estimate | None:
    known = (
        [value for memory in memories if (value := figure(memory)) is not None]
        for memories in by_instance.values()
    )
    return _spread_over_starts(combine(values) for values in known if values)


def summarize_engine(trials: Sequence[TrialRecord]) -> EngineSummary | None:
    """Of trials that count; None where the engine offers no figures."""
    known = [trial.engine_metrics for trial in trials if trial.engine_metrics is not None]
    if not known:
        return None

    def values(figure: str) -> list[float]:
        return [value for metrics in known if (value := getattr(metrics, figure)) is not None]

    def total(figure: str) -> float | None:
        return sum(values(figure)) if values(figure) else None

    drafts, proposed, accepted = total("drafts"), total("draft_tokens"), total("accepted_tokens")
    return EngineSummary(
        trials=len(known),
        queue_s=float(np.mean(values("queue_s"))) if values("queue_s") else None,
        waiting=max(values("waiting"), default=None),
        preemptions=total("preemptions"),
        cached_tokens=total("cached_tokens"),
        kv_use=max(values("kv_use"), default=None),
        acceptance_length=1 + accepted / drafts if drafts and accepted is not None else None,
        acceptance_rate=accepted / proposed if proposed and accepted is not None else None,
    )


def config_side(of: StudyRecords, config: Config, workload: Workload) -> Side:
    point = Point(config=config, workload=workload.name)
    trials = of.counted(point)
    used = {trial.instance_id for trial in trials}
    instances = [instance for instance in of.instances if instance.id in used]
    variant = config_variant(of.plan, config)
    facts = [instance.facts for instance in instances]
    loaded = next((known.weight_bytes_loaded for known in facts if known.weight_bytes_loaded), None)
    stored = loaded if variant and variant.at_load else variant.weight_bytes if variant else None
    if (
        variant
        and variant.is_dense
        and _dtype(of.plan, config) == "float32"
        and variant.facts.parameters
    ):
        stored = FLOAT32_BYTES * variant.facts.parameters
    path = _path(instances)
    is_expanded = path is KernelPath.DEQUANTIZED and loaded is not None and stored is not None
    return Side(
        config=config,
        is_quantized=bool(variant and variant.form is not None and not variant.is_dense),
        stored_bytes=stored,
        loaded_bytes=loaded,
        kernels=_distinct(kernel for known in facts for kernel in known.kernels),
        path=path,
        is_expanded=is_expanded and (loaded or 0) > EXPANDED * (stored or 0),
        notes=_distinct(note for known in facts for note in known.notes),
        warnings=_distinct(warning for known in facts for warning in known.warnings),
        kv_bytes_per_token=next(filter(None, (known.kv_bytes_per_token for known in facts)), None),
        engine=summarize_engine(trials),
        trials=Source(file=TRIALS, ids=tuple(trial.id for trial in trials)),
        instances=Source(file="instances.jsonl", ids=tuple(instance.id for instance in instances)),
    )


def _dtype(plan: Plan, config: Config) -> str | None:
    """What it computes in, as the study or the plan says; None: the engine's default."""
    named = plan.study.engine(config.engine).args.get("dtype")
    return str(named) if named is not None else plan.chosen_dtypes.get(config)


def config_variant(plan: Plan, config: Config) -> Variant | None:
    return next((variant for variant in plan.variants if variant.name == config.variant), None)


def _path(instances: Sequence[InstanceRecord]) -> KernelPath | None:
    """Of most quantized layers; None where the engine does not say."""
    counts: Counter[KernelPath] = Counter()
    for instance in instances:
        for choice in instance.facts.kernel_choices:
            if choice.path is not None:
                counts[choice.path] += choice.layers or 1
    if len(counts) > 1:
        del counts[KernelPath.DENSE]  # an output head that stays as it is
    return counts.most_common(1)[0][0] if counts else None


def configs_with_other_settings(plan: Plan) -> list[Config]:
    """The same under two names is no other setting."""
    setups = {setup.name: setup for setup in plan.study.engines}
    known = [config for config in plan.configs if config.engine in setups]
    settings: dict[tuple[str, str], set[str]] = {}
    for config in known:
        chosen = setups[config.engine].model_dump_json(exclude={"name"})
        settings.setdefault((config.variant, setups[config.engine].engine), set()).add(chosen)
    return [
        config
        for config in known
        if len(settings[config.variant, setups[config.engine].engine]) > 1
    ]
