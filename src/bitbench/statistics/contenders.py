"""What instances say about a contender: how it started, what it is; and what went wrong in its cells."""

import re
from collections.abc import Callable, Iterable, Sequence
from shlex import join
from typing import TypeVar

import numpy as np

from bitbench.core.cell import Contender
from bitbench.core.summary import ContenderSummary, FailureGroup, Spread
from bitbench.core.trial import Failure, InstanceRecord, Outcome, TrialRecord

T = TypeVar("T")
_NUMBER = re.compile(r"\d[\d.,]*")


def summarize_contender(contender: Contender, instances: Sequence[InstanceRecord]) -> ContenderSummary:
    """From all instances of a study, what those of this contender say."""
    own = [record for record in instances if record.contender == contender]
    ready = [record for record in own if record.ready_s is not None]
    facts = [record.facts for record in own]

    def spread(figure: Callable[[InstanceRecord], float | None]) -> Spread | None:
        known = [value for record in ready if (value := figure(record)) is not None]
        return Spread(mean=float(np.mean(known)), low=min(known), high=max(known)) if known else None

    return ContenderSummary(
        contender=contender,
        instances=len(own),
        instances_ready=len(ready),
        ready_s=spread(lambda record: record.ready_s),
        weight_load_s=spread(lambda record: record.facts.weight_load_s),
        compile_s=spread(lambda record: record.facts.compile_s),
        idle_memory_bytes=spread(lambda record: record.memory.resident_bytes),
        kv_cache_bytes=spread(lambda record: record.facts.kv_cache_bytes),
        engine_versions=_distinct(one.engine_version for one in facts if one.engine_version is not None),
        kernels=_distinct(kernel for one in facts for kernel in one.kernels),
        commands=_distinct(join(one.command) for one in facts if one.command),
        prefix_caching=_distinct(one.prefix_caching for one in facts if one.prefix_caching is not None),
        notes=_distinct(note for one in facts for note in one.notes),
    )


def failures_of(trials: Iterable[TrialRecord]) -> tuple[FailureGroup, ...]:
    """The failures of one cell, by cause. An instance that never was ready is a failed trial of each of its cells."""
    groups: dict[tuple[Outcome, str], tuple[Failure, list[str]]] = {}
    for trial in trials:
        if trial.outcome is Outcome.OK:
            continue
        cause = trial.cause or "no cause was recorded"
        failure = Failure(outcome=trial.outcome, cause=cause, log_lines=trial.log_lines)
        groups.setdefault((trial.outcome, _NUMBER.sub("#", cause)), (failure, []))[1].append(trial.id)
    return tuple(FailureGroup(failure=failure, ids=tuple(ids)) for failure, ids in groups.values())


def _distinct(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))
