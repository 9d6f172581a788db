"""Decodes answers after they were timed: events of a stream, and rows of requests/*.parquet."""

import re
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from enum import Enum, auto
from math import sqrt
from typing import NamedTuple

from bitbench.loadgen.connection import Exchange
from bitbench.records.strict_reader import make_arrow_schema
from bitbench.records.tables import REQUEST_COLUMNS
from bitbench.study.base import Json
from bitbench.util.http.connection import (
    REDIRECTS,
    describe_error,
    describe_redirect,
    find_error_message,
    parse_json_object,
)
from bitbench.util.http.response import EVENT_BYTES, ResponseReader
from bitbench.util.text import quote
from bitbench.util.units import show_bytes

# Lines end with CRLF, LF or CR, and an empty line ends an event.
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_STEP = 32  # events to decode before the event loop gets a turn


class Event(NamedTuple):
    """A server-sent event."""

    data: bytes
    arrived: float  # when its last byte arrived (all events of one read have the same time)


class TooMuch(Exception):
    """An event is larger than EVENT_BYTES."""


def events(response: ResponseReader) -> Iterator[Event]:
    """Yield the events that have data, in order. Comments, pings and other fields are skipped.

    An event at the end of the body counts even without its empty line: some servers end with a bare
    `data: [DONE]`, and an event that was really cut off does not parse. Raise TooMuch for an event
    that is too large.
    """
    body = response.body
    part_ends = response.part_ends
    times = response.times
    start = 0
    for end, following in _iter_boundaries(body):
        data = _parse_data(body[start:end])
        if data is not None:
            yield Event(data, times[bisect_left(part_ends, following)])
        start = following
    data = _parse_data(body[start:])
    if data is not None:
        yield Event(data, times[-1])


def _iter_boundaries(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each event ends and where the next one begins."""
    if b"\r" in body:
        yield from (boundary.span() for boundary in _EVENT_END.finditer(body))
        return
    # Nearly every server writes these line ends, and finding them takes a tenth of the time.
    end = body.find(b"\n\n")
    while end >= 0:
        yield end, end + 2
        end = body.find(b"\n\n", end + 2)


def _parse_data(event: bytes) -> bytes | None:
    """Return the data of an event, or None if it has none. Raise TooMuch."""
    if len(event) > EVENT_BYTES:
        raise TooMuch(f"an event is larger than {show_bytes(EVENT_BYTES)}")
    lines: list[bytes] = []
    for line in event.splitlines():
        if line.startswith(b"data: "):
            lines.append(line[6:])
        elif line.startswith(b"data:"):
            lines.append(line[5:])
    return b"\n".join(lines) if lines else None


_DONE = b"[DONE]"
# Fields in which chat servers send a model's reasoning. Both names are in use.
_REASONING = ("reasoning_content", "reasoning")
_TEXT_FIELDS = ("content", "tool_calls", *_REASONING)


class StreamedAnswer(NamedTuple):
    """The times and token counts of one answer."""

    chunk_times: list[float]  # arrival of each chunk with output: reasoning or answer
    first_answer: float | None  # arrival of the first chunk that contained a part of the answer
    input_tokens: int | None
    output_tokens: int | None
    # Why the answer does not count: one of REQUEST_STATUSES, and a sentence.
    problem: tuple[str, str] | None
    cached_tokens: int | None  # input tokens from a prefix cache
    timed_tokens: int | None  # output tokens after the first chunk, or 0 if that is unknown


def decode_answer(response: ResponseReader, key: str) -> Generator[None, None, StreamedAnswer]:
    """Decode an answer in steps of a few events, and return it.

    Token counts come from `usage`. The key does not appear in the text of a problem.
    """
    stream = _Stream(key)
    try:
        for number, event in enumerate(events(response), start=1):
            stream.take(event)
            if number % _STEP == 0:
                yield
    except TooMuch as problem:
        return stream.answer()._replace(problem=("oversized", str(problem)))
    return stream.answer()


class _Chunk(NamedTuple):
    arrived: float
    text_bytes: int


class _Stream:
    """The state of one stream after the events so far.

    The first token is the first chunk that contains text: gateways send empty chunks before it. A
    later token may decode to no text (a part of a character). So a later empty chunk counts as
    output, unless there are more chunks than tokens. An empty chunk that only announces the end
    counts if there are fewer chunks than tokens. One that only announces the role never counts.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._chunks: list[_Chunk] = []  # from the first chunk with text
        self._leading: list[_Chunk] = []  # empty chunks before it
        self._with_text = 0  # chunks that contained text
        self._first_answer: float | None = None
        self._reasoned = False
        self._empty_end: _Chunk | None = None
        self._usage: Json = None
        self._done = False
        self._error: str | None = None

    def take(self, event: Event) -> None:
        """Update the state with the next event."""
        if event.data == _DONE:
            self._done = True
            return
        message = parse_json_object(event.data)
        if message is None:
            data = quote(event.data, self._key)
            self._error = self._error or f"an event is not a JSON object: {data}"
            return
        if message.get("error"):
            reason = find_error_message(message, self._key) or quote(event.data, self._key)
            self._error = self._error or f"the server aborted: {reason}"
        self._usage = message.get("usage") or self._usage
        choice = _get_first_choice(message)
        if choice is not None:
            self._take_chunk(choice, event.arrived)

    def _take_chunk(self, choice: dict[str, Json], arrived: float) -> None:
        part = _classify_part(choice)
        chunk = _Chunk(arrived, _count_text_bytes(choice))
        if part in (_ChunkPart.ANSWER, _ChunkPart.REASONING):
            self._with_text += 1
            self._chunks.append(chunk)
            self._reasoned = self._reasoned or part is _ChunkPart.REASONING
            if self._first_answer is None and part is _ChunkPart.ANSWER:
                self._first_answer = arrived
        elif part is _ChunkPart.EMPTY and choice.get("finish_reason"):
            self._empty_end = chunk
        elif part is _ChunkPart.EMPTY:
            chunks = self._chunks or self._leading
            chunks.append(chunk)

    def answer(self) -> StreamedAnswer:
        """Return the times and token counts of the complete stream."""
        input_tokens = _count(self._usage, "prompt_tokens")
        output_tokens = _count(self._usage, "completion_tokens")
        chunks = self._list_output_chunks(output_tokens)
        times = [chunk.arrived for chunk in chunks]
        first_answer = self._first_answer
        if times and not self._with_text:
            first_answer = times[0]
        timed_tokens: int | None = None
        if output_tokens is not None:
            timed_tokens = _estimate_timed_tokens(
                [chunk.text_bytes for chunk in chunks], output_tokens
            )
        cached_tokens: int | None = None
        if isinstance(self._usage, dict):
            cached_tokens = _count(self._usage.get("prompt_tokens_details"), "cached_tokens")
        return StreamedAnswer(
            times,
            first_answer,
            input_tokens,
            output_tokens,
            self._find_problem(input_tokens, output_tokens),
            cached_tokens,
            timed_tokens,
        )

    def _list_output_chunks(self, tokens: int | None) -> list[_Chunk]:
        """Return the chunks that count as output."""
        if tokens is None:
            return self._chunks
        end = [self._empty_end] if self._empty_end is not None else []
        if not self._with_text:  # tokens without any text belong to the latest chunks
            empty = [*self._leading, *end]
            return empty[max(len(empty) - tokens, 0) :]
        if len(self._chunks) > tokens:  # some empty chunks are not tokens, and it is unknown which
            return [chunk for chunk in self._chunks if chunk.text_bytes]
        return [*self._chunks, *end] if len(self._chunks) < tokens else self._chunks

    def _find_problem(
        self, input_tokens: int | None, output_tokens: int | None
    ) -> tuple[str, str] | None:
        """Return why the answer does not count (a status and a sentence), or None."""
        if self._error is not None:
            return "broken", self._error
        if not self._done:
            return "broken", "the stream ended without [DONE]"
        if input_tokens is None or output_tokens is None:
            return "broken", "the stream ended without usage, so its token count is unknown"
        if self._with_text > output_tokens:
            sent = f"the stream has {self._with_text:,} chunks with text"
            return "contradictory", f"{sent}, but its usage counts {output_tokens:,} output tokens"
        return None


def _get_first_choice(message: dict[str, Json]) -> dict[str, Json] | None:
    choices = message.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None


class _ChunkPart(Enum):
    ANSWER = auto()
    REASONING = auto()
    EMPTY = auto()
    ROLE = auto()


def _classify_part(choice: dict[str, Json]) -> _ChunkPart:
    """Return what a chunk contains.

    A completion has `text`. A chat has a `delta` with content, reasoning or tool calls.
    """
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return _ChunkPart.ANSWER if choice.get("text") else _ChunkPart.EMPTY
    if delta.get("content") or delta.get("tool_calls"):
        return _ChunkPart.ANSWER
    if any(delta.get(name) for name in _REASONING):
        return _ChunkPart.REASONING
    if delta.get("role"):
        return _ChunkPart.ROLE
    return _ChunkPart.EMPTY


def _count_text_bytes(choice: dict[str, Json]) -> int:
    """Return the bytes of text in a chunk, with reasoning and tool calls."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return len(str(choice.get("text") or "").encode("utf-8", "replace"))
    size = 0
    for name in _TEXT_FIELDS:
        text = delta.get(name)
        if text:
            size += len(str(text).encode("utf-8", "replace"))
    return size


# English tokens of common vocabularies have 4 to 5 bytes, with a standard deviation of about half.
_LENGTH_SPREAD = 0.5
# Multiple of the mean chunk's text: a longer first chunk contains more tokens than the others.
_LONE_TOKEN = 3.0
_LARGEST_ERROR = 0.06  # for one answer, so that the mean over ten is within 2 %


def _estimate_timed_tokens(sizes: Sequence[int], tokens: int) -> int:
    """Return how many tokens came after the first chunk.

    If chunks are like single tokens, it is all but one. Otherwise the first chunk's share of the
    text decides. The result is 0 if that is too uncertain, such as for an answer in one chunk.
    """
    count = len(sizes)
    total = sum(sizes)
    if count < 2 or tokens < count or not total:
        return tokens - 1 if 1 < count == tokens else 0
    is_like_others = sizes[0] * count <= _LONE_TOKEN * total
    if count == tokens or (2 * count > tokens and is_like_others):
        return tokens - 1
    by_text = round(tokens * sizes[0] / total)
    first = min(max(by_text, 1), tokens - count + 1)
    later = tokens - first
    error = _LENGTH_SPREAD * sqrt(first / (tokens * later))
    return later if error <= _LARGEST_ERROR else 0


def _count(usage: Json, name: str) -> int | None:
    """Return a token count from `usage`, or None if it is missing or not a valid count."""
    if not isinstance(usage, dict):
        return None
    count = usage.get(name)
    if not isinstance(count, int) or isinstance(count, bool):
        return None
    return count if 0 <= count < 2**31 else None


_TOO_MANY = 429  # HTTP's "Too Many Requests"
_SHOWN = 80  # characters of a header to quote

REQUEST_SCHEMA = make_arrow_schema(REQUEST_COLUMNS)


def make_request_row(
    exchange: Exchange, zero: float, key: str
) -> Generator[None, None, dict[str, Json]]:
    """Decode the answer of a request in steps of a few events, and return its row.

    Times count from `zero`. The key does not appear in the row.
    """
    request = exchange.request
    answer = yield from decode_answer(exchange.response, key)
    status, error = _describe_status(exchange, answer, key)
    planned_s = exchange.planned - zero
    chunk_times = [arrived - zero for arrived in answer.chunk_times]
    return {
        "request": request.number,
        "planned_s": planned_s,
        "scheduled_s": None if request.at_s is None else planned_s,
        "sent_s": _compute_offset(zero, exchange.sent),
        "first_token_s": chunk_times[0] if chunk_times else None,
        "first_answer_s": _compute_offset(zero, answer.first_answer),
        "last_token_s": chunk_times[-1] if chunk_times else None,
        "end_s": _compute_offset(zero, exchange.end),
        "chunk_s": chunk_times,
        "asked_input_tokens": request.asked_input_tokens,
        "asked_output_tokens": request.asked_output_tokens,
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "cached_tokens": answer.cached_tokens,
        "timed_tokens": answer.timed_tokens,
        "status": status,
        "http_status": exchange.response.http_status,
        "error": error,
    }


def _compute_offset(zero: float, moment: float | None) -> float | None:
    if moment is None:
        return None
    return moment - zero


def _describe_status(
    exchange: Exchange, answer: StreamedAnswer, key: str
) -> tuple[str, str | None]:
    """Return one of REQUEST_STATUSES, and a sentence that explains it, or None if it is `ok`."""
    response = exchange.response
    if response.oversized:
        limit = show_bytes(response.parts.limit_bytes)
        tokens = exchange.request.most_output_tokens
        return (
            "oversized",
            f"the answer is larger than {limit}, several times what {tokens:,} output tokens take",
        )
    if response.malformed is not None:
        return "broken", f"the answer is not HTTP: {response.malformed.show(key)}"
    if response.http_status not in (None, 200):
        return _describe_refusal(response, key)
    if exchange.failure is not None:
        status, error = exchange.failure
        if status == "broken" and answer.chunk_times:
            error += f", after {len(answer.chunk_times)} chunks"
        return status, error
    return answer.problem or ("ok", None)


def _describe_refusal(response: ResponseReader, key: str) -> tuple[str, str]:
    """Return the status and a sentence for an HTTP status other than 200."""
    reason = describe_error(response.body, key)
    if response.http_status == _TOO_MANY:
        delay = quote(response.headers.get("retry-after", ""), key, _SHOWN)  # seconds, or a date
        advice = ""
        if delay:
            unit = " s" if delay.isdigit() else ""
            advice = f"; it says to try again after {delay}{unit}"
        return "rate_limited", f"{reason.rstrip('.')}{advice}"
    if response.http_status in REDIRECTS:
        return "http_error", describe_redirect(response.headers, key)
    return "http_error", reason
