"""What instances say about a config: how it started, what it is; and what went wrong in its points."""

import re
from collections.abc import Iterable, Sequence
from shlex import join
from typing import TypeVar

from bitbench.analysis.memory import spread, summarize_memory
from bitbench.analysis.results.summary import ConfigSummary, FailureGroup
from bitbench.records.trial import Failure, InstanceRecord, Outcome, TrialRecord
from bitbench.study.plan import Config
from bitbench.study.secrets import without_secret_options
from bitbench.study.variant import NO_MODEL, Variant

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
    ready = [record for record in own if record.ready_s is not None]
    facts = [record.facts for record in own]
    spawned = [record for record in ready if record.facts.start == "spawned"]
    forked = {record.id for record in own if record.facts.start == "preforked"}  # these share memory with their parent

    return ConfigSummary(
        config=config,
        instances=len(own),
        instances_ready=len(ready),
        ready_s=spread(record.ready_s for record in spawned),
        weight_load_s=spread(record.facts.weight_load_s for record in spawned),
        compile_s=spread(record.facts.compile_s for record in ready),
        idle_memory_bytes=spread(record.memory.resident_bytes for record in spawned),
        memory=summarize_memory(config, variant, ready, [trial for trial in trials if trial.instance_id not in forked]),
        engine_versions=_distinct(one.engine_version for one in facts if one.engine_version is not None),
        kernels=_distinct(kernel for one in facts for kernel in one.kernels),
        kernel_choices=_distinct(one.kernel_choices for one in facts if one.kernel_choices),
        commands=_distinct(join(without_secret_options(one.command)) for one in facts if one.command),
        prefix_caching=_distinct(one.prefix_caching for one in facts if one.prefix_caching is not None),
        notes=_distinct(note for one in facts for note in one.notes),
        is_reference=variant is not None and (variant.is_dense or variant.model == NO_MODEL),
        random_weights=variant is not None and variant.facts.random_weights,
    )


def failures_of(trials: Iterable[TrialRecord]) -> tuple[FailureGroup, ...]:
    """The failures of one point, by cause. An instance that never was ready is a failed trial of each of its points."""
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
