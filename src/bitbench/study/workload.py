"""Workloads: arrival of requests, their content, and the number in flight."""

from enum import StrEnum
from math import ceil
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema

from bitbench.study.base import Fraction, Seconds, Spec

RateField = Field(gt=0, le=1_000_000, description="requests per second")


class Arrival(StrEnum):
    """A pattern in which requests arrive."""

    BATCH = "batch"  # every request at once, then wait for all of them
    # a fixed number of streams, each of which sends its next request when the last one ended
    CLOSED_LOOP = "closed_loop"
    CONSTANT = "constant"  # evenly spaced
    POISSON = "poisson"  # independent users: exponential gaps
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


class Trace(Spec):
    """A recorded trace in the format of Mooncake: JSON lines."""

    kind: Literal[Arrival.TRACE] = Arrival.TRACE
    file: str = Field(min_length=1, description="the trace; relative to the study file")
    speed: float = Field(default=1.0, gt=0, le=1_000_000, description="2 replays it twice as fast")


def _expand_kind(value: object) -> object:
    if isinstance(value, str):
        return {"kind": str(value)}
    return value


AnyArrival = Annotated[
    Annotated[Batch | ClosedLoop | Constant | Poisson | Trace, Field(discriminator="kind")],
    BeforeValidator(_expand_kind),
]


def find_mean_rate(arrival: AnyArrival) -> float | None:
    """Return the mean requests per second of a trial. None if answers or a trace decide it."""
    if isinstance(arrival, (Constant, Poisson)):
        return arrival.rate
    return None


# Tokens of a prompt or an answer: the longest context that a published model offers.
MOST_TOKENS = 10_000_000
# Default distance of `min` and `max` from the mean: 99.7 % of a normal distribution are within it.
DEVIATIONS = 3


class Lengths(Spec):
    """Lengths between `min` and `max`, distributed evenly, or around `mean` with `sd`."""

    min: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    max: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    mean: float | None = Field(default=None, ge=1, le=MOST_TOKENS)
    sd: float | None = Field(default=None, ge=0, le=MOST_TOKENS)

    @model_validator(mode="after")
    def _check_forms(self) -> "Lengths":
        if (self.mean is None) != (self.sd is None):
            raise ValueError("`mean` and `sd` belong together; give both, or `min` and `max` alone")
        if self.mean is None and (self.min is None or self.max is None):
            raise ValueError(
                "give a number, {min, max}, or {mean, sd} with or without `min` and `max`"
            )
        middle = self.mean
        if middle is None:
            middle = self.shortest
        if not self.shortest <= middle <= self.longest:
            raise ValueError(
                f"`min` {self.shortest}, `mean` and `max` {self.longest} must be in ascending order"
            )
        return self

    @property
    def shortest(self) -> int:
        if self.min is not None:
            return self.min
        assert self.mean is not None
        assert self.sd is not None
        return max(1, int(self.mean - DEVIATIONS * self.sd))

    @property
    def longest(self) -> int:
        if self.max is not None:
            return self.max
        assert self.mean is not None
        assert self.sd is not None
        return ceil(self.mean + DEVIATIONS * self.sd)

    @property
    def typical(self) -> float:
        if self.mean is None:
            return (self.shortest + self.longest) / 2
        return self.mean

    def __str__(self) -> str:
        limits = f"{self.shortest:,} to {self.longest:,}"
        if self.mean is None:
            return limits
        return f"{self.mean:,g} ± {self.sd:,g}, {limits}"


def _describe_form(value: object) -> str:
    return "spread" if isinstance(value, (dict, Lengths)) else "number"


Length = Annotated[
    Annotated[int, Field(ge=1, le=MOST_TOKENS), Tag("number")] | Annotated[Lengths, Tag("spread")],
    Discriminator(_describe_form),
]


def _get_shortest_length(length: Length) -> int:
    return length.shortest if isinstance(length, Lengths) else length


def get_longest_length(length: Length) -> int:
    return length.longest if isinstance(length, Lengths) else length


def get_typical_length(length: Length) -> float:
    return length.typical if isinstance(length, Lengths) else float(length)


def format_length(length: Length) -> str:
    return str(length) if isinstance(length, Lengths) else f"{length:,}"


class Api(StrEnum):
    """An endpoint of a server that generates text."""

    COMPLETIONS = "completions"  # /v1/completions: token ids, or text as it is
    # /v1/chat/completions: messages, to which the server applies the model's chat template
    CHAT = "chat"


class TextPrompts(Spec):
    """Prompts from a file: JSON lines with `prompt`, `text` or `messages`, ShareGPT, or text."""

    file: str = Field(min_length=1, description="the texts; relative to the study file")


class SharedPrefix(Spec):
    """A prefix that some prompts share, like a system prompt."""

    tokens: int = Field(ge=1, description="length of the common prefix; part of input_tokens")
    share: Fraction = Field(
        default=1.0, gt=0, le=1, description="share of the requests that have one"
    )


class Conversation(Spec):
    """A conversation, in which each request contains the previous turns."""

    turns: int = Field(ge=2, le=1_000, description="requests of one conversation")
    think: Seconds = Field(
        default=0.0, ge=0, description="from the end of an answer to the next question"
    )


MOST_REQUESTS = 10_000_000  # of a trial: its rows take gigabytes beyond that
# Default requests per stream: enough for a median per stream.
CLOSED_LOOP_ROUNDS = 4
# Default of the requests in flight that an engine is sized for in an open loop. It does not limit
# the load: further requests wait inside the engine, as they would in production.
OPEN_LOOP_CONCURRENCY = 64
# Tokens of each answer in a warm-up. An engine does its first-time work during the prompt and the
# first steps after it. In 259 warm-ups of the gallery with whole answers, later tokens took no
# longer than in the trials after them.
WARM_UP_TOKENS = 8


ShapePart = Literal["concurrency", "input_tokens", "output_tokens", "arrival", "requests"]


class Workload(Spec):
    """Requests of `input_tokens` in and exactly `output_tokens` out, `concurrency` at once or on
    a schedule.
    """

    name: str = Field(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")
    concurrency: int = Field(
        ge=1,
        le=100_000,
        description="requests in flight at once; in open loop what an engine is sized for",
    )
    input_tokens: Length = Field(
        description="prompt length, exact: a number, {min, max} or {mean, sd, min, max}; with "
        "text or a trace the most"
    )
    output_tokens: Length = Field(
        description="generated length, forced: a number, {min, max} or {mean, sd, min, max}; with "
        "a trace the most"
    )
    output_forced: bool = Field(
        default=True,
        description="exactly output_tokens; false: at most, for servers without ignore_eos",
    )
    arrival: AnyArrival = Field(
        default=Batch(), description="batch, closed_loop, or {kind, …} for an open loop"
    )
    requests: int | None = Field(
        default=None, ge=1, description="requests per trial; a batch has one per stream and turn"
    )
    duration: Seconds | None = Field(
        default=None, gt=0, description="of the schedule, instead of `requests` (open loop)"
    )
    api: Api = Field(default=Api.COMPLETIONS, description="API endpoint; chat needs `text`")
    text: TextPrompts | None = Field(
        default=None, description="prompts from a file instead of random token ids"
    )
    shared_prefix: SharedPrefix | None = Field(
        default=None, description="prompts that share a prefix"
    )
    conversation: Conversation | None = Field(
        default=None, description="several turns, each with its history"
    )

    # Fields that an imported file lacks. They hold placeholders, so the workload can only be
    # reported, not run.
    unknown: SkipJsonSchema[tuple[ShapePart, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _set_open_loop_size(cls, value: object) -> object:
        if not isinstance(value, dict) or "concurrency" in value:
            return value
        arrival = value.get("arrival", Arrival.BATCH)
        if isinstance(arrival, dict):
            kind = arrival.get("kind")
        else:
            kind = getattr(arrival, "kind", arrival)
        if kind in (Arrival.BATCH, Arrival.CLOSED_LOOP):
            return value
        return {**value, "concurrency": OPEN_LOOP_CONCURRENCY}

    @model_validator(mode="after")
    def _check_count(self) -> "Workload":
        if self.open_loop:
            if (self.requests is None) == (self.duration is None):
                raise ValueError(
                    f"arrival {self.arrival.kind} needs `requests` or `duration` (one of them) to "
                    "know when to end"
                )
        elif self.duration is not None:
            raise ValueError(
                f"arrival {self.arrival.kind} has no `duration`; give `requests` instead"
            )
        elif self.requests is not None:
            self._check_closed_loop(self.requests)
        if (self.request_count or 0) > MOST_REQUESTS:
            raise ValueError(f"a trial has {MOST_REQUESTS:,} requests at most")
        if self.requests is not None and self.requests % self.turns:
            raise ValueError(
                f"`requests` must be a multiple of the {self.turns} turns of a conversation"
            )
        return self

    def _check_closed_loop(self, requests: int) -> None:
        least = self.concurrency * self.turns
        if self.arrival.kind is Arrival.BATCH and requests != least:
            raise ValueError(
                "a batch sends `concurrency` requests; use arrival: closed_loop to send more"
            )
        if requests < least:
            times = ""
            if self.turns > 1:
                times = f" × {self.turns} turns"
            raise ValueError(f"`requests` must be at least `concurrency`{times}")

    @model_validator(mode="after")
    def _check_parts(self) -> "Workload":
        if self.api is Api.CHAT and self.text is None:
            raise ValueError(
                "`api: chat` takes no token ids; give `text: {file: …}`, or leave `api` out"
            )
        names = ("text", "shared_prefix", "conversation")
        special = [name for name in names if getattr(self, name) is not None]
        is_trace = isinstance(self.arrival, Trace)
        if is_trace:
            special.append("a trace")
        if len(special) > 1:
            raise ValueError(
                f"{' and '.join(special)} cannot be combined; each decides what a prompt contains"
            )
        decided_by_file = {
            "input_tokens": self.text is not None or is_trace,
            "output_tokens": is_trace,
        }
        for name, is_decided in decided_by_file.items():
            if is_decided and isinstance(getattr(self, name), Lengths):
                raise ValueError(
                    f"`{name}` must be a number here, the maximum: the file sets each request's "
                    "length"
                )
        shortest = _get_shortest_length(self.input_tokens)
        if self.shared_prefix is not None and self.shared_prefix.tokens >= shortest:
            raise ValueError(
                f"shared_prefix.tokens ({self.shared_prefix.tokens}) must be less than the "
                "shortest prompt "
                f"({shortest} input_tokens), of which it is a part"
            )
        return self

    @property
    def open_loop(self) -> bool:
        """Return True if requests come on a schedule and do not wait for answers."""
        return self.arrival.kind not in (Arrival.BATCH, Arrival.CLOSED_LOOP)

    @property
    def turns(self) -> int:
        if self.conversation is None:
            return 1
        return self.conversation.turns

    @property
    def request_count(self) -> int | None:
        """Return the requests per trial. None if only a trace decides."""
        if self.requests is not None:
            return self.requests
        if not self.open_loop:
            rounds = CLOSED_LOOP_ROUNDS
            if self.arrival.kind is Arrival.BATCH:
                rounds = 1
            return rounds * self.concurrency * self.turns
        rate = find_mean_rate(self.arrival)
        if rate is None or self.duration is None:
            return None
        return max(1, round(rate * self.duration)) * self.turns

    @property
    def warm_up(self) -> "Workload":
        """Return the workload that warms an engine up: one short answer per stream.

        It is the whole workload if a schedule or a history decides the order of requests.
        """
        if self.open_loop or self.conversation is not None:
            return self
        shorter = {
            "requests": self.concurrency,
            "output_tokens": min(WARM_UP_TOKENS, get_longest_length(self.output_tokens)),
        }
        return self.model_copy(update=shorter)

    @property
    def context_tokens(self) -> int:
        """Return the tokens of the longest request with its answer. The last turn contains all."""
        return self.turns * (
            get_longest_length(self.input_tokens) + get_longest_length(self.output_tokens)
        )

    @property
    def files(self) -> tuple[tuple[tuple[str, ...], str], ...]:
        """Return the files that the workload reads: the field with the name, and the name."""
        files: list[tuple[tuple[str, ...], str]] = []
        if self.text is not None:
            files.append((("text", "file"), self.text.file))
        if isinstance(self.arrival, Trace):
            files.append((("arrival", "file"), self.arrival.file))
        return tuple(files)


def _make_workload(name: str, concurrency: int, input_tokens: int, output_tokens: int) -> Workload:
    return Workload(
        name=name, concurrency=concurrency, input_tokens=input_tokens, output_tokens=output_tokens
    )


_BUILT_IN = (
    _make_workload("interactive", 1, 128, 64),
    _make_workload("decode_bound", 1, 256, 512),
    _make_workload("prefill_bound", 1, 2048, 32),
    _make_workload("long_context", 1, 16384, 32),
    _make_workload("medium_batch", 8, 256, 128),
    _make_workload("base", 32, 256, 32),
    _make_workload("high_concurrency", 64, 256, 128),
)
BUILT_IN_WORKLOADS = {workload.name: workload for workload in _BUILT_IN}
