"""What an engine counted about itself, over the trials of a point."""

from collections.abc import Callable, Sequence

import numpy as np

from bitbench.analysis.results.summary import EngineSummary
from bitbench.records.trial import EngineMetrics, TrialRecord


def summarize_engine(trials: Sequence[TrialRecord]) -> EngineSummary | None:
    """Of trials that count; None where the engine offers no figures."""
    known = [trial.engine_metrics for trial in trials if trial.engine_metrics is not None]
    if not known:
        return None

    def total(figure: Callable[[EngineMetrics], float | None]) -> float | None:
        values = [value for one in known if (value := figure(one)) is not None]
        return sum(values) if values else None

    queues = [one.queue_s for one in known if one.queue_s is not None]
    drafts, accepted = total(lambda one: one.drafts), total(lambda one: one.accepted_tokens)
    proposed = total(lambda one: one.draft_tokens)
    return EngineSummary(
        trials=len(known),
        queue_s=float(np.mean(queues)) if queues else None,
        waiting=max((one.waiting for one in known if one.waiting is not None), default=None),
        preemptions=total(lambda one: one.preemptions),
        cached_tokens=total(lambda one: one.cached_tokens),
        kv_use=max((one.kv_use for one in known if one.kv_use is not None), default=None),
        acceptance_length=1 + accepted / drafts if drafts and accepted is not None else None,
        acceptance_rate=accepted / proposed if proposed and accepted is not None else None,
    )
