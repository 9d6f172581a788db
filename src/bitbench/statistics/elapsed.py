"""How long a study has been measured, from its records alone: what lay between two runs of it does not count."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from bitbench.core.recorded.trial import InstanceRecord, TrialRecord

# Between two records of one run: an engine that ends, a probe, a report. More than this is a study that was taken up
# again later.
LONGEST_PAUSE_S = 60.0


class _Span(NamedTuple):
    began_s: float
    ended_s: float
    block: int


def block_ends(trials: Sequence[TrialRecord], instances: Sequence[InstanceRecord]) -> dict[int, float]:
    """Seconds since the first start at which each block had ended so far; empty where the records have no times."""
    elapsed_s, reached_s = 0.0, None
    ends: dict[int, float] = {}
    for span in sorted(_spans(trials, instances)):
        if reached_s is not None and span.began_s > reached_s:
            pause_s = span.began_s - reached_s
            elapsed_s += pause_s if pause_s <= LONGEST_PAUSE_S else 0.0
        began_s = span.began_s if reached_s is None else max(span.began_s, reached_s)
        elapsed_s += max(0.0, span.ended_s - began_s)
        reached_s = span.ended_s if reached_s is None else max(reached_s, span.ended_s)
        ends[span.block] = elapsed_s
    return ends


def _spans(trials: Iterable[TrialRecord], instances: Iterable[InstanceRecord]) -> Iterator[_Span]:
    for trial in trials:
        yield from _span(trial.started_at, trial.duration_s, trial.block)
    for instance in instances:
        yield from _span(instance.started_at, instance.ready_s, instance.block)


def _span(started_at: str | None, took_s: float | None, block: int) -> Iterator[_Span]:
    if started_at is not None:
        began_s = datetime.fromisoformat(started_at).timestamp()
        yield _Span(began_s, began_s + (took_s or 0.0), block)
