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


def block_ends(
    trials: Iterable[TrialRecord], others: Iterable[InstanceRecord | QualityRecord]
) -> dict[int, float]:
    """Seconds since the first start at which each block had ended so far; empty where the records have no times."""
    spans = [_span(record) for record in chain(trials, others) if record.started_at is not None]
    spans.sort(key=lambda span: span[:2])
    ends: dict[int, float] = {}
    elapsed_s, newest_block = 0.0, 0
    reached_s = spans[0].began_s if spans else 0.0
    for span in spans:
        if (
            span.block is not None and span.block >= newest_block
        ):  # else it was taken up again by a later call
            newest_block = span.block
            elapsed_s += _taken_s(span, reached_s)
            if span.is_trial:
                ends[span.block] = elapsed_s
        reached_s = max(reached_s, span.ended_s)
    return ends


def _span(record: TrialRecord | InstanceRecord | QualityRecord) -> _Span:
    assert record.started_at is not None
    return _Span(
        began_s=datetime.fromisoformat(record.started_at).timestamp(),
        ended_s=ended_s(record),
        block=None if isinstance(record, QualityRecord) else record.block,
        is_trial=isinstance(record, TrialRecord),
    )


def _taken_s(span: _Span, reached_s: float) -> float:
    """Return the time that a span adds to those before it. A long pause adds nothing."""
    pause_s = max(0.0, span.began_s - reached_s)
    work_s = max(0.0, span.ended_s - max(span.began_s, reached_s))
    return work_s + (pause_s if pause_s <= LONGEST_PAUSE_S or span.follows_a_start else 0.0)
