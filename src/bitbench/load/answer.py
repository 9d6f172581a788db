"""What a complete (or broken) stream said, read after it was timed."""

import json
from enum import Enum, auto
from typing import NamedTuple

from bitbench.core.base import Json
from bitbench.load.response import ResponseReader
from bitbench.load.sse import events

_DONE = b"[DONE]"
_QUOTED_LENGTH = 400  # characters of a server's error that a record keeps


# Where a chat server puts what a model thinks before it answers; both names are in use.
_REASONING = ("reasoning_content", "reasoning")


class StreamedAnswer(NamedTuple):
    chunk_times: list[float]  # arrival of each chunk that carried output, reasoning or answer
    first_answer: float | None  # arrival of the first chunk that carried an answer
    input_tokens: int | None
    output_tokens: int | None
    problem: str | None  # why this is not a complete answer


def read_answer(response: ResponseReader) -> StreamedAnswer:
    """Times of the chunks, token counts from `usage`, and what is missing.

    A token can decode to no text (a part of a character), so an empty chunk counts as output; only an empty chunk
    that just announces the end does not, unless tokens are still owed, nor one that just announces the role.
    """
    chunk_times: list[float] = []
    first_answer: float | None = None
    reasoned = False
    empty_end: float | None = None
    usage: Json = None
    done = False
    error = None
    for event in events(response):
        if event.data == _DONE:
            done = True
            continue
        message = _object(event.data)
        if message is None:
            error = error or f"an event is not a JSON object: {_quote(event.data)}"
            continue
        if message.get("error"):
            error = error or f"the server aborted: {_sentence(message) or _quote(event.data)}"
        usage = message.get("usage") or usage
        choice = _first_choice(message)
        if choice is None:
            continue
        part = _part(choice)
        reasoned = reasoned or part is _ChunkPart.REASONING
        if first_answer is None and (part is _ChunkPart.ANSWER or (part is _ChunkPart.EMPTY and not reasoned)):
            first_answer = event.arrived
        if part is _ChunkPart.EMPTY and choice.get("finish_reason"):
            empty_end = event.arrived
        elif part is not _ChunkPart.ROLE:
            chunk_times.append(event.arrived)
    input_tokens, output_tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if empty_end is not None and output_tokens is not None and len(chunk_times) < output_tokens:
        chunk_times.append(empty_end)
    problem = error or _missing(done, input_tokens, output_tokens)
    return StreamedAnswer(chunk_times, first_answer, input_tokens, output_tokens, problem)


def server_sentence(body: bytes) -> str:
    """What an error body says, in the server's words."""
    message = _object(body)
    return (_sentence(message) if message else None) or _quote(body) or "no explanation"


def _missing(done: bool, input_tokens: int | None, output_tokens: int | None) -> str | None:
    if not done:
        return "the stream ended without [DONE]"
    if input_tokens is None or output_tokens is None:
        return "the stream ended without usage, so its token count is unknown"
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


def _sentence(message: dict[str, Json]) -> str | None:
    """`{"error": {"message": …}}`, `{"error": …}`, `{"message": …}` and `{"detail": …}` are all in use."""
    found = message.get("error") or message
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail")
    return _shorten(str(found)) if found else None


def _quote(data: bytes) -> str:
    return _shorten(data.decode("utf-8", errors="replace"))


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _QUOTED_LENGTH else text[: _QUOTED_LENGTH - 1] + "…"
