"""How long a study has been measured, from its records alone.

Time between two runs of the study does not count. Neither does quality, which is outside the
budget. A later run may measure a block again that other blocks followed. That does not count
either: the interim analyses of these blocks were made at their time.
"""

from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, TrialRecord

# Longest pause between two records of one run, such as an engine that ends or a report. After a
# longer pause, the study was resumed later.
LONGEST_PAUSE_S = 60.0


class _Span(NamedTuple):
    """The time of one record, by the wall clock."""

    began_s: float
    ended_s: float
    block: int | None  # None: quality
    is_trial: bool  # else a start, which may also be for quality alone, after all blocks

    @property
    def follows_a_start(self) -> bool:
        """Return True for a trial that never ran: before it is its engine's failed start."""
        return self.is_trial and self.ended_s == self.began_s


def ended_s(record: TrialRecord | InstanceRecord | QualityRecord) -> float:
    """Return the end of a record by the wall clock, or 0 if it has no time."""
    if record.started_at is None:
        return 0.0
    took_s = record.ready_s if isinstance(record, InstanceRecord) else record.duration_s
    return datetime.fromisoformat(record.started_at).timestamp() + (took_s or 0.0)


def collect_block_ends(
    trials: Iterable[TrialRecord], others: Iterable[InstanceRecord | QualityRecord]
) -> dict[int, float]:
    """Return each finished block's end time, in seconds since the first start.

    The result is empty if the records have no times.
    """
    spans = [
        _make_span(record) for record in chain(trials, others) if record.started_at is not None
    ]
    spans.sort(key=lambda span: span[:2])
    ends: dict[int, float] = {}
    elapsed_s = 0.0
    newest_block = 0
    reached_s = spans[0].began_s if spans else 0.0
    for span in spans:
        # A later call may resume an older block. Its time does not count.
        if span.block is not None and span.block >= newest_block:
            newest_block = span.block
            elapsed_s += _compute_added_s(span, reached_s)
            if span.is_trial:
                ends[span.block] = elapsed_s
        reached_s = max(reached_s, span.ended_s)
    return ends


def _make_span(record: TrialRecord | InstanceRecord | QualityRecord) -> _Span:
    assert record.started_at is not None
    block = None if isinstance(record, QualityRecord) else record.block
    return _Span(
        began_s=datetime.fromisoformat(record.started_at).timestamp(),
        ended_s=ended_s(record),
        block=block,
        is_trial=isinstance(record, TrialRecord),
    )


def _compute_added_s(span: _Span, reached_s: float) -> float:
    """Return the time that a span adds to those before it. A long pause adds nothing."""
    pause_s = max(0.0, span.began_s - reached_s)
    work_s = max(0.0, span.ended_s - max(span.began_s, reached_s))
    if pause_s <= LONGEST_PAUSE_S or span.follows_a_start:
        return work_s + pause_s
    return work_s
