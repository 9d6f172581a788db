"""What a complete (or broken) stream said, read after it was timed."""

import json
from enum import Enum, auto
from typing import NamedTuple

from bitbench.loadgen.sse import Event, TooMuch, events
from bitbench.study.base import Json
from bitbench.util.http.limits import EVENT_BYTES, AnswerLimits
from bitbench.util.http.response import ResponseReader
from bitbench.util.quotation import quote

_DONE = b"[DONE]"
# Where a chat server puts what a model thinks before it answers; both names are in use.
_REASONING = ("reasoning_content", "reasoning")


class StreamedAnswer(NamedTuple):
    chunk_times: list[float]  # arrival of each chunk that carried output, reasoning or answer
    first_answer: float | None  # arrival of the first chunk that carried an answer
    input_tokens: int | None
    output_tokens: int | None
    problem: tuple[str, str] | None  # why this is no answer: one of REQUEST_STATUSES, and a sentence
    cached_tokens: int | None  # of the input, that came from a prefix cache


def read_answer(response: ResponseReader, limits: AnswerLimits, key: str) -> StreamedAnswer:
    """Times of the chunks, token counts from `usage`, and what is missing. The key is in none of its words."""
    stream = _Stream(key)
    try:
        for event in events(response, limits):
            stream.take(event)
    except TooMuch as problem:
        return stream.answer()._replace(problem=("oversized", str(problem)))
    return stream.answer()


def server_sentence(body: bytes, key: str) -> str:
    """What an error body says, in the server's words."""
    message = _object(body) if len(body) <= EVENT_BYTES else None
    return (_sentence(message, key) if message else None) or quote(body, key) or "no explanation"


class _Stream:
    """What the events of one stream have said so far.

    A token can decode to no text (a part of a character), so an empty chunk counts as output; only an empty chunk
    that just announces the end does not, unless tokens are still owed, nor one that just announces the role.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._chunk_times: list[float] = []
        self._with_text = 0  # chunks that carried some
        self._first_answer: float | None = None
        self._reasoned = False
        self._empty_end: float | None = None
        self._usage: Json = None
        self._done = False
        self._error: str | None = None

    def take(self, event: Event) -> None:
        if event.data == _DONE:
            self._done = True
            return
        message = _object(event.data)
        if message is None:
            self._error = self._error or f"an event is not a JSON object: {quote(event.data, self._key)}"
            return
        if message.get("error"):
            said = _sentence(message, self._key) or quote(event.data, self._key)
            self._error = self._error or f"the server aborted: {said}"
        self._usage = message.get("usage") or self._usage
        choice = _first_choice(message)
        if choice is not None:
            self._take_chunk(_part(choice), event.arrived, ends=bool(choice.get("finish_reason")))

    def _take_chunk(self, part: "_ChunkPart", arrived: float, *, ends: bool) -> None:
        self._reasoned = self._reasoned or part is _ChunkPart.REASONING
        self._with_text += part in (_ChunkPart.ANSWER, _ChunkPart.REASONING)
        begins = part is _ChunkPart.ANSWER or (part is _ChunkPart.EMPTY and not self._reasoned)
        if self._first_answer is None and begins:
            self._first_answer = arrived
        if part is _ChunkPart.EMPTY and ends:
            self._empty_end = arrived
        elif part is not _ChunkPart.ROLE:
            self._chunk_times.append(arrived)

    def answer(self) -> StreamedAnswer:
        input_tokens, output_tokens = (_count(self._usage, name) for name in ("prompt_tokens", "completion_tokens"))
        chunk_times = self._chunk_times
        if self._empty_end is not None and output_tokens is not None and len(chunk_times) < output_tokens:
            chunk_times = [*chunk_times, self._empty_end]
        problem = self._problem(input_tokens, output_tokens)
        details = self._usage.get("prompt_tokens_details") if isinstance(self._usage, dict) else None
        cached_tokens = _count(details, "cached_tokens")
        return StreamedAnswer(chunk_times, self._first_answer, input_tokens, output_tokens, problem, cached_tokens)

    def _problem(self, input_tokens: int | None, output_tokens: int | None) -> tuple[str, str] | None:
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


def _object(data: bytes) -> dict[str, Json] | None:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _first_choice(message: dict[str, Json]) -> dict[str, Json] | None:
    choices = message.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


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


def _count(usage: Json, field: str) -> int | None:
    count = usage.get(field) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**31 else None


def _sentence(message: dict[str, Json], key: str) -> str | None:
    """`{"error": {"message": …}}`, `{"error": …}`, `{"message": …}` and `{"detail": …}` are all in use."""
    found = message.get("error") or message
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail")
    return quote(str(found), key) if found else None
