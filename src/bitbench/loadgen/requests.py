"""The requests of a trial, made before the clock starts: when each is due, what it asks, and its bytes, from the
workload and the seed alone."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from bitbench.loadgen.inputs import (
    MOONCAKE_BLOCK_TOKENS,
    Text,
    TraceRow,
    input_trace_rows,
    usable_texts,
)
from bitbench.ports import Endpoint, LoadJob, Vocabulary
from bitbench.study.base import Json
from bitbench.study.workload import (
    Api,
    Constant,
    Length,
    Lengths,
    Poisson,
    Trace,
    Workload,
    longest_length,
)
from bitbench.util.http.connection import connection_address
from bitbench.util.version import __version__


def _request_generator(seed: tuple[int, ...], purpose: str) -> np.random.Generator:
    """One stream of numbers for each purpose, so that a workload that uses one more keeps the others."""
    return np.random.default_rng((*seed, crc32(purpose.encode())))


Times = npt.NDArray[np.float64]


def open_loop_times(workload: Workload, seed: tuple[int, ...]) -> Times:
    """When each request, or each conversation, begins. The first one at zero; a trace has its own times."""
    assert workload.request_count is not None
    count = workload.request_count // workload.turns
    arrival = workload.arrival
    if isinstance(arrival, Constant):
        return np.arange(count) / arrival.rate
    if isinstance(arrival, Poisson):
        gaps = _request_generator(seed, "arrivals").exponential(1 / arrival.rate, count - 1)
        return np.concatenate([[0.0], np.cumsum(gaps)])
    raise ValueError(f"arrival {arrival.kind} has no schedule of its own")


Ids = npt.NDArray[np.int64]


class PromptSource:
    """Random token ids, of words where they are known, reproducible from the seed and the number of the request.

    No two prompts of a trial begin with the same token (as long as the vocabulary lasts; then not with the same two),
    so not even a part of one can come out of a prefix cache. Special ids never appear: an end-of-text inside a prompt
    would change the work.
    """

    def __init__(self, vocabulary: Vocabulary, seed: tuple[int, ...]) -> None:
        words = _usable(np.array(vocabulary.words, dtype=np.int64), vocabulary)
        self._allowed = words if words.size else _usable(np.arange(vocabulary.size), vocabulary)
        if self._allowed.size == 0:
            raise ValueError(
                f"all {vocabulary.size} token ids of the vocabulary are special: no prompt can be generated"
            )
        self._seed = seed
        self._first = np.random.default_rng(seed).permutation(self._allowed)

    def prompt(self, request: int, tokens: int) -> Ids:
        """Begins as no other request's prompt does."""
        draw = np.random.default_rng((*self._seed, request)).integers(
            self._allowed.size, size=tokens
        )
        ids = self._allowed[draw]
        times, place = divmod(request, self._first.size)
        begin = self._first.take([place, place + times + 1], mode="wrap")
        ids[:2] = begin[:tokens]
        return ids

    def passage(self, name: str, tokens: int) -> Ids:
        """Always the same for the same name: what several prompts have in common."""
        return self._allowed[
            _request_generator(self._seed, name).integers(self._allowed.size, size=tokens)
        ]


def _usable(ids: Ids, vocabulary: Vocabulary) -> Ids:
    return ids[(ids >= 0) & (ids < vocabulary.size) & ~np.isin(ids, vocabulary.excluded)]


Prompt = list[int] | Text


@dataclass(frozen=True, slots=True)
class Ask:
    prompt: Prompt
    input_tokens: int | None  # None where only the server's tokenizer knows
    output_tokens: int


Counts = npt.NDArray[np.int32]


def _draw_lengths(length: Length, count: int, seed: tuple[int, ...], purpose: str) -> Counts:
    """So many lengths; around the mean where there is one, and then set to `min` or `max` if beyond."""
    if not isinstance(length, Lengths):
        return np.full(count, length, dtype=np.int32)
    draw = _request_generator(seed, purpose)
    if length.mean is None or length.sd is None:
        return draw.integers(length.shortest, length.longest, size=count, endpoint=True).astype(
            np.int32
        )
    drawn = np.rint(draw.normal(length.mean, length.sd, count))
    return np.clip(drawn, length.shortest, length.longest).astype(np.int32)


class Asks(Protocol):
    """What a trial asks. Each ask is drawn by its number alone, so that a process draws its own ones only."""

    def ask(self, number: int) -> Ask: ...


class _TraceAsks:
    """As long as the trace says, cut to what the workload allows; prompts begin alike where its blocks do."""

    def __init__(self, job: LoadJob, rows: Sequence[TraceRow]) -> None:
        self._rows = rows
        self._source = PromptSource(job.vocabulary, job.seed)
        self._most_in = longest_length(job.workload.input_tokens)
        self._most_out = longest_length(job.workload.output_tokens)

    def ask(self, number: int) -> Ask:
        row = self._rows[number]
        length = min(row.input_tokens, self._most_in)
        needed = -(-length // MOONCAKE_BLOCK_TOKENS)
        parts = [
            self._source.passage(f"block {block}", MOONCAKE_BLOCK_TOKENS)
            for block in row.blocks[:needed]
        ]
        rest = length - len(parts) * MOONCAKE_BLOCK_TOKENS
        if rest > 0:
            parts.append(self._source.prompt(number, rest))
        return Ask(
            np.concatenate(parts)[:length].tolist(), length, min(row.output_tokens, self._most_out)
        )


class _TextAsks:
    """Texts in a seeded random order; once each, and then again where a file has fewer than are asked for."""

    def __init__(self, job: LoadJob, count: int) -> None:
        self._texts = usable_texts(job.workload, job.folder)
        self._order = _request_generator(job.seed, "order of texts").permutation(len(self._texts))
        self._outputs = _draw_lengths(job.workload.output_tokens, count, job.seed, "output lengths")

    def ask(self, number: int) -> Ask:
        text = self._texts[self._order[number % len(self._texts)]]
        return Ask(text, None, int(self._outputs[number]))


class _RandomAsks:
    """Turn after turn of each conversation; a workload without conversations has one turn in each.

    The history of a later turn holds made-up answers of the length that was asked for, not those of the server: so
    requests are the same for every config, and known before the first one is sent.
    """

    def __init__(self, job: LoadJob, count: int) -> None:
        workload, seed = job.workload, job.seed
        self._turns = workload.turns
        self._source = PromptSource(job.vocabulary, seed)
        self._inputs = _draw_lengths(workload.input_tokens, count, seed, "input lengths")
        self._outputs = _draw_lengths(workload.output_tokens, count, seed, "output lengths")
        self._shared, self._sharing = _shared_prefix(workload, count, seed, self._source)

    def ask(self, number: int) -> Ask:
        history: list[Ids] = []
        for earlier in range(number - number % self._turns, number):
            history += [
                self._said(earlier),
                self._source.passage(f"answer {earlier}", int(self._outputs[earlier])),
            ]
        prompt = np.concatenate([*history, self._prefix(number), self._said(number)])
        return Ask(prompt.tolist(), prompt.size, int(self._outputs[number]))

    def _prefix(self, number: int) -> Ids:
        return self._shared if self._sharing[number] else self._shared[:0]

    def _said(self, number: int) -> Ids:
        return self._source.prompt(number, int(self._inputs[number]) - self._prefix(number).size)


def _shared_prefix(
    workload: Workload, count: int, seed: tuple[int, ...], source: PromptSource
) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Return what prompts begin with, and which prompts do. The share is met exactly, up to rounding."""
    shared = workload.shared_prefix
    if shared is None:
        return np.empty(0, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    order = _request_generator(seed, "shared prefixes").permutation(count)
    return source.passage("shared prefix 0", shared.tokens), order < round(shared.share * count)


PATHS = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}


def request_bytes(endpoint: Endpoint, ask: Ask, *, api: Api, batch_size: int | None) -> bytes:
    """A streaming request with greedy sampling and the usage in its last chunk.

    `batch_size` is for a server that runs static batches: so many requests belong together.
    """
    body = json.dumps(
        {
            "model": endpoint.model,
            **_prompt(ask, api),
            "max_tokens": ask.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **endpoint.extra_body,
        },
        separators=(",", ":"),
    ).encode()
    headers = {
        "Host": connection_address(endpoint.url).header,
        "User-Agent": f"bitbench/{__version__}",
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
    }
    if not endpoint.keeps_connections:
        headers["Connection"] = (
            "close"  # then its answer says so too, and the next request gets a new one
        )
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    if endpoint.batch_header is not None and batch_size is not None:
        headers[endpoint.batch_header] = str(endpoint.batch_size or batch_size)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {PATHS[api]} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def _prompt(ask: Ask, api: Api) -> dict[str, Json]:
    if api is Api.COMPLETIONS:
        return {"prompt": ask.prompt}
    return {
        "messages": [{"role": "user", "content": ask.prompt}]
        if isinstance(ask.prompt, str)
        else ask.prompt
    }


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """`at_s` counts from the trial's start; None: `think_s` after the request before it on its `stream` has ended.

    A stream is one client that waits for its answers; None where requests come on a schedule (open loop).
    """

    number: int  # within the trial, over all workers
    data: bytes
    stream: int | None
    at_s: float | None
    asked_input_tokens: int | None
    asked_output_tokens: int | None
    most_output_tokens: int  # what its answer may have; the same where an exact length is asked for
    think_s: float = (
        0.0  # planned this long after the end of the one before; only where `at_s` is None
    )


class Slots(NamedTuple):
    """When requests are due, and which of the asks each is, by their number."""

    ask: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]  # -1: none
    at_s: Times  # NaN: after the request before it on its stream

    def only(self, places: npt.NDArray[np.int64]) -> "Slots":
        return Slots(self.ask[places], self.stream[places], self.at_s[places])


class RequestPlan:
    """The requests of one process, in the order in which they are begun as far as that is known. Only when they are due
    is known of all of them; each is made from that when it is wanted, or ahead of it."""

    def __init__(
        self, job: LoadJob, asks: Asks, numbers: npt.NDArray[np.int64], slots: Slots
    ) -> None:
        workload, endpoint = job.workload, job.endpoint
        if not workload.output_forced:
            extra = {
                name: value for name, value in endpoint.extra_body.items() if name != "ignore_eos"
            }
            endpoint = replace(endpoint, extra_body=extra)
        self.slots = slots
        self._workload, self._endpoint, self._asks, self._numbers = (
            workload,
            endpoint,
            asks,
            numbers,
        )
        self._think_s = workload.conversation.think if workload.conversation else 0.0
        self._batch_size = None if workload.open_loop else workload.concurrency
        self._made: dict[int, PlannedRequest] = {}
        self._taken: set[int] = set()  # before they were made ahead
        self._ahead = 0  # places before it were made

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[PlannedRequest]:
        return map(self.make, range(len(self)))

    def make(self, place: int) -> PlannedRequest:
        slots = self.slots
        ask = int(slots.ask[place])
        asked = self._asks.ask(ask)
        at_s = None if np.isnan(slots.at_s[place]) else float(slots.at_s[place])
        return PlannedRequest(
            number=int(self._numbers[place]),
            data=request_bytes(
                self._endpoint, asked, api=self._workload.api, batch_size=self._batch_size
            ),
            stream=self.stream(place),
            at_s=at_s,
            asked_input_tokens=asked.input_tokens,
            asked_output_tokens=asked.output_tokens if self._workload.output_forced else None,
            most_output_tokens=asked.output_tokens,
            think_s=self.think_s(place),
        )

    def think_s(self, place: int) -> float:
        """How long after the request before it on its stream it is due."""
        return self._think_s if self.slots.ask[place] % self._workload.turns else 0.0

    def stream(self, place: int) -> int | None:
        stream = int(self.slots.stream[place])
        return None if stream < 0 else stream

    def make_ahead(self, count: int = 1) -> None:
        """Make so many further requests."""
        until = min(self._ahead + count, len(self))
        for place in range(self._ahead, until):
            if place in self._taken:
                self._taken.remove(place)
            else:
                self._made[place] = self.make(place)
        self._ahead = until

    def take(self, place: int) -> PlannedRequest:
        """Return a request for the only time."""
        if place >= self._ahead:
            self._taken.add(place)
            return self.make(place)
        return self._made.pop(place)


def plan_requests(
    job: LoadJob,
    owns: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
    | None = None,
) -> RequestPlan:
    """Every request of the trial, or those that the caller `owns`, by their numbers and streams.

    The same job gives the same requests at the same times; nothing in it depends on an answer.
    """
    asks, slots = _plan(job)
    numbers = np.arange(slots.ask.size)
    if owns is not None:
        numbers = numbers[owns(numbers, slots.stream)]
    return RequestPlan(job, asks, numbers, slots.only(numbers))


def _plan(job: LoadJob) -> tuple[Asks, Slots]:
    workload = job.workload
    if isinstance(workload.arrival, Trace):
        rows = input_trace_rows(workload, job.folder)
        at_s = np.array([row.at_s for row in rows]) / workload.arrival.speed
        return _TraceAsks(job, rows), Slots(np.arange(len(rows)), np.full(len(rows), -1), at_s)
    count = workload.request_count
    assert count is not None
    asks = _RandomAsks(job, count) if workload.text is None else _TextAsks(job, count)
    return asks, _on_schedule(job) if workload.open_loop else _on_streams(workload, count)


def _on_schedule(job: LoadJob) -> Slots:
    """Conversations begin when they are due, whatever the server does; their later turns follow their answers."""
    turns = job.workload.turns
    times = open_loop_times(job.workload, job.seed)
    turn, conversation = np.divmod(np.arange(turns * times.size), times.size)
    return Slots(
        ask=conversation * turns + turn,
        stream=np.full(turn.size, -1) if turns == 1 else conversation,
        at_s=np.where(turn == 0, times[conversation], np.nan),
    )


def _on_streams(workload: Workload, count: int) -> Slots:
    """`concurrency` streams begin at zero; each goes on when its last answer is complete."""
    turns, streams = workload.turns, workload.concurrency
    conversation, turn = np.divmod(np.arange(count // turns * turns), turns)
    order = np.lexsort((conversation, turn, conversation // streams))
    conversation, turn = conversation[order], turn[order]
    is_first = (conversation < streams) & (turn == 0)
    return Slots(
        ask=conversation * turns + turn,
        stream=conversation % streams,
        at_s=np.where(is_first, 0.0, np.nan),
    )
