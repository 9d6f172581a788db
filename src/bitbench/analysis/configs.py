"""The properties of a config in the records of a study, other than its metrics.

These are its starts, its memory, its engine's counters and the kernels it chose, and which configs
differ in a setting of their engine.
"""

import re
from collections import Counter, defaultdict
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
from bitbench.study.secrets import hide_secret_options
from bitbench.study.variant import NO_MODEL, Variant
from bitbench.study.workload import Workload


class Source(Record):
    """A file of the study folder and the ids of its records. Without ids, it means all of them."""

    file: str
    ids: tuple[str, ...] = ()


class PhaseSide(Record):
    """One config in one phase. `cost` is what its stored form needs."""

    step: Estimate  # seconds
    cost: StepCost | None = None
    loaded_cost: StepCost | None = None  # of weights that were expanded during loading, else None
    attainable: Attainable | None = None  # by `cost`; None if the machine's roofline is unknown

    @property
    def roof_share(self) -> float | None:
        return None if self.attainable is None else self.attainable.seconds / self.step.value


class Side(Record):
    """The properties of a config: the size of its weights, and the kernels its instances chose."""

    config: Config
    is_quantized: bool
    # The size that the recipe produced. For weights compressed at load: the loaded size.
    # For a model that computes in float32: the size in float32.
    stored_bytes: int | None
    loaded_bytes: int | None  # as the engine reports it, else None
    kernels: tuple[str, ...]
    path: KernelPath | None  # of most of its layers
    is_expanded: bool  # it was loaded as dense weights
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()  # of the engine, about its own speed
    kv_bytes_per_token: int | None = None  # as the engine reports it, else None
    engine: EngineSummary | None = None  # what it counted at this workload
    trials: Source
    instances: Source


# Weights that take this much more memory than their stored size were expanded. From 8 to 16 bits
# the factor is 1.65, even if the embedding stays unchanged. Rounding up to blocks, and scales that
# are stored separately, add only a few percent.
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
    """Summarize one config from all instances and trials of a study."""
    started = [record for record in instances if record.config == config]
    ready = [record for record in started if record.outcome is Outcome.OK]
    kernels: list[str] = []
    kernel_choices = []
    commands = []
    notes: list[str] = []
    for record in started:
        facts = record.facts
        kernels += facts.kernels
        notes += facts.notes
        if facts.kernel_choices:
            kernel_choices.append(facts.kernel_choices)
        if facts.command:
            commands.append(join(hide_secret_options(facts.command)))
    return ConfigSummary(
        config=config,
        instances=len(started),
        instances_ready=len(ready),
        ready_s=_estimate_start_spread(ready, lambda record: record.ready_s),
        weight_load_s=_estimate_start_spread(ready, lambda record: record.facts.weight_load_s),
        compile_s=_estimate_start_spread(ready, lambda record: record.facts.compile_s),
        idle_memory_bytes=_estimate_start_spread(
            ready, lambda record: record.memory.resident_bytes
        ),
        memory=_summarize_memory(config, variant, ready, trials),
        engine_versions=_list_distinct(record.facts.engine_version for record in started),
        kernels=_list_distinct(kernels),
        kernel_choices=_list_distinct(kernel_choices),
        commands=_list_distinct(commands),
        prefix_caching=_list_distinct(record.facts.prefix_caching for record in started),
        notes=_list_distinct(notes),
        is_reference=variant is not None and (variant.is_dense or variant.model == NO_MODEL),
        random_weights=variant is not None and variant.facts.random_weights,
    )


def summarize_failures(trials: Iterable[TrialRecord]) -> tuple[FailureGroup, ...]:
    """Return the failures of one point, grouped by cause.

    An instance that was never ready is a failed trial of each of its points.
    """
    groups: dict[tuple[Outcome, str], tuple[Failure, list[str]]] = {}
    for trial in trials:
        if trial.outcome is Outcome.OK:
            continue
        cause = trial.cause or "no cause was recorded"
        failure = Failure(outcome=trial.outcome, cause=cause, log_lines=trial.log_lines)
        key = (trial.outcome, _NUMBER.sub("#", cause))
        _, ids = groups.setdefault(key, (failure, []))
        ids.append(trial.id)
    return tuple(FailureGroup(failure=failure, ids=tuple(ids)) for failure, ids in groups.values())


def _list_distinct(values: Iterable[T | None]) -> tuple[T, ...]:
    """Return the distinct values in their order, without None."""
    return tuple(dict.fromkeys(value for value in values if value is not None))


def _summarize_memory(
    config: Config,
    variant: Variant | None,
    ready: Sequence[InstanceRecord],
    trials: Iterable[TrialRecord],
) -> MemorySummary:
    """Summarize the memory of a config from its ready instances and its measured OK trials."""
    by_instance: dict[str, list[Memory]] = defaultdict(list)
    for trial in trials:
        is_measured = trial.kind == "measured" and trial.outcome is Outcome.OK
        if is_measured and trial.point.config == config:
            by_instance[trial.instance_id].append(trial.memory)
    weight_bytes = variant.weight_bytes if variant else None
    return MemorySummary(
        weight_bytes_stored=weight_bytes,
        weight_bytes_loaded=_estimate_start_spread(
            ready, lambda record: record.facts.weight_bytes_loaded
        ),
        steady_bytes=_estimate_instance_spread(
            by_instance, lambda memory: memory.resident_bytes, np.mean
        ),
        peak_bytes=_estimate_instance_spread(by_instance, lambda memory: memory.peak_bytes, max),
        device_steady_bytes=_estimate_instance_spread(
            by_instance, lambda memory: memory.device_bytes, np.mean
        ),
        device_peak_bytes=_estimate_instance_spread(
            by_instance, lambda memory: memory.device_peak_bytes, max
        ),
        kv_cache_bytes=_estimate_start_spread(ready, lambda record: record.facts.kv_cache_bytes),
        kv_bytes_per_token=_estimate_start_spread(
            ready, lambda record: record.facts.kv_bytes_per_token
        ),
        kv_cache_tokens=_estimate_start_spread(ready, lambda record: record.facts.kv_cache_tokens),
    )


def _estimate_start_spread(
    instances: Iterable[InstanceRecord], read: Callable[[InstanceRecord], float | None]
) -> Estimate | None:
    return _estimate_spread(map(read, instances))


def _estimate_spread(values: Iterable[float | None]) -> Estimate | None:
    """Return the mean and the extremes of the values, or None if all of them are None."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return Estimate(
        value=float(np.mean(numbers)), low=min(numbers), high=max(numbers), kind="extremes"
    )


def _estimate_instance_spread(
    by_instance: Mapping[str, Sequence[Memory]],
    read: Callable[[Memory], int | None],
    combine: Callable[[list[int]], float],
) -> Estimate | None:
    """Return the spread over instances of their combined values."""
    combined = []
    for memories in by_instance.values():
        values = [value for value in map(read, memories) if value is not None]
        if values:
            combined.append(combine(values))
    return _estimate_spread(combined)


def summarize_engine(trials: Sequence[TrialRecord]) -> EngineSummary | None:
    """Summarize the engine's own metrics over trials that count. None if it has no such metrics."""
    records = [trial.engine_metrics for trial in trials if trial.engine_metrics is not None]
    if not records:
        return None

    def collect(name: str) -> list[float]:
        values = [getattr(record, name) for record in records]
        return [value for value in values if value is not None]

    def total(name: str) -> float | None:
        values = collect(name)
        return sum(values) if values else None

    queue_times = collect("queue_s")
    queue_s = float(np.mean(queue_times)) if queue_times else None
    drafts = total("drafts")
    proposed = total("draft_tokens")
    accepted = total("accepted_tokens")
    acceptance_length = None
    if drafts and accepted is not None:
        acceptance_length = 1 + accepted / drafts
    acceptance_rate = None
    if proposed and accepted is not None:
        acceptance_rate = accepted / proposed
    return EngineSummary(
        trials=len(records),
        queue_s=queue_s,
        waiting=max(collect("waiting"), default=None),
        preemptions=total("preemptions"),
        cached_tokens=total("cached_tokens"),
        kv_use=max(collect("kv_use"), default=None),
        acceptance_length=acceptance_length,
        acceptance_rate=acceptance_rate,
    )


def summarize_config_side(records: StudyRecords, config: Config, workload: Workload) -> Side:
    """Return the properties of a config from the trials of one workload that count."""
    trials = records.counted(Point(config=config, workload=workload.name))
    used = {trial.instance_id for trial in trials}
    instances = [instance for instance in records.instances if instance.id in used]
    kernels: list[str] = []
    notes: list[str] = []
    warnings: list[str] = []
    loaded: int | None = None
    kv_bytes_per_token: int | None = None
    for instance in instances:
        facts = instance.facts
        kernels += facts.kernels
        notes += facts.notes
        warnings += facts.warnings
        loaded = loaded or facts.weight_bytes_loaded or None
        kv_bytes_per_token = kv_bytes_per_token or facts.kv_bytes_per_token or None
    variant = find_config_variant(records.plan, config)
    stored = _find_stored_bytes(records.plan, config, variant, loaded)
    path = _find_kernel_path(instances)
    is_expanded = False
    if path is KernelPath.DEQUANTIZED and loaded is not None and stored is not None:
        is_expanded = loaded > EXPANDED * stored
    return Side(
        config=config,
        is_quantized=bool(variant and variant.form is not None and not variant.is_dense),
        stored_bytes=stored,
        loaded_bytes=loaded,
        kernels=_list_distinct(kernels),
        path=path,
        is_expanded=is_expanded,
        notes=_list_distinct(notes),
        warnings=_list_distinct(warnings),
        kv_bytes_per_token=kv_bytes_per_token,
        engine=summarize_engine(trials),
        trials=Source(file=TRIALS, ids=tuple(trial.id for trial in trials)),
        instances=Source(file="instances.jsonl", ids=tuple(instance.id for instance in instances)),
    )


def _find_stored_bytes(
    plan: Plan, config: Config, variant: Variant | None, loaded: int | None
) -> int | None:
    if variant is None:
        return None
    if variant.is_dense and variant.facts.parameters and _find_dtype(plan, config) == "float32":
        return FLOAT32_BYTES * variant.facts.parameters
    return loaded if variant.at_load else variant.weight_bytes


def _find_dtype(plan: Plan, config: Config) -> str | None:
    """Return the type that a config computes in, or None for the engine's default."""
    dtype = plan.study.engine(config.engine).args.get("dtype")
    return str(dtype) if dtype is not None else plan.chosen_dtypes.get(config)


def find_config_variant(plan: Plan, config: Config) -> Variant | None:
    """Return the variant of a config, or None if the plan does not have it."""
    return next((variant for variant in plan.variants if variant.name == config.variant), None)


def _find_kernel_path(instances: Sequence[InstanceRecord]) -> KernelPath | None:
    """Return the kernel path of most quantized layers, or None if the engine does not report it."""
    counts: Counter[KernelPath] = Counter()
    for instance in instances:
        for choice in instance.facts.kernel_choices:
            if choice.path is not None:
                counts[choice.path] += choice.layers or 1
    if len(counts) > 1:
        del counts[KernelPath.DENSE]  # an output head that stays unquantized
    return counts.most_common(1)[0][0] if counts else None


def list_configs_with_other_settings(plan: Plan) -> list[Config]:
    """Return the configs that a study runs with several settings of the same engine.

    The same setting under two names counts once.
    """
    setups = {setup.name: setup for setup in plan.study.engines}
    configs = [config for config in plan.configs if config.engine in setups]
    settings: dict[tuple[str, str], set[str]] = defaultdict(set)
    for config in configs:
        setup = setups[config.engine]
        settings[config.variant, setup.engine].add(setup.model_dump_json(exclude={"name"}))
    return [
        config
        for config in configs
        if len(settings[config.variant, setups[config.engine].engine]) > 1
    ]
