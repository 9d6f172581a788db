"""What a complete (or broken) stream said, read after it was timed."""

import json
from typing import NamedTuple

from bitbench.core.base import Json
from bitbench.load.response import ResponseReader
from bitbench.load.sse import events

_DONE = b"[DONE]"
_QUOTED_LENGTH = 400  # characters of a server's error that a record keeps


class Answer(NamedTuple):
    chunk_times: list[float]  # arrival of each chunk that carried output
    input_tokens: int | None
    output_tokens: int | None
    problem: str | None  # why this is not a complete answer


def read_answer(response: ResponseReader) -> Answer:
    """Times of the chunks, token counts from `usage`, and what is missing.

    A token can decode to no text (a part of a character), so an empty chunk counts as output; only an empty chunk
    that just announces the end does not, unless tokens are still owed.
    """
    chunk_times: list[float] = []
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
            error = error or f"the server broke off: {_sentence(message) or _quote(event.data)}"
        usage = message.get("usage") or usage
        choice = _first_choice(message)
        if choice is None:
            continue
        if not choice.get("text") and choice.get("finish_reason"):
            empty_end = event.arrived
        else:
            chunk_times.append(event.arrived)
    input_tokens, output_tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if empty_end is not None and output_tokens is not None and len(chunk_times) < output_tokens:
        chunk_times.append(empty_end)
    return Answer(chunk_times, input_tokens, output_tokens, error or _missing(done, input_tokens, output_tokens))


def server_sentence(body: bytes) -> str:
    """What an error body says, in the server's words."""
    message = _object(body)
    return (_sentence(message) if message else None) or _quote(body) or "no explanation"


def _missing(done: bool, input_tokens: int | None, output_tokens: int | None) -> str | None:
    if not done:
        return "the stream ended without [DONE]"
    if input_tokens is None or output_tokens is None:
        return "the stream ended without usage, so nothing says how many tokens it had"
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
