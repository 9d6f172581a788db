"""Objectives of a service, such as `ttft_p99: 200ms`, and the limits of a search for the highest
rate that meets them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from bitbench.study.base import Seconds, Spec
from bitbench.study.metrics import (
    OBJECTIVES,
    PROMISED,
    STATISTICS,
    Promised,
    Statistic,
    find_metric,
)
from bitbench.util.text import suggest_name
from bitbench.util.units import parse_seconds

LEAST_REQUESTS = 10  # of a short trial
VERIFYING_LENGTH = 3  # full trials


class RateTrialKind(StrEnum):
    """A kind of trial in a search. The name of its workload begins with it."""

    SHORT = "short"  # used until one trial has met the objectives and one has missed them
    FULL = "rate"
    VERIFYING = "verify"  # a long trial at the lower end of the answer


class Objective(Spec):
    """An upper limit for `statistic` of `metric` over the requests of a trial."""

    metric: Promised
    statistic: Statistic
    limit: Seconds = Field(gt=0)

    @property
    def name(self) -> str:
        """Return the name of the metric (see `study.metrics`). A mean has the plain name."""
        if self.statistic == "mean":
            return self.metric
        return f"{self.metric}_{self.statistic}"


def _parse_objectives(value: object) -> object:
    """Convert `{ttft_p99: 200ms}` or `"ttft_p99=200ms,tpot_p99=20ms"` to a list of objectives.

    Return any other value as it is. Raise ValueError if a text cannot be parsed, or if a metric is
    unknown or given twice.
    """
    if isinstance(value, str):
        pairs = _split_pairs(value)
    elif isinstance(value, Mapping):
        pairs = [(str(name), limit) for name, limit in value.items()]
    else:
        return value
    names = [_find_metric_name(name) for name, _ in pairs]
    objectives: list[dict[str, object]] = []
    for name, (_, limit) in zip(names, pairs, strict=True):
        if names.count(name) > 1:
            raise ValueError(f"{name} is given more than once; keep one")
        metric = OBJECTIVES[name]
        objectives.append({"metric": metric.time, "statistic": metric.statistic, "limit": limit})
    return objectives


def _split_pairs(text: str) -> list[tuple[str, object]]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all("=" in part for part in parts):
        raise ValueError(f"expected objectives such as ttft_p99=200ms,tpot_p99=20ms, got {text!r}")
    pairs: list[tuple[str, object]] = []
    for part in parts:
        name, _, limit = part.partition("=")
        pairs.append((name.strip(), _parse_limit(name.strip(), limit)))
    return pairs


def _parse_limit(name: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as problem:
        raise ValueError(f"{name}: {problem}") from None


def _find_metric_name(name: str) -> str:
    """Return the name of the metric in the registry. Raise ValueError if it is not an objective."""
    metric = find_metric(name)
    if metric is None or metric.name not in OBJECTIVES:
        raise ValueError(
            f"unknown objective {name!r}; {suggest_name(name, OBJECTIVES)}"
            f"expected one of {', '.join(PROMISED)}, alone (the mean) or with "
            f"_ and one of {', '.join(STATISTICS[1:])}, such as ttft_p99"
        )
    return metric.name


Objectives = Annotated[
    tuple[Objective, ...],
    BeforeValidator(_parse_objectives),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"enum": list(OBJECTIVES)},
            "additionalProperties": {"type": "string"},
            "examples": [{"ttft_p99": "200ms", "tpot_p99": "20ms"}],
        },
        mode="validation",
    ),
]


class SearchLimits(Spec):
    """The limits of a search and the length of its trials. Rates are in requests per second."""

    start: float
    lowest: float
    highest: float
    precision: float = 0.05  # half width of the interval, relative
    trials: int = 12  # at most, without the trials that verify the answer
    confidence: float = 0.95
    needed: int = 1000  # requests of a full trial, from the percentile of the objectives
    # The length of a first, short trial. A full trial is this much longer, so that the queue fills.
    shortest_s: float = 10.0
    fixed_requests: int | None = None  # of each trial, if the user sets them
    fixed_s: float | None = None

    def count_trial_requests(self, rate: float, kind: RateTrialKind) -> int:
        """Return the number of requests of a trial at this rate."""
        filling = rate * self.shortest_s
        if self.fixed_requests is not None:
            count = float(self.fixed_requests)
        elif self.fixed_s is not None:
            count = rate * self.fixed_s
        elif kind is RateTrialKind.SHORT:
            count = max(filling, LEAST_REQUESTS)
        else:
            count = self.needed + filling
        if kind is RateTrialKind.VERIFYING:
            count *= VERIFYING_LENGTH
        return max(round(count), 1)
