"""What came back, read after it was timed: the events of a stream, what it said, and the rows of requests/*.parquet."""

import re
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from enum import Enum, auto
from math import sqrt
from typing import NamedTuple

from bitbench.loadgen.connection import Exchange
from bitbench.records.strict_reader import strict_reader_schema
from bitbench.records.tables import REQUEST_COLUMNS
from bitbench.study.base import Json
from bitbench.util.http.connection import (
    REDIRECTS,
    error_in_answer,
    error_sentence,
    json_object,
    redirection,
)
from bitbench.util.http.response import EVENT_BYTES, ResponseReader
from bitbench.util.text import quote
from bitbench.util.units import show_bytes

# A line ends with CRLF, LF or CR, and an empty line ends an event.
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_STEP = 32  # events that are decoded without a pause


class Event(NamedTuple):
    data: bytes
    arrived: float  # when the last byte of it did; events of one read have one time


class TooMuch(Exception):
    """An event is larger than one may be."""


def events(response: ResponseReader) -> Iterator[Event]:
    """The events that carry data, in order. Comments, pings and other fields are passed over.

    An event that the end of the body cut off before its empty line counts too: some servers end with a bare
    `data: [DONE]`, and one that is really cut does not parse. Raises TooMuch.
    """
    body, part_ends, times = response.body, response.part_ends, response.times
    start = 0
    for end, following in _boundaries(body):
        data = _data(body[start:end])
        if data is not None:
            yield Event(data, times[bisect_left(part_ends, following)])
        start = following
    data = _data(body[start:])
    if data is not None:
        yield Event(data, times[-1])


def _boundaries(body: bytes) -> Iterator[tuple[int, int]]:
    """Where each event ends and where the next one begins."""
    if b"\r" in body:
        yield from (boundary.span() for boundary in _EVENT_END.finditer(body))
        return
    end = body.find(b"\n\n")  # what nearly every server writes; a tenth of the time
    while end >= 0:
        yield end, end + 2
        end = body.find(b"\n\n", end + 2)


def _data(event: bytes) -> bytes | None:
    if len(event) > EVENT_BYTES:
        raise TooMuch(f"an event is larger than {show_bytes(EVENT_BYTES)}")
    lines = [
        line[6:] if line.startswith(b"data: ") else line[5:]
        for line in event.splitlines()
        if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None


_DONE = b"[DONE]"
# Where a chat server puts what a model thinks before it answers; both names are in use.
_REASONING = ("reasoning_content", "reasoning")


class StreamedAnswer(NamedTuple):
    chunk_times: list[float]  # arrival of each chunk that carried output, reasoning or answer
    first_answer: float | None  # arrival of the first chunk that carried an answer
    input_tokens: int | None
    output_tokens: int | None
    problem: (
        tuple[str, str] | None
    )  # why this is no answer: one of REQUEST_STATUSES, and a sentence
    cached_tokens: int | None  # of the input, that came from a prefix cache
    timed_tokens: int | None  # of the output, that came after the first chunk; 0: not known


def answer_steps(response: ResponseReader, key: str) -> Generator[None, None, StreamedAnswer]:
    """Return times of the chunks, token counts from `usage`, and what is missing. The key is in none of its words."""
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
    """What the events of one stream have said so far.

    The first token is the first chunk that contains text: gateways send empty chunks before it. A later token can
    decode to no text (a part of a character), so a later empty chunk counts as output, unless there are then more
    chunks than tokens. An empty chunk that just announces the end counts only while tokens are still owed, one that
    just announces the role never.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._chunks: list[_Chunk] = []  # from the first with text on
        self._leading: list[_Chunk] = []  # empty ones before it
        self._with_text = 0
        self._first_answer: float | None = None
        self._reasoned = False
        self._empty_end: _Chunk | None = None
        self._usage: Json = None
        self._done = False
        self._error: str | None = None

    def take(self, event: Event) -> None:
        if event.data == _DONE:
            self._done = True
            return
        message = json_object(event.data)
        if message is None:
            self._error = (
                self._error or f"an event is not a JSON object: {quote(event.data, self._key)}"
            )
            return
        if message.get("error"):
            said = error_sentence(message, self._key) or quote(event.data, self._key)
            self._error = self._error or f"the server aborted: {said}"
        self._usage = message.get("usage") or self._usage
        choice = _first_choice(message)
        if choice is not None:
            self._take_chunk(choice, event.arrived)

    def _take_chunk(self, choice: dict[str, Json], arrived: float) -> None:
        part, chunk = _part(choice), _Chunk(arrived, _text_bytes(choice))
        if part in (_ChunkPart.ANSWER, _ChunkPart.REASONING):
            self._with_text += 1
            self._chunks.append(chunk)
            self._reasoned = self._reasoned or part is _ChunkPart.REASONING
            if self._first_answer is None and part is _ChunkPart.ANSWER:
                self._first_answer = arrived
        elif part is _ChunkPart.EMPTY and choice.get("finish_reason"):
            self._empty_end = chunk
        elif part is _ChunkPart.EMPTY:
            (self._chunks if self._chunks else self._leading).append(chunk)

    def answer(self) -> StreamedAnswer:
        input_tokens, output_tokens = (
            _count(self._usage, name) for name in ("prompt_tokens", "completion_tokens")
        )
        chunks = self._chunks_of(output_tokens)
        times = [chunk.arrived for chunk in chunks]
        first_answer = self._first_answer
        if times and not self._with_text:
            first_answer = times[0]
        timed = (
            None
            if output_tokens is None
            else _timed_tokens([chunk.text_bytes for chunk in chunks], output_tokens)
        )
        problem = self._problem(input_tokens, output_tokens)
        details = (
            self._usage.get("prompt_tokens_details") if isinstance(self._usage, dict) else None
        )
        cached_tokens = _count(details, "cached_tokens")
        return StreamedAnswer(
            times, first_answer, input_tokens, output_tokens, problem, cached_tokens, timed
        )

    def _chunks_of(self, tokens: int | None) -> list[_Chunk]:
        """Return the chunks that count as output."""
        if tokens is None:
            return self._chunks
        end = [self._empty_end] if self._empty_end is not None else []
        if not self._with_text:  # tokens without any text: the latest chunks are theirs
            empty = [*self._leading, *end]
            return empty[max(len(empty) - tokens, 0) :]
        if (
            len(self._chunks) > tokens
        ):  # some of the empty ones are not tokens, and nothing tells which
            return [chunk for chunk in self._chunks if chunk.text_bytes]
        return [*self._chunks, *end] if len(self._chunks) < tokens else self._chunks

    def _problem(
        self, input_tokens: int | None, output_tokens: int | None
    ) -> tuple[str, str] | None:
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


def _first_choice(message: dict[str, Json]) -> dict[str, Json] | None:
    choices = message.get("choices")
    return (
        choices[0]
        if isinstance(choices, list) and choices and isinstance(choices[0], dict)
        else None
    )


class _ChunkPart(Enum):
    ANSWER = auto()
    REASONING = auto()
    EMPTY = auto()
    ROLE = auto()


def _part(choice: dict[str, Json]) -> _ChunkPart:
    """What a chunk carries: of a completion `text`, of a chat a `delta` with content, reasoning or a call of a tool."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return _ChunkPart.ANSWER if choice.get("text") else _ChunkPart.EMPTY
    if delta.get("content") or delta.get("tool_calls"):
        return _ChunkPart.ANSWER
    if any(delta.get(name) for name in _REASONING):
        return _ChunkPart.REASONING
    return _ChunkPart.ROLE if delta.get("role") else _ChunkPart.EMPTY


def _text_bytes(choice: dict[str, Json]) -> int:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return len(str(choice.get("text") or "").encode("utf-8", "replace"))
    texts = (delta.get(name) for name in ("content", "tool_calls", *_REASONING))
    return sum(len(str(text).encode("utf-8", "replace")) for text in texts if text)


# English tokens of common vocabularies have 4 to 5 bytes, with a standard deviation of about half of that.
_LENGTH_SPREAD = 0.5
_LONE_TOKEN = (
    3.0  # times the text of a mean chunk: a longer first chunk holds more tokens than the others
)
_LARGEST_ERROR = 0.06  # of one answer; the mean over ten is then known to 2 %


def _timed_tokens(sizes: Sequence[int], tokens: int) -> int:
    """Return how many tokens came after the first chunk: all but one where chunks are like single tokens, else by the
    first chunk's share of the text. 0 where that is known too badly, as of an answer in one chunk."""
    count, total = len(sizes), sum(sizes)
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


def _count(usage: Json, field: str) -> int | None:
    count = usage.get(field) if isinstance(usage, dict) else None
    return (
        count
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**31
        else None
    )


_TOO_MANY = 429  # HTTP's "Too Many Requests"
_SHOWN = 80  # characters of a header

REQUEST_SCHEMA = strict_reader_schema(REQUEST_COLUMNS)


def request_row(
    exchange: Exchange, zero: float, key: str
) -> Generator[None, None, dict[str, Json]]:
    """Return the row of a request, in steps of a few events; times count from `zero`. The key is in none of them."""
    request = exchange.request
    answer = yield from answer_steps(exchange.response, key)
    status, error = _status(exchange, answer, key)
    chunk_times = [arrived - zero for arrived in answer.chunk_times]
    return {
        "request": request.number,
        "planned_s": exchange.planned - zero,
        "scheduled_s": None if request.at_s is None else exchange.planned - zero,
        "sent_s": None if exchange.sent is None else exchange.sent - zero,
        "first_token_s": chunk_times[0] if chunk_times else None,
        "first_answer_s": None if answer.first_answer is None else answer.first_answer - zero,
        "last_token_s": chunk_times[-1] if chunk_times else None,
        "end_s": None if exchange.end is None else exchange.end - zero,
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


def _status(exchange: Exchange, answer: StreamedAnswer, key: str) -> tuple[str, str | None]:
    """One of REQUEST_STATUSES and, but for ok, a sentence."""
    response = exchange.response
    if response.oversized:
        limit, tokens = show_bytes(response.parts.limit_bytes), exchange.request.most_output_tokens
        return (
            "oversized",
            f"the answer is larger than {limit}, several times what {tokens:,} output tokens take",
        )
    if response.malformed is not None:
        return "broken", f"the answer is not HTTP: {response.malformed.show(key)}"
    if response.http_status not in (None, 200):
        return _refusal(response, key)
    if exchange.failure is not None:
        status, error = exchange.failure
        if status == "broken" and answer.chunk_times:
            error += f", after {len(answer.chunk_times)} chunks"
        return status, error
    return answer.problem or ("ok", None)


def _refusal(response: ResponseReader, key: str) -> tuple[str, str]:
    """A status other than 200."""
    said = error_in_answer(response.body, key)
    if response.http_status == _TOO_MANY:
        wait = quote(response.headers.get("retry-after", ""), key, _SHOWN)
        when = (
            f"; it says to try again after {wait}{' s' if wait.isdigit() else ''}" if wait else ""
        )  # or a date
        return "rate_limited", f"{said.rstrip('.')}{when}"
    if response.http_status in REDIRECTS:
        return "http_error", redirection(response.headers, key)
    return "http_error", said
