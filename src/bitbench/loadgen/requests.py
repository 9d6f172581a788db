"""The requests of a trial, made before the clock starts.

The workload and the seed alone decide when each request is due, what it asks, and its bytes.
"""

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
    read_input_trace,
    read_usable_texts,
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
    get_longest_length,
)
from bitbench.util.http.connection import parse_address
from bitbench.util.version import __version__


def _request_generator(seed: tuple[int, ...], purpose: str) -> np.random.Generator:
    """Return the random generator for one purpose.

    Each purpose has its own numbers, so that a workload with one more purpose keeps the others.
    """
    return np.random.default_rng((*seed, crc32(purpose.encode())))


Times = npt.NDArray[np.float64]


def open_loop_times(workload: Workload, seed: tuple[int, ...]) -> Times:
    """Return when each request or conversation begins, the first at zero.

    Raise ValueError for an arrival without a schedule, such as a trace, which has its own times.
    """
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
    """A source of random prompts, reproducible from the seed and the number of the request.

    It uses the token ids of words if these are known. No two prompts of a trial begin with the
    same token, or if the vocabulary is too small, with the same two. So not even a part of a prompt
    can come from a prefix cache. Special ids never appear: an end-of-text in a prompt would change
    the work.
    """

    def __init__(self, vocabulary: Vocabulary, seed: tuple[int, ...]) -> None:
        words = _filter_usable(np.array(vocabulary.words, dtype=np.int64), vocabulary)
        self._allowed = (
            words if words.size else _filter_usable(np.arange(vocabulary.size), vocabulary)
        )
        if self._allowed.size == 0:
            raise ValueError(
                f"all {vocabulary.size} token ids of the vocabulary are special: "
                "no prompt can be generated"
            )
        self._seed = seed
        self._first = np.random.default_rng(seed).permutation(self._allowed)

    def prompt(self, request: int, tokens: int) -> Ids:
        """Return a prompt that begins as no other request's prompt does."""
        generator = np.random.default_rng((*self._seed, request))
        ids = self._allowed[generator.integers(self._allowed.size, size=tokens)]
        cycle, index = divmod(request, self._first.size)
        begin = self._first.take([index, index + cycle + 1], mode="wrap")
        ids[:2] = begin[:tokens]
        return ids

    def make_passage(self, name: str, tokens: int) -> Ids:
        """Return a passage that several prompts share: the same one for the same name."""
        generator = _request_generator(self._seed, name)
        return self._allowed[generator.integers(self._allowed.size, size=tokens)]


def _filter_usable(ids: Ids, vocabulary: Vocabulary) -> Ids:
    return ids[(ids >= 0) & (ids < vocabulary.size) & ~np.isin(ids, vocabulary.excluded)]


Prompt = list[int] | Text


@dataclass(frozen=True, slots=True)
class Ask:
    """The prompt of a request and how many tokens it asks for."""

    prompt: Prompt
    input_tokens: int | None  # None if only the server's tokenizer knows
    output_tokens: int


Counts = npt.NDArray[np.int32]


def _draw_lengths(length: Length, count: int, seed: tuple[int, ...], purpose: str) -> Counts:
    """Return `count` lengths.

    Lengths around a mean are set to `min` or `max` if they are beyond it.
    """
    if not isinstance(length, Lengths):
        return np.full(count, length, dtype=np.int32)
    generator = _request_generator(seed, purpose)
    if length.mean is None or length.sd is None:
        lengths = generator.integers(length.shortest, length.longest, size=count, endpoint=True)
        return lengths.astype(np.int32)
    drawn = np.rint(generator.normal(length.mean, length.sd, count))
    return np.clip(drawn, length.shortest, length.longest).astype(np.int32)


class Asks(Protocol):
    """The asks of a trial.

    An ask depends on its number alone, so that a process makes only the asks that it sends.
    """

    def ask(self, number: int) -> Ask: ...


class _TraceAsks:
    """The asks of a trace, with its lengths cut to what the workload allows.

    Prompts begin with the same tokens if their blocks in the trace do.
    """

    def __init__(self, job: LoadJob, rows: Sequence[TraceRow]) -> None:
        self._rows = rows
        self._source = PromptSource(job.vocabulary, job.seed)
        self._most_in = get_longest_length(job.workload.input_tokens)
        self._most_out = get_longest_length(job.workload.output_tokens)

    def ask(self, number: int) -> Ask:
        row = self._rows[number]
        length = min(row.input_tokens, self._most_in)
        needed = -(-length // MOONCAKE_BLOCK_TOKENS)
        parts: list[Ids] = []
        for block in row.blocks[:needed]:
            parts.append(self._source.make_passage(f"block {block}", MOONCAKE_BLOCK_TOKENS))
        rest = length - len(parts) * MOONCAKE_BLOCK_TOKENS
        if rest > 0:
            parts.append(self._source.prompt(number, rest))
        prompt = np.concatenate(parts)[:length].tolist()
        return Ask(prompt, length, min(row.output_tokens, self._most_out))


class _TextAsks:
    """The texts of a file in a seeded random order. They repeat if the file has too few."""

    def __init__(self, job: LoadJob, count: int) -> None:
        self._texts = read_usable_texts(job.workload, job.folder)
        self._order = _request_generator(job.seed, "order of texts").permutation(len(self._texts))
        self._outputs = _draw_lengths(job.workload.output_tokens, count, job.seed, "output lengths")

    def ask(self, number: int) -> Ask:
        text = self._texts[self._order[number % len(self._texts)]]
        return Ask(text, None, int(self._outputs[number]))


class _RandomAsks:
    """Random asks, turn after turn of each conversation.

    A workload without conversations has one turn in each. The history of a later turn has made-up
    answers of the requested length, not the server's. So requests are the same for every config,
    and known before the first one is sent.
    """

    def __init__(self, job: LoadJob, count: int) -> None:
        workload = job.workload
        seed = job.seed
        self._turns = workload.turns
        self._source = PromptSource(job.vocabulary, seed)
        self._inputs = _draw_lengths(workload.input_tokens, count, seed, "input lengths")
        self._outputs = _draw_lengths(workload.output_tokens, count, seed, "output lengths")
        self._shared, self._sharing = _make_shared_prefix(workload, count, seed, self._source)

    def ask(self, number: int) -> Ask:
        history: list[Ids] = []
        for earlier in range(number - number % self._turns, number):
            history.append(self._make_question(earlier))
            answer_tokens = int(self._outputs[earlier])
            history.append(self._source.make_passage(f"answer {earlier}", answer_tokens))
        prompt = np.concatenate([*history, self._prefix(number), self._make_question(number)])
        return Ask(prompt.tolist(), prompt.size, int(self._outputs[number]))

    def _prefix(self, number: int) -> Ids:
        return self._shared if self._sharing[number] else self._shared[:0]

    def _make_question(self, number: int) -> Ids:
        """Return the new part of a prompt, without the history and the shared prefix."""
        return self._source.prompt(number, int(self._inputs[number]) - self._prefix(number).size)


def _make_shared_prefix(
    workload: Workload, count: int, seed: tuple[int, ...], source: PromptSource
) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Return the shared prefix, and which prompts have it: exactly their share, up to rounding."""
    shared = workload.shared_prefix
    if shared is None:
        return np.empty(0, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    order = _request_generator(seed, "shared prefixes").permutation(count)
    return source.make_passage("shared prefix 0", shared.tokens), order < round(
        shared.share * count
    )


PATHS = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}


def request_bytes(endpoint: Endpoint, ask: Ask, *, api: Api, batch_size: int | None) -> bytes:
    """Return a streaming request with greedy sampling and the usage in its last chunk.

    `batch_size` tells a server that runs static batches how many requests belong together.
    """
    body = json.dumps(
        {
            "model": endpoint.model,
            **_make_prompt_field(ask, api),
            "max_tokens": ask.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **endpoint.extra_body,
        },
        separators=(",", ":"),
    ).encode()
    headers = {
        "Host": parse_address(endpoint.url).header,
        "User-Agent": f"bitbench/{__version__}",
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
    }
    if not endpoint.keeps_connections:
        # The answer then says so too, and the next request gets a new connection.
        headers["Connection"] = "close"
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    if endpoint.batch_header is not None and batch_size is not None:
        headers[endpoint.batch_header] = str(endpoint.batch_size or batch_size)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {PATHS[api]} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def _make_prompt_field(ask: Ask, api: Api) -> dict[str, Json]:
    if api is Api.COMPLETIONS:
        return {"prompt": ask.prompt}
    if isinstance(ask.prompt, str):
        return {"messages": [{"role": "user", "content": ask.prompt}]}
    return {"messages": ask.prompt}


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request with its bytes and the time when it is due.

    `at_s` counts from the start of the trial. With None, the request is due `think_s` after the end
    of the one before it on its `stream`. A stream is a client that waits for its answers. It is
    None if requests come on a schedule (open loop).
    """

    number: int  # within the trial, over all workers
    data: bytes
    stream: int | None
    at_s: float | None
    asked_input_tokens: int | None
    asked_output_tokens: int | None
    most_output_tokens: int  # upper limit for its answer, or the exact length if that is requested
    think_s: float = 0.0  # only used if `at_s` is None


class Slots(NamedTuple):
    """When requests are due, and the number of the ask of each."""

    ask: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]  # -1 without a stream
    at_s: Times  # NaN if it follows the request before it on its stream

    def only(self, positions: npt.NDArray[np.int64]) -> "Slots":
        """Return the slots at these positions."""
        return Slots(self.ask[positions], self.stream[positions], self.at_s[positions])


class RequestPlan:
    """The requests of one process, in the order in which they begin as far as that is known.

    It knows in advance when each request is due. It makes a request when it is needed, or ahead.
    """

    def __init__(
        self, job: LoadJob, asks: Asks, numbers: npt.NDArray[np.int64], slots: Slots
    ) -> None:
        workload = job.workload
        endpoint = job.endpoint
        if not workload.output_forced:
            extra_body = dict(endpoint.extra_body)
            extra_body.pop("ignore_eos", None)
            endpoint = replace(endpoint, extra_body=extra_body)
        self.slots = slots
        self._workload = workload
        self._endpoint = endpoint
        self._asks = asks
        self._numbers = numbers
        self._think_s = workload.conversation.think if workload.conversation else 0.0
        self._batch_size = None if workload.open_loop else workload.concurrency
        self._made: dict[int, PlannedRequest] = {}
        self._taken: set[int] = set()  # positions that were taken before they were made ahead
        self._ahead = 0  # positions before it are made

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[PlannedRequest]:
        return map(self.make, range(len(self)))

    def make(self, position: int) -> PlannedRequest:
        """Make the request at a position."""
        slots = self.slots
        ask = self._asks.ask(int(slots.ask[position]))
        api = self._workload.api
        at_s = slots.at_s[position]
        due_s = None if np.isnan(at_s) else float(at_s)
        exact_tokens = ask.output_tokens if self._workload.output_forced else None
        return PlannedRequest(
            number=int(self._numbers[position]),
            data=request_bytes(self._endpoint, ask, api=api, batch_size=self._batch_size),
            stream=self.stream(position),
            at_s=due_s,
            asked_input_tokens=ask.input_tokens,
            asked_output_tokens=exact_tokens,
            most_output_tokens=ask.output_tokens,
            think_s=self.think_s(position),
        )

    def think_s(self, position: int) -> float:
        """Return the pause between the end of the request before it on its stream and this one."""
        return self._think_s if self.slots.ask[position] % self._workload.turns else 0.0

    def stream(self, position: int) -> int | None:
        """Return the stream of a request, or None if it has none."""
        stream = int(self.slots.stream[position])
        return None if stream < 0 else stream

    def make_ahead(self, count: int = 1) -> None:
        """Make the next `count` requests."""
        until = min(self._ahead + count, len(self))
        for position in range(self._ahead, until):
            if position in self._taken:
                self._taken.remove(position)
            else:
                self._made[position] = self.make(position)
        self._ahead = until

    def take(self, position: int) -> PlannedRequest:
        """Return a request. It can be taken only once."""
        if position >= self._ahead:
            self._taken.add(position)
            return self.make(position)
        return self._made.pop(position)


def plan_requests(
    job: LoadJob,
    owns: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
    | None = None,
) -> RequestPlan:
    """Return all requests of a trial, or only the requests that the caller `owns`.

    The same job gives the same requests at the same times. Nothing depends on an answer.
    """
    asks, slots = _plan_job(job)
    numbers = np.arange(slots.ask.size)
    if owns is not None:
        numbers = numbers[owns(numbers, slots.stream)]
    return RequestPlan(job, asks, numbers, slots.only(numbers))


def _plan_job(job: LoadJob) -> tuple[Asks, Slots]:
    """Return the asks of a job, and when each is due."""
    workload = job.workload
    if isinstance(workload.arrival, Trace):
        rows = read_input_trace(workload, job.folder)
        at_s = np.array([row.at_s for row in rows]) / workload.arrival.speed
        slots = Slots(np.arange(len(rows)), np.full(len(rows), -1), at_s)
        return _TraceAsks(job, rows), slots
    count = workload.request_count
    assert count is not None
    asks = _RandomAsks(job, count) if workload.text is None else _TextAsks(job, count)
    slots = _plan_schedule(job) if workload.open_loop else _plan_streams(workload, count)
    return asks, slots


def _plan_schedule(job: LoadJob) -> Slots:
    """Return the slots of an open loop.

    Conversations begin when they are due. Their later turns follow the answers.
    """
    turns = job.workload.turns
    times = open_loop_times(job.workload, job.seed)
    turn, conversation = np.divmod(np.arange(turns * times.size), times.size)
    stream = conversation if turns > 1 else np.full(turn.size, -1)
    at_s = np.where(turn == 0, times[conversation], np.nan)
    return Slots(conversation * turns + turn, stream, at_s)


def _plan_streams(workload: Workload, count: int) -> Slots:
    """Return the slots of a closed loop.

    `concurrency` streams begin at zero. Each continues when its last answer is complete.
    """
    turns = workload.turns
    streams = workload.concurrency
    conversation, turn = np.divmod(np.arange(count // turns * turns), turns)
    order = np.lexsort((conversation, turn, conversation // streams))
    conversation = conversation[order]
    turn = turn[order]
    is_first = (conversation < streams) & (turn == 0)
    return Slots(
        ask=conversation * turns + turn,
        stream=conversation % streams,
        at_s=np.where(is_first, 0.0, np.nan),
    )
