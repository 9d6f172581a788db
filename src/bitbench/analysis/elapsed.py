"""How long a study has been measured, from its records alone: what lay between two runs of it does not count.

Nor does quality, which is beside a budget, nor what a later run measures again of a block that others followed: looks
at these were taken at their time.
"""

from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, TrialRecord

# Between two records of one run: an engine that ends, a report. More than this is a study that was taken up
# again later.
LONGEST_PAUSE_S = 60.0


class _Span(NamedTuple):
    began_s: float
    ended_s: float
    block: int | None  # None: quality
    is_trial: bool  # or a start, which may also be for quality alone, after all blocks

    @property
    def follows_a_start(self) -> bool:
        """A trial that never ran: its engine did not come up, and what lies before it is that start."""
        return self.is_trial and self.ended_s == self.began_s


def ended_s(record: TrialRecord | InstanceRecord | QualityRecord) -> float:
    """By the wall clock; 0 where it has no time."""
    if record.started_at is None:
        return 0.0
    took_s = record.ready_s if isinstance(record, InstanceRecord) else record.duration_s
    return datetime.fromisoformat(record.started_at).timestamp() + (took_s or 0.0)


def block_ends(trials: Iterable[TrialRecord], others: Iterable[InstanceRecord | QualityRecord]) -> dict[int, float]:
    """Seconds since the first start at which each block had ended so far; empty where the records have no times."""
    elapsed = Elapsed()
    for record in chain(trials, others):
        elapsed.add(record)
    return elapsed.block_ends()


class Elapsed:
    """The same, record by record: what comes in the order of time is added to what is known."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._forget()

    def _forget(self) -> None:
        self._seen = 0  # spans that the rest is about
        self._elapsed_s = 0.0
        self._reached_s: float | None = None
        self._newest_block = 0
        self._ends: dict[int, float] = {}

    def add(self, record: TrialRecord | InstanceRecord | QualityRecord) -> None:
        if record.started_at is None:
            return
        span = _Span(
            began_s=datetime.fromisoformat(record.started_at).timestamp(),
            ended_s=ended_s(record),
            block=None if isinstance(record, QualityRecord) else record.block,
            is_trial=isinstance(record, TrialRecord),
        )
        if self._spans and span[:2] < self._spans[-1][:2]:
            self._forget()  # it belongs between others
        self._spans.append(span)

    def until(self, moment_s: float) -> "Elapsed":
        """As it was at that time of the wall clock."""
        then = Elapsed()
        then._spans = [span for span in self._spans if span.ended_s <= moment_s]
        return then

    def block_ends(self) -> dict[int, float]:
        self._catch_up()
        return dict(self._ends)

    def _catch_up(self) -> None:
        if self._seen == 0:
            self._spans.sort(key=lambda span: span[:2])
        for span in self._spans[self._seen :]:
            self._continue_with(span)
        self._seen = len(self._spans)

    def _continue_with(self, span: _Span) -> None:
        reached_s = span.began_s if self._reached_s is None else self._reached_s
        self._reached_s = max(reached_s, span.ended_s)
        if span.block is None or span.block < self._newest_block:  # the latter: taken up again by a later call
            return
        self._newest_block = span.block
        pause_s = max(0.0, span.began_s - reached_s)
        taken_s = pause_s if pause_s <= LONGEST_PAUSE_S or span.follows_a_start else 0.0
        taken_s += max(0.0, span.ended_s - max(span.began_s, reached_s))
        self._elapsed_s += taken_s
        if span.is_trial:
            self._ends[span.block] = self._elapsed_s
