"""Percentiles of single requests, and what they say about a promise. Made by `analysis.percentiles`."""

from enum import StrEnum

from bitbench.study.base import Record
from bitbench.study.metrics import LEAST_BEYOND
from bitbench.study.objective import Objective

MEDIAN = 50.0


class CountedEvent(StrEnum):
    """What is counted: whatever has a fate of its own."""

    REQUEST = "requests"
    BATCH = "batches"  # all requests of a batch are served together
    GAP = "gaps"  # between the tokens of a stream; of streams in a batch once


class PercentileEstimate(Record):
    """Over the requests of all trials of a point. `high` is None where the interval is open: too few requests, or
    starts too different, to bound it."""

    percent: float
    value: float
    low: float
    high: float | None
    slowest: float
    confidence: float
    event: CountedEvent
    events: int
    clusters: int  # starts; of an endpoint that was running already its trials

    @property
    def is_carried(self) -> bool:
        """Whether there are enough events to call it by its name."""
        return carries(self.events, self.percent)

    @property
    def shown(self) -> float:
        """The slowest where too few requests say no more of a high percentile than that."""
        return self.slowest if self._is_slowest else self.value

    @property
    def shown_low(self) -> float | None:
        """None where neither end is known."""
        return self.low if self.high is not None or self.low > 0 else None

    @property
    def note(self) -> str:
        """What the shown value is, where it does not deserve its name: `slowest of 24`."""
        counted = f"{self.events:,}{'' if self.event is CountedEvent.REQUEST else f' {self.event.value}'}"
        if self.is_carried:
            return ""
        return f"slowest of {counted}" if self._is_slowest else f"of {counted}"

    @property
    def _is_slowest(self) -> bool:
        return not self.is_carried and self.high is None and self.percent > MEDIAN


def carries(events: int, percent: float) -> bool:
    return round(events * (100 - percent), 6) >= 100 * LEAST_BEYOND


class ObjectiveVerdict(StrEnum):
    MET = "met"  # the whole interval is within the limit, and it has an upper end
    MISSED = "missed"  # the whole interval is beyond the limit
    INCONCLUSIVE = "inconclusive"


class JudgedObjective(Record):
    """A limit, held against what all trials of a point say. `value` is None where it is unknown."""

    objective: Objective
    verdict: ObjectiveVerdict
    value: float | None = None
    low: float | None = None
    high: float | None = None  # None beside a `low`: open upwards
    note: str = ""  # what the value is where it is no more than that: "slowest of 24"
    reason: str = ""  # why it is inconclusive, and what would tell; or why it is missed without a value
