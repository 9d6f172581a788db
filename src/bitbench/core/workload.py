"""What is asked of an engine: a shape and the way requests arrive."""

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from bitbench.core.base import Spec

CLOSED_LOOP_ROUNDS = 4  # requests per stream when the study does not say: enough for a median per stream


class Arrival(StrEnum):
    BATCH = "batch"  # every request at once, then wait for all of them
    CLOSED_LOOP = "closed_loop"  # so many streams; each sends its next request when the last one ended


ShapePart = Literal["concurrency", "input_tokens", "output_tokens", "arrival", "requests"]


class Workload(Spec):
    """`concurrency` requests of `input_tokens` in and exactly `output_tokens` out."""

    name: str = Field(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")
    concurrency: int = Field(ge=1, le=100_000, description="requests in flight at once")
    input_tokens: int = Field(ge=1, description="prompt length, exact")
    output_tokens: int = Field(ge=1, description="generated length, forced")
    arrival: Arrival = Arrival.BATCH
    requests: int | None = Field(
        default=None, ge=1, description="requests per trial (closed loop); a batch has one per stream"
    )
    # What an imported file does not say: the field holds no more than a stand-in. Such a workload can only be reported.
    unknown: SkipJsonSchema[tuple[ShapePart, ...]] = ()

    @model_validator(mode="after")
    def _requests_fit_the_arrival(self) -> "Workload":
        if self.arrival is Arrival.BATCH and self.requests not in (None, self.concurrency):
            raise ValueError("a batch sends `concurrency` requests; use arrival: closed_loop to send more")
        if self.requests is not None and self.requests < self.concurrency:
            raise ValueError("`requests` must be at least `concurrency`")
        return self

    @property
    def request_count(self) -> int:
        if self.requests is not None:
            return self.requests
        rounds = 1 if self.arrival is Arrival.BATCH else CLOSED_LOOP_ROUNDS
        return rounds * self.concurrency

    @property
    def context_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


def _shape(name: str, concurrency: int, input_tokens: int, output_tokens: int) -> Workload:
    return Workload(name=name, concurrency=concurrency, input_tokens=input_tokens, output_tokens=output_tokens)


BUILT_IN_WORKLOADS = {
    workload.name: workload
    for workload in (
        _shape("interactive", 1, 128, 64),
        _shape("decode_bound", 1, 256, 512),
        _shape("prefill_bound", 1, 2048, 32),
        _shape("long_context", 1, 16384, 32),
        _shape("medium_batch", 8, 256, 128),
        _shape("base", 32, 256, 32),
        _shape("high_concurrency", 64, 256, 128),
    )
}
