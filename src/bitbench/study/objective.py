"""What a service promises, such as `ttft_p99: 200ms`, and how far a search for the highest rate that keeps it goes."""

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
from bitbench.util.text import did_you_mean
from bitbench.util.units import parse_seconds

LEAST_REQUESTS = 10  # of a short trial
VERIFYING_LENGTH = 3  # full trials


class RateTrialKind(StrEnum):
    """A trial of a search, as the name of its workload begins."""

    SHORT = "short"  # until one trial has met the objectives and one has missed them
    FULL = "rate"
    VERIFYING = "verify"  # a long one at the lower end of the answer


class Objective(Spec):
    """Met by a trial in which `statistic` over its requests of `metric` is at most `limit`."""

    metric: Promised
    statistic: Statistic
    limit: Seconds = Field(gt=0)

    @property
    def name(self) -> str:
        """That of the figure (study.metrics): a mean has the plain one."""
        return self.metric if self.statistic == "mean" else f"{self.metric}_{self.statistic}"


def _parse_objectives(value: object) -> object:
    """`{ttft_p99: 200ms}` and `"ttft_p99=200ms,tpot_p99=20ms"` as well as a list of objectives."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        unclear = [part for part in parts if "=" not in part]
        if unclear or not parts:
            raise ValueError(
                f"expected objectives such as ttft_p99=200ms,tpot_p99=20ms, got {value!r}"
            )
        given = [part.partition("=") for part in parts]
        pairs: list[tuple[str, object]] = [
            (name.strip(), _limit(name.strip(), limit)) for name, _, limit in given
        ]
    elif isinstance(value, Mapping):
        pairs = [(str(name), limit) for name, limit in value.items()]
    else:
        return value
    figures = [_figure(name) for name, _ in pairs]
    for figure in figures:
        if figures.count(figure) > 1:
            raise ValueError(f"{figure} is given more than once; keep one")
    return [
        {
            "metric": OBJECTIVES[figure].time,
            "statistic": OBJECTIVES[figure].statistic,
            "limit": limit,
        }
        for figure, (_, limit) in zip(figures, pairs, strict=True)
    ]


def _limit(name: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as problem:
        raise ValueError(f"{name}: {problem}") from None


def _figure(name: str) -> str:
    """The registry's name for it."""
    metric = find_metric(name)
    if metric is None or metric.name not in OBJECTIVES:
        raise ValueError(
            f"unknown objective {name!r}; {did_you_mean(name, OBJECTIVES)}"
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
    """How far a search goes, and how long its trials are. Rates are in requests per second."""

    start: float
    lowest: float
    highest: float
    precision: float = 0.05  # half width of the interval, relative
    trials: int = 12  # at most, without those that verify the answer
    confidence: float = 0.95
    needed: int = 1000  # requests of a full trial, by the percentile of the objectives
    shortest_s: float = (
        10.0  # a first, short trial; a full one takes this longer, for the queue to fill
    )
    fixed_requests: int | None = None  # of each trial, where the user sets them
    fixed_s: float | None = None

    def trial_requests(self, rate: float, kind: RateTrialKind) -> int:
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
