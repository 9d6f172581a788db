"""One number and how well it is known, and the one check of such a number against a limit."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, NamedTuple

from bitbench.study.base import Record
from bitbench.study.metrics import LEAST_BEYOND


class Ends(NamedTuple):
    low: float
    high: float


class Basis(Record):
    """What a mean of trials rests on."""

    starts: int
    trials: int
    trial_sd: float | None = None  # of the single trials, as people know it from ± columns


class Estimate(Record):
    """A figure, a ratio, a difference or a percentile, in its base unit; without `low` no interval is known."""

    value: float
    low: float | None = None
    high: float | None = None  # None beside a `low`: open upwards
    kind: Literal["interval", "extremes"] = (
        "interval"  # extremes: the lowest and the highest of what was seen
    )
    confidence: float | None = None
    p_value: float | None = None  # of a ratio: of equal sides; None: too few trials, or not a test
    basis: Basis | None = None
    note: str = ""  # what the value is where it is no more than that: "slowest of 24"

    @property
    def interval(self) -> Ends | None:
        """None where an end is unknown."""
        return None if self.low is None or self.high is None else Ends(self.low, self.high)

    @property
    def covers_starts(self) -> bool:
        """False: one start, so the interval knows nothing of variation from start to start."""
        return self.basis is None or self.basis.starts > 1

    def excludes(self, value: float) -> bool:
        return self.is_above(value) or self.is_below(value)

    def is_above(self, value: float) -> bool:
        """With all of its interval."""
        return self.low is not None and self.low > value

    def is_below(self, value: float) -> bool:
        return self.high is not None and self.high < value

    @property
    def inverse(self) -> "Estimate":
        """Return the ratio of the same two sides the other way round."""
        high = 1 / self.low if self.low else None
        low = 1 / self.high if self.high else None
        return self.model_copy(update={"value": 1 / self.value, "low": low, "high": high})


MEDIAN = 50.0


class CountedEvent(StrEnum):
    """What is counted: whatever has a fate of its own."""

    REQUEST = "requests"
    BATCH = "batches"  # all requests of a batch are served together
    GAP = "gaps"  # between the tokens of a stream; of streams in a batch once


class PercentileEstimate(Estimate):
    """Over the requests of all trials of a point. `high` is None where the interval is open: too few requests, or
    starts too different, to bound it."""

    confidence: float
    percent: float
    event: CountedEvent
    events: int
    clusters: int  # starts; of an endpoint that was running already its trials

    @property
    def is_carried(self) -> bool:
        """Whether there are enough events to call it by its name."""
        return is_estimate_carried(self.events, self.percent)


def is_estimate_carried(events: int, percent: float) -> bool:
    return round(events * (100 - percent), 6) >= 100 * LEAST_BEYOND


class Verdict(StrEnum):
    """Of an estimate that is held against a limit."""

    MET = "met"  # the whole interval is within the limit
    MISSED = "missed"  # the whole interval is beyond it
    INCONCLUSIVE = "inconclusive"  # the interval contains the limit, or there is none to trust


def check_against_limit(
    estimate: Estimate | None, limit: float, *, at_least: bool = False
) -> Verdict:
    """The interval decides, never the value alone. `limit`: at most that, or at least. An end that is open or unknown
    is beyond every limit."""
    if estimate is None:
        return Verdict.INCONCLUSIVE
    near, far = (estimate.low, estimate.high) if at_least else (estimate.high, estimate.low)
    if near is not None and (near >= limit if at_least else near <= limit):
        return Verdict.MET
    if far is not None and (far < limit if at_least else far > limit):
        return Verdict.MISSED
    return Verdict.INCONCLUSIVE


def worst_limit_check(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several limits together: one that is missed rules out, one that is inconclusive leaves it open."""
    said = set(verdicts)
    return next(
        (verdict for verdict in (Verdict.MISSED, Verdict.INCONCLUSIVE) if verdict in said),
        Verdict.MET,
    )


class Finding(Record):
    """A limit, held against what all trials say. `estimate` is None where the figure is unknown."""

    name: str  # as it was asked: "ttft_p99", "memory", "quality loss"
    unit: str  # "s", "bytes" or "share"
    limit: float
    estimate: Estimate | None = None
    verdict: Verdict
    reason: str = (
        ""  # why it is inconclusive, and what would tell; or why it is missed without a value
    )

    @property
    def value(self) -> float | None:
        return None if self.estimate is None else self.estimate.value
