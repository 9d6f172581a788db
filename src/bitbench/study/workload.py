"""A workload: when its requests come, what they hold, and how many are in flight."""

from enum import StrEnum
from math import ceil
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema

from bitbench.study.base import Fraction, Seconds, Spec

RateField = Field(gt=0, le=1_000_000, description="requests per second")


class Arrival(StrEnum):
    BATCH = "batch"  # every request at once, then wait for all of them
    CLOSED_LOOP = (
        "closed_loop"  # so many streams; each sends its next request when the last one ended
    )
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
    """A recorded trace in Mooncake's layout: JSON lines."""

    kind: Literal[Arrival.TRACE] = Arrival.TRACE
    file: str = Field(min_length=1, description="the trace; relative to the study file")
    speed: float = Field(default=1.0, gt=0, le=1_000_000, description="2 replays it twice as fast")


AnyArrival = Annotated[
    Annotated[Batch | ClosedLoop | Constant | Poisson | Trace, Field(discriminator="kind")],
    BeforeValidator(lambda value: {"kind": str(value)} if isinstance(value, str) else value),
]


def mean_arrival_rate(arrival: AnyArrival) -> float | None:
    """Return the requests per second over the whole trial; None where answers, or a trace, decide."""
    return arrival.rate if isinstance(arrival, (Constant, Poisson)) else None


MOST_TOKENS = (
    10_000_000  # of a prompt or an answer: the longest context that a published model offers
)
DEVIATIONS = 3  # where `min` and `max` are when a study does not say: 99.7 % of a normal distribution lie within


class Lengths(Spec):
    """Lengths that vary: evenly from `min` to `max`, or around `mean` with `sd`, never beyond `min` and `max`."""

    min: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    max: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    mean: float | None = Field(default=None, ge=1, le=MOST_TOKENS)
    sd: float | None = Field(default=None, ge=0, le=MOST_TOKENS)

    @model_validator(mode="after")
    def _one_of_two_forms(self) -> "Lengths":
        if (self.mean is None) != (self.sd is None):
            raise ValueError("`mean` and `sd` belong together; give both, or `min` and `max` alone")
        if self.mean is None and (self.min is None or self.max is None):
            raise ValueError(
                "give a number, {min, max}, or {mean, sd} with or without `min` and `max`"
            )
        if not self.shortest <= (self.shortest if self.mean is None else self.mean) <= self.longest:
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
        return (self.shortest + self.longest) / 2 if self.mean is None else self.mean

    def __str__(self) -> str:
        spread = "" if self.mean is None else f"{self.mean:,g} ± {self.sd:,g}, "
        return f"{spread}{self.shortest:,} to {self.longest:,}"


def _form(value: object) -> str:
    return "spread" if isinstance(value, (dict, Lengths)) else "number"


Length = Annotated[
    Annotated[int, Field(ge=1, le=MOST_TOKENS), Tag("number")] | Annotated[Lengths, Tag("spread")],
    Discriminator(_form),
]


def _shortest_length(length: Length) -> int:
    return length.shortest if isinstance(length, Lengths) else length


def longest_length(length: Length) -> int:
    return length.longest if isinstance(length, Lengths) else length


def typical_length(length: Length) -> float:
    return length.typical if isinstance(length, Lengths) else float(length)


def workload_length_text(length: Length) -> str:
    return str(length) if isinstance(length, Lengths) else f"{length:,}"


class Api(StrEnum):
    COMPLETIONS = "completions"  # /v1/completions: token ids, or text as it is
    CHAT = "chat"  # /v1/chat/completions: messages, to which the server applies the model's chat template


class TextPrompts(Spec):
    """Prompts from a file: JSON lines with `prompt`, `text` or `messages`, or ShareGPT's JSON, or plain text."""

    file: str = Field(min_length=1, description="the texts; relative to the study file")


class SharedPrefix(Spec):
    """Some prompts begin alike, as behind a system prompt."""

    tokens: int = Field(ge=1, description="length of the common prefix; part of input_tokens")
    share: Fraction = Field(
        default=1.0, gt=0, le=1, description="share of the requests that have one"
    )


class Conversation(Spec):
    """Requests that carry what was said before them."""

    turns: int = Field(ge=2, le=1_000, description="requests of one conversation")
    think: Seconds = Field(
        default=0.0, ge=0, description="from the end of an answer to the next question"
    )


MOST_REQUESTS = 10_000_000  # of a trial: its rows take gigabytes beyond that
CLOSED_LOOP_ROUNDS = (
    4  # requests per stream when the study does not say: enough for a median per stream
)
# Requests in flight that an engine is sized for when requests do not wait for answers and the study does not say. It
# is no limit of the load: more than that wait inside the engine, as they would in use.
OPEN_LOOP_CONCURRENCY = 64
# Of each answer in a warm-up. What an engine does for the first time is in the prompt and in the first steps after it:
# in 259 warm-ups of the gallery with whole answers, later tokens took no longer than in the trials after them.
WARM_UP_TOKENS = 8


ShapePart = Literal["concurrency", "input_tokens", "output_tokens", "arrival", "requests"]


class Workload(Spec):
    """Requests of `input_tokens` in and exactly `output_tokens` out, `concurrency` at once or on a schedule."""

    name: str = Field(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")
    concurrency: int = Field(
        ge=1,
        le=100_000,
        description="requests in flight at once; in open loop what an engine is sized for",
    )
    input_tokens: Length = Field(
        description="prompt length, exact: a number, {min, max} or {mean, sd, min, max}; with text or a trace the most"
    )
    output_tokens: Length = Field(
        description="generated length, forced: a number, {min, max} or {mean, sd, min, max}; with a trace the most"
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

    # What an imported file does not say: the field holds no more than a stand-in. Such a workload can only be reported.
    unknown: SkipJsonSchema[tuple[ShapePart, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _size_of_an_open_loop(cls, value: object) -> object:
        if not isinstance(value, dict) or "concurrency" in value:
            return value
        arrival = value.get("arrival", Arrival.BATCH)
        kind = (
            arrival.get("kind") if isinstance(arrival, dict) else getattr(arrival, "kind", arrival)
        )
        if kind in (Arrival.BATCH, Arrival.CLOSED_LOOP):
            return value
        return {**value, "concurrency": OPEN_LOOP_CONCURRENCY}

    @model_validator(mode="after")
    def _count_fits_the_arrival(self) -> "Workload":
        if self.open_loop:
            if (self.requests is None) == (self.duration is None):
                raise ValueError(
                    f"arrival {self.arrival.kind} needs `requests` or `duration` (one of them) to know when to end"
                )
        elif self.duration is not None:
            raise ValueError(
                f"arrival {self.arrival.kind} has no `duration`; give `requests` instead"
            )
        elif self.arrival.kind is Arrival.BATCH and self.requests not in (
            None,
            self.concurrency * self.turns,
        ):
            raise ValueError(
                "a batch sends `concurrency` requests; use arrival: closed_loop to send more"
            )
        elif self.requests is not None and self.requests < self.concurrency * self.turns:
            times = "" if self.turns == 1 else f" × {self.turns} turns"
            raise ValueError(f"`requests` must be at least `concurrency`{times}")
        if (self.request_count or 0) > MOST_REQUESTS:
            raise ValueError(f"a trial has {MOST_REQUESTS:,} requests at most")
        if self.requests is not None and self.requests % self.turns:
            raise ValueError(
                f"`requests` must be a multiple of the {self.turns} turns of a conversation"
            )
        return self

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "Workload":
        if self.api is Api.CHAT and self.text is None:
            raise ValueError(
                "`api: chat` takes no token ids; give `text: {file: …}`, or leave `api` out"
            )
        special = [
            name
            for name in ("text", "shared_prefix", "conversation")
            if getattr(self, name) is not None
        ]
        if isinstance(self.arrival, Trace):
            special.append("a trace")
        if len(special) > 1:
            raise ValueError(
                f"{' and '.join(special)} cannot be combined; each decides what a prompt contains"
            )
        decided_by_file = {"input_tokens": self.text is not None or isinstance(self.arrival, Trace)}
        decided_by_file["output_tokens"] = isinstance(self.arrival, Trace)
        for name, decided in decided_by_file.items():
            if decided and isinstance(getattr(self, name), Lengths):
                raise ValueError(
                    f"`{name}` must be a number here, the maximum: the file sets each request's length"
                )
        if self.shared_prefix is not None and self.shared_prefix.tokens >= _shortest_length(
            self.input_tokens
        ):
            raise ValueError(
                f"shared_prefix.tokens ({self.shared_prefix.tokens}) must be less than the shortest prompt "
                f"({_shortest_length(self.input_tokens)} input_tokens), of which it is a part"
            )
        return self

    @property
    def open_loop(self) -> bool:
        """Requests come on a schedule and do not wait for answers."""
        return self.arrival.kind not in (Arrival.BATCH, Arrival.CLOSED_LOOP)

    @property
    def turns(self) -> int:
        return 1 if self.conversation is None else self.conversation.turns

    @property
    def request_count(self) -> int | None:
        """Requests per trial; None where only a trace knows."""
        if self.requests is not None:
            return self.requests
        if self.open_loop:
            rate = mean_arrival_rate(self.arrival)
            return (
                None
                if rate is None or self.duration is None
                else max(1, round(rate * self.duration)) * self.turns
            )
        rounds = 1 if self.arrival.kind is Arrival.BATCH else CLOSED_LOOP_ROUNDS
        return rounds * self.concurrency * self.turns

    @property
    def warm_up(self) -> "Workload":
        """What makes an engine ready for it: one request on each stream, with its whole prompt and the first tokens of
        an answer. All of it where a schedule or a history says what comes when."""
        if self.open_loop or self.conversation is not None:
            return self
        shorter = {
            "requests": self.concurrency,
            "output_tokens": min(WARM_UP_TOKENS, longest_length(self.output_tokens)),
        }
        return self.model_copy(update=shorter)

    @property
    def context_tokens(self) -> int:
        """The longest request with its answer; the last turn of a conversation holds all of it."""
        return self.turns * (longest_length(self.input_tokens) + longest_length(self.output_tokens))

    @property
    def files(self) -> tuple[tuple[tuple[str, ...], str], ...]:
        """Files that must exist besides the study file: the field that names each, and its name."""
        found: list[tuple[tuple[str, ...], str]] = []
        if self.text is not None:
            found.append((("text", "file"), self.text.file))
        if isinstance(self.arrival, Trace):
            found.append((("arrival", "file"), self.arrival.file))
        return tuple(found)


def _shape(name: str, concurrency: int, input_tokens: int, output_tokens: int) -> Workload:
    return Workload(
        name=name, concurrency=concurrency, input_tokens=input_tokens, output_tokens=output_tokens
    )


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
