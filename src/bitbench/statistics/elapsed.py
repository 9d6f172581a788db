"""How long a study has been measured, from its records alone: what lay between two runs of it does not count."""

from collections.abc import Iterable
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


def block_ends(trials: Iterable[TrialRecord], instances: Iterable[InstanceRecord]) -> dict[int, float]:
    """Seconds since the first start at which each block had ended so far; empty where the records have no times."""
    elapsed = Elapsed()
    for trial in trials:
        elapsed.add(trial)
    for instance in instances:
        elapsed.add(instance)
    return elapsed.block_ends()


class Elapsed:
    """The same, record by record: what comes in the order of time is added to what is known."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._seen = 0  # spans that the rest is about
        self._elapsed_s = 0.0
        self._reached_s: float | None = None
        self._ends: dict[int, float] = {}

    def add(self, record: TrialRecord | InstanceRecord) -> None:
        took_s = record.duration_s if isinstance(record, TrialRecord) else record.ready_s
        if record.started_at is None:
            return
        began_s = datetime.fromisoformat(record.started_at).timestamp()
        span = _Span(began_s, began_s + (took_s or 0.0), record.block)
        if self._spans and span < self._spans[-1]:
            self._forget()  # it belongs between others
        self._spans.append(span)

    def block_ends(self) -> dict[int, float]:
        if self._seen == 0:
            self._spans.sort()
        for span in self._spans[self._seen :]:
            self._continue_with(span)
        self._seen = len(self._spans)
        return dict(self._ends)

    def _forget(self) -> None:
        self._seen, self._elapsed_s, self._reached_s = 0, 0.0, None
        self._ends.clear()

    def _continue_with(self, span: _Span) -> None:
        reached_s = span.began_s if self._reached_s is None else self._reached_s
        pause_s = max(0.0, span.began_s - reached_s)
        self._elapsed_s += pause_s if pause_s <= LONGEST_PAUSE_S else 0.0
        self._elapsed_s += max(0.0, span.ended_s - max(span.began_s, reached_s))
        self._reached_s = max(reached_s, span.ended_s)
        self._ends[span.block] = self._elapsed_s
