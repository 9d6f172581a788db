"""When requests come: everything at once, in a closed loop, or on a schedule that does not wait for answers."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from bitbench.study.base import Spec

RateField = Field(gt=0, le=1_000_000, description="requests per second")


class Arrival(StrEnum):
    BATCH = "batch"  # every request at once, then wait for all of them
    CLOSED_LOOP = "closed_loop"  # so many streams; each sends its next request when the last one ended
    CONSTANT = "constant"  # evenly spaced
    POISSON = "poisson"  # independent users: exponential gaps
    GAMMA = "gamma"  # gaps that vary more or less than those of independent users
    RAMP = "ramp"  # a rate that grows, or falls, linearly
    TRACE = "trace"  # at the times, and with the lengths, of a recorded trace


class Batch(Spec):
    kind: Literal[Arrival.BATCH] = Arrival.BATCH


class ClosedLoop(Spec):
    kind: Literal[Arrival.CLOSED_LOOP] = Arrival.CLOSED_LOOP


class Constant(Spec):
    kind: Literal[Arrival.CONSTANT] = Arrival.CONSTANT
    rate: float = RateField


class Poisson(Spec):
    kind: Literal[Arrival.POISSON] = Arrival.POISSON
    rate: float = RateField


class Gamma(Spec):
    """Gaps from a gamma distribution of mean 1 / rate and coefficient of variation 1 / √burstiness."""

    kind: Literal[Arrival.GAMMA] = Arrival.GAMMA
    rate: float = RateField
    burstiness: float = Field(
        gt=0, le=1_000_000, description="shape of the gamma distribution; 1: Poisson; less: bursts"
    )


class Ramp(Spec):
    """The rate goes linearly from one to the other over the trial, without randomness."""

    model_config = ConfigDict(populate_by_name=True)

    kind: Literal[Arrival.RAMP] = Arrival.RAMP
    from_rate: float = Field(alias="from", ge=0, le=1_000_000, description="requests per second at the start")
    to_rate: float = Field(alias="to", ge=0, le=1_000_000, description="requests per second at the end")

    @model_validator(mode="after")
    def _something_comes(self) -> "Ramp":
        if self.from_rate + self.to_rate == 0:
            raise ValueError("a ramp from 0 to 0 sends nothing; set `from` or `to` above 0")
        return self


class Trace(Spec):
    """A recorded trace, recognised by its header: Azure's, BurstGPT's or Mooncake's layout."""

    kind: Literal[Arrival.TRACE] = Arrival.TRACE
    file: str = Field(min_length=1, description="the trace; relative to the study file")
    speed: float = Field(default=1.0, gt=0, le=1_000_000, description="2 replays it twice as fast")


def _kind_alone(value: object) -> object:
    return {"kind": str(value)} if isinstance(value, str) else value


AnyArrival = Annotated[
    Annotated[
        Batch | ClosedLoop | Constant | Poisson | Gamma | Ramp | Trace,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_kind_alone),
]


def mean_rate(arrival: AnyArrival) -> float | None:
    """Requests per second over the whole trial; None where answers, or a trace, decide."""
    match arrival:
        case Constant(rate=rate) | Poisson(rate=rate) | Gamma(rate=rate):
            return rate
        case Ramp():
            return (arrival.from_rate + arrival.to_rate) / 2
        case _:
            return None
