"""What a config takes: weights, memory of its processes, KV cache. One figure per instance that came up."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bitbench.analysis.results.summary import MemorySummary, Spread
from bitbench.records.trial import InstanceRecord, Memory, Outcome, TrialRecord
from bitbench.study.plan import Config
from bitbench.study.variant import Variant


def summarize_memory(
    config: Config,
    variant: Variant | None,
    instances: Sequence[InstanceRecord],
    trials: Iterable[TrialRecord],
) -> MemorySummary:
    """`instances`: those of this config that came up. Memory counts where a trial was measured and is ok."""
    facts = [record.facts for record in instances]
    by_instance: dict[str, list[Memory]] = {}
    for trial in trials:
        if trial.point.config == config and trial.kind == "measured" and trial.outcome is Outcome.OK:
            by_instance.setdefault(trial.instance_id, []).append(trial.memory)
    return MemorySummary(
        weight_bytes_stored=variant.weight_bytes if variant else None,
        weight_bytes_loaded=spread(one.weight_bytes_loaded for one in facts),
        steady_bytes=_per_instance(by_instance, lambda one: one.resident_bytes, np.mean),
        peak_bytes=_per_instance(by_instance, lambda one: one.peak_bytes, max),
        device_steady_bytes=_per_instance(by_instance, lambda one: one.device_bytes, np.mean),
        device_peak_bytes=_per_instance(by_instance, lambda one: one.device_peak_bytes, max),
        kv_cache_bytes=spread(one.kv_cache_bytes for one in facts),
        kv_bytes_per_token=spread(one.kv_bytes_per_token for one in facts),
        kv_cache_tokens=spread(one.kv_cache_tokens for one in facts),
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(mean=float(np.mean(known)), low=min(known), high=max(known)) if known else None


def _per_instance(
    by_instance: Mapping[str, Sequence[Memory]],
    figure: Callable[[Memory], int | None],
    combine: Callable[[list[int]], float],
) -> Spread | None:
    known = (
        [value for memory in memories if (value := figure(memory)) is not None] for memories in by_instance.values()
    )
    return spread(combine(values) for values in known if values)
