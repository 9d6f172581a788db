"""The requests of a trial, made before the clock starts: when each is due, what it asks, and its bytes, from the
workload and the seed alone."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from bitbench import __version__
from bitbench.loadgen.inputs import MOONCAKE_BLOCK_TOKENS, Text, TraceRow, input_trace_rows, usable_texts
from bitbench.ports import Endpoint, LoadJob, Vocabulary
from bitbench.study.base import Json
from bitbench.study.workload import (
    Api,
    Constant,
    Gamma,
    Length,
    Lengths,
    Poisson,
    Ramp,
    Trace,
    Workload,
    longest_length,
)
from bitbench.util.http.connection import connection_address


def _request_generator(seed: tuple[int, ...], purpose: str) -> np.random.Generator:
    """One stream of numbers for each purpose, so that a workload that uses one more keeps the others."""
    return np.random.default_rng((*seed, crc32(purpose.encode())))


Times = npt.NDArray[np.float64]


def open_loop_times(workload: Workload, seed: tuple[int, ...]) -> Times:
    """When each request, or each conversation, begins. The first one at zero; a trace has its own times."""
    assert workload.request_count is not None
    count = workload.request_count // workload.turns
    arrival = workload.arrival
    draw = _request_generator(seed, "arrivals")
    match arrival:
        case Constant():
            return np.arange(count) / arrival.rate
        case Poisson():
            return _from_gaps(draw.exponential(1 / arrival.rate, count - 1))
        case Gamma():
            return _from_gaps(draw.gamma(arrival.burstiness, 1 / (arrival.rate * arrival.burstiness), count - 1))
        case Ramp():
            return _ramp(arrival, count, workload.duration)
        case _:
            raise ValueError(f"arrival {arrival.kind} has no schedule of its own")


def _from_gaps(gaps: Times) -> Times:
    return np.concatenate([[0.0], np.cumsum(gaps)])


def _ramp(ramp: Ramp, count: int, duration_s: float | None) -> Times:
    """Request k is due when the rate, added up from the start, has reached k.

    With the rate a + s·t that is a·t + s·t²/2 = k, so t = 2k / (a + √(a² + 2sk)): this form of the solution also
    holds for a rate that does not change or that starts at zero.
    """
    span_s = duration_s or 2 * count / (ramp.from_rate + ramp.to_rate)
    slope = (ramp.to_rate - ramp.from_rate) / span_s
    reached = np.arange(count, dtype=np.float64)
    rate_then = np.sqrt(np.maximum(ramp.from_rate**2 + 2 * slope * reached, 0.0))
    times = np.zeros(count)
    times[1:] = 2 * reached[1:] / (ramp.from_rate + rate_then[1:])
    return times


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
        draw = np.random.default_rng((*self._seed, request)).integers(self._allowed.size, size=tokens)
        ids = self._allowed[draw]
        times, place = divmod(request, self._first.size)
        begin = self._first.take([place, place + times + 1], mode="wrap")
        ids[:2] = begin[:tokens]
        return ids

    def passage(self, name: str, tokens: int) -> Ids:
        """Always the same for the same name: what several prompts have in common."""
        return self._allowed[_request_generator(self._seed, name).integers(self._allowed.size, size=tokens)]


def _usable(ids: Ids, vocabulary: Vocabulary) -> Ids:
    return ids[(ids >= 0) & (ids < vocabulary.size) & ~np.isin(ids, vocabulary.excluded)]


Prompt = list[int] | Text


@dataclass(frozen=True, slots=True)
class Ask:
    prompt: Prompt
    input_tokens: int | None  # None where only the server's tokenizer knows
    output_tokens: int


def _draw_lengths(length: Length, count: int, seed: tuple[int, ...], purpose: str) -> list[int]:
    """So many lengths; around the mean where there is one, and then set to `min` or `max` if beyond."""
    if not isinstance(length, Lengths):
        return [length] * count
    draw = _request_generator(seed, purpose)
    if length.mean is None or length.sd is None:
        return [int(value) for value in draw.integers(length.shortest, length.longest, size=count, endpoint=True)]
    drawn = np.rint(draw.normal(length.mean, length.sd, count))
    return [int(value) for value in np.clip(drawn, length.shortest, length.longest)]


def _asks_from_trace(job: LoadJob, rows: Sequence[TraceRow]) -> Iterator[Ask]:
    """As long as the trace says, cut to what the workload allows; prompts begin alike where its blocks do."""
    source = PromptSource(job.vocabulary, job.seed)
    most_in, most_out = longest_length(job.workload.input_tokens), longest_length(job.workload.output_tokens)
    for number, row in enumerate(rows):
        length = min(row.input_tokens, most_in)
        needed = -(-length // MOONCAKE_BLOCK_TOKENS)
        blocks = [source.passage(f"block {block}", MOONCAKE_BLOCK_TOKENS) for block in row.blocks[:needed]]
        rest = max(length - len(blocks) * MOONCAKE_BLOCK_TOKENS, 0)
        parts = [*blocks, source.prompt(number, rest)] if rest else blocks
        yield Ask(np.concatenate(parts)[:length].tolist(), length, min(row.output_tokens, most_out))


def _asks_from_texts(job: LoadJob, count: int) -> Iterator[Ask]:
    """Texts in a seeded random order; once each, and then again where a file has fewer than are asked for."""
    texts = usable_texts(job.workload, job.folder)
    order = _request_generator(job.seed, "order of texts").permutation(len(texts))
    outputs = _draw_lengths(job.workload.output_tokens, count, job.seed, "output lengths")
    for number, output_tokens in enumerate(outputs):
        yield Ask(texts[order[number % len(texts)]], None, output_tokens)


def _asks_of_random_ids(job: LoadJob, count: int) -> Iterator[Ask]:
    """Turn after turn of each conversation; a workload without conversations has one turn in each.

    The history of a later turn holds made-up answers of the length that was asked for, not those of the server: so
    requests are the same for every config, and known before the first one is sent.
    """
    workload, seed = job.workload, job.seed
    source = PromptSource(job.vocabulary, seed)
    inputs = _draw_lengths(workload.input_tokens, count, seed, "input lengths")
    outputs = _draw_lengths(workload.output_tokens, count, seed, "output lengths")
    prefixes = _shared_prefixes(workload, count, seed, source)
    history: list[Ids] = []
    for number in range(count):
        if number % workload.turns == 0:
            history = []
        prefix = prefixes[number]
        said = source.prompt(number, inputs[number] - prefix.size)
        prompt = np.concatenate([*history, prefix, said])
        yield Ask(prompt.tolist(), prompt.size, outputs[number])
        if workload.turns > 1:
            history += [said, source.passage(f"answer {number}", outputs[number])]


def _shared_prefixes(workload: Workload, count: int, seed: tuple[int, ...], source: PromptSource) -> list[Ids]:
    """What each prompt begins with; empty for those that share nothing. The share is met exactly, up to rounding."""
    nothing = np.empty(0, dtype=np.int64)
    shared = workload.shared_prefix
    if shared is None:
        return [nothing] * count
    passages = [source.passage(f"shared prefix {number}", shared.tokens) for number in range(shared.prefixes)]
    draw = _request_generator(seed, "shared prefixes")
    has_one = draw.permutation(count) < round(shared.share * count)
    which = draw.integers(shared.prefixes, size=count)
    return [passages[which[number]] if has_one[number] else nothing for number in range(count)]


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
        headers["Connection"] = "close"  # then its answer says so too, and the next request gets a new one
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    if endpoint.batch_header is not None and batch_size is not None:
        headers[endpoint.batch_header] = str(endpoint.batch_size or batch_size)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {PATHS[api]} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def _prompt(ask: Ask, api: Api) -> dict[str, Json]:
    if api is Api.COMPLETIONS:
        return {"prompt": ask.prompt}
    return {"messages": [{"role": "user", "content": ask.prompt}] if isinstance(ask.prompt, str) else ask.prompt}


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
    think_s: float = 0.0  # planned this long after the end of the one before; only where `at_s` is None


class Slot(NamedTuple):
    """When a request is due, and which of the asks it is."""

    ask: int
    stream: int | None
    at_s: float | None
    think_s: float


def plan_requests(
    job: LoadJob, owns: Callable[[int, int | None], bool] = lambda _number, _stream: True
) -> list[PlannedRequest]:
    """Every request of the trial, in the order in which they are begun as far as that is known; or those that the
    caller `owns`, by their number and stream.

    The same job gives the same requests at the same times; nothing in it depends on an answer.
    """
    asks, slots = _plan(job)
    workload = job.workload
    batch_size = None if workload.open_loop else workload.concurrency
    own = [(number, slot) for number, slot in enumerate(slots) if owns(number, slot.stream)]
    wanted = {slot.ask for _, slot in own}
    endpoint = job.endpoint
    if not workload.output_forced:
        extra = {name: value for name, value in endpoint.extra_body.items() if name != "ignore_eos"}
        endpoint = replace(endpoint, extra_body=extra)
    # One after the other: as a list of numbers a prompt takes several times the room that its bytes do.
    made = {
        place: (
            request_bytes(endpoint, ask, api=workload.api, batch_size=batch_size),
            ask.input_tokens,
            ask.output_tokens,
        )
        for place, ask in enumerate(asks)
        if place in wanted
    }
    requests = []
    for number, slot in own:
        data, input_tokens, output_tokens = made[slot.ask]
        exactly = output_tokens if workload.output_forced else None
        requests.append(
            PlannedRequest(
                number, data, slot.stream, slot.at_s, input_tokens, exactly, output_tokens, think_s=slot.think_s
            )
        )
    return requests


def _plan(job: LoadJob) -> tuple[Iterator[Ask], Sequence[Slot]]:
    workload = job.workload
    if isinstance(workload.arrival, Trace):
        rows = input_trace_rows(workload, job.folder)
        speed = workload.arrival.speed
        slots = [Slot(number, None, row.at_s / speed, 0.0) for number, row in enumerate(rows)]
        return _asks_from_trace(job, rows), slots
    count = workload.request_count
    assert count is not None
    asks = _asks_of_random_ids(job, count) if workload.text is None else _asks_from_texts(job, count)
    return asks, _on_schedule(job) if workload.open_loop else _on_streams(workload, count)


def _on_schedule(job: LoadJob) -> list[Slot]:
    """Conversations begin when they are due, whatever the server does; their later turns follow their answers."""
    turns = job.workload.turns
    times = open_loop_times(job.workload, job.seed)
    think_s = job.workload.conversation.think if job.workload.conversation else 0.0
    return [
        Slot(
            ask=conversation * turns + turn,
            stream=None if turns == 1 else conversation,
            at_s=float(due) if turn == 0 else None,
            think_s=think_s if turn else 0.0,
        )
        for turn in range(turns)
        for conversation, due in enumerate(times)
    ]


def _on_streams(workload: Workload, count: int) -> list[Slot]:
    """`concurrency` streams begin at zero; each goes on when its last answer is complete."""
    turns, streams = workload.turns, workload.concurrency
    think_s = workload.conversation.think if workload.conversation else 0.0
    conversations = count // turns
    slots = []
    for first in range(0, conversations, streams):
        for turn in range(turns):
            for conversation in range(first, min(first + streams, conversations)):
                slots.append(
                    Slot(
                        ask=conversation * turns + turn,
                        stream=conversation % streams,
                        at_s=0.0 if first == turn == 0 else None,
                        think_s=think_s if turn else 0.0,
                    )
                )
    return slots
