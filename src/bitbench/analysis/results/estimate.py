"""An estimate with its interval, and the check of an estimate against a limit."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, NamedTuple

from bitbench.study.base import Record
from bitbench.study.metrics import LEAST_BEYOND


class Ends(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


class Basis(Record):
    """The trials that a mean is computed from."""

    starts: int
    trials: int
    trial_sd: float | None = None  # of the single trials, as in ± columns


class Estimate(Record):
    """A metric, a ratio, a difference or a percentile, in its base unit.

    Without `low` it has no interval.
    """

    value: float
    low: float | None = None
    high: float | None = None  # None with a `low`: open upwards
    # extremes: the lowest and the highest measured value
    kind: Literal["interval", "extremes"] = "interval"
    confidence: float | None = None
    p_value: float | None = None  # of equal sides, for a ratio; None: too few trials, or not a test
    basis: Basis | None = None
    note: str = ""  # what the value is if it is not the metric itself: "slowest of 24"

    @property
    def interval(self) -> Ends | None:
        """Return both ends, or None if an end is unknown."""
        return None if self.low is None or self.high is None else Ends(self.low, self.high)

    @property
    def covers_starts(self) -> bool:
        """Return False if there was one start, whose interval excludes variation between starts."""
        return self.basis is None or self.basis.starts > 1

    def excludes(self, value: float) -> bool:
        """Return True if the whole interval is above or below a value."""
        return self.is_above(value) or self.is_below(value)

    def is_above(self, value: float) -> bool:
        """Return True if the whole interval is above a value."""
        return self.low is not None and self.low > value

    def is_below(self, value: float) -> bool:
        """Return True if the whole interval is below a value."""
        return self.high is not None and self.high < value

    @property
    def inverse(self) -> "Estimate":
        """Return the inverse ratio, of the second side to the first."""
        high = 1 / self.low if self.low else None
        low = 1 / self.high if self.high else None
        return self.model_copy(update={"value": 1 / self.value, "low": low, "high": high})


MEDIAN = 50.0


class CountedEvent(StrEnum):
    """The unit of independent events."""

    REQUEST = "requests"
    BATCH = "batches"  # all requests of a batch are served together
    GAP = "gaps"  # between the tokens of a stream; streams of a batch count once


class PercentileEstimate(Estimate):
    """A percentile over the requests of all trials of a point.

    `high` is None if the interval is open: there are too few requests, or the starts differ too
    much.
    """

    confidence: float
    percent: float
    event: CountedEvent
    events: int
    clusters: int  # starts; trials if the endpoint was already running

    @property
    def is_carried(self) -> bool:
        """Return True if there are enough events to call it a percentile."""
        return is_estimate_carried(self.events, self.percent)


def is_estimate_carried(events: int, percent: float) -> bool:
    """Return True if enough events lie beyond a percentile."""
    return round(events * (100 - percent), 6) >= 100 * LEAST_BEYOND


class Verdict(StrEnum):
    """The verdict on an estimate that is checked against a limit."""

    MET = "met"  # the whole interval is within the limit
    MISSED = "missed"  # the whole interval is beyond it
    INCONCLUSIVE = "inconclusive"  # the interval contains the limit, or there is none to trust


def check_against_limit(
    estimate: Estimate | None, limit: float, *, at_least: bool = False
) -> Verdict:
    """Return the verdict of the interval, never of the value alone.

    The estimate must be at most the limit, or with `at_least` at least the limit. An end that is
    open or unknown is beyond every limit.
    """
    if estimate is None:
        return Verdict.INCONCLUSIVE
    low = estimate.low
    high = estimate.high
    if at_least:
        is_met = low is not None and low >= limit
        is_missed = high is not None and high < limit
    else:
        is_met = high is not None and high <= limit
        is_missed = low is not None and low > limit
    if is_met:
        return Verdict.MET
    return Verdict.MISSED if is_missed else Verdict.INCONCLUSIVE


def find_worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on several limits together: MISSED before INCONCLUSIVE before MET."""
    distinct = set(verdicts)
    for verdict in (Verdict.MISSED, Verdict.INCONCLUSIVE):
        if verdict in distinct:
            return verdict
    return Verdict.MET


class Finding(Record):
    """A limit that was checked against all trials. `estimate` is None if the metric is unknown."""

    name: str  # as requested: "ttft_p99", "memory", "quality loss"
    unit: str  # "s", "bytes" or "share"
    limit: float
    estimate: Estimate | None = None
    verdict: Verdict
    reason: str = ""  # why it is inconclusive and what would decide, or why it is missed

    @property
    def value(self) -> float | None:
        return None if self.estimate is None else self.estimate.value
