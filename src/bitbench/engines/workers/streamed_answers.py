"""Requests that want a stream: one event per token, written to its socket at once by the thread that computes it.

A part of the servers that lie beside it, loaded by path in their environments; imports nothing of ours.
"""

import json
import socket
import threading
from typing import Any

from tokenizers.decoders import DecodeStream  # type: ignore[import-not-found]

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Job:
    """One request and the socket that waits for its answer. Written to by the computing thread alone."""

    def __init__(self, body: dict[str, Any], batch_size: int, connection: socket.socket, tokenizer: Any) -> None:
        self.prompt: list[int] = body["prompt"]
        self.max_tokens: int = body["max_tokens"]
        self.batch_size = batch_size
        self.done = threading.Event()
        self.error: str | None = None
        self.count = 0
        self._model = body.get("model", "")
        self._wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._connection = connection
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=False)
        self._pending = STREAM_HEAD
        self.is_broken = False

    def add(self, token: int) -> None:
        """Sends a token at once; its text may be empty while a character is incomplete."""
        self.count += 1
        text = self._decoder.step(self._tokenizer, token) or ""
        self._send_event({"choices": [{"index": 0, "text": text, "token_ids": [token], "finish_reason": None}]})
        if self.count == self.max_tokens:
            self._finish()

    def _finish(self) -> None:
        self._send_event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        if self._wants_usage:
            sent = len(self.prompt)
            usage = {"prompt_tokens": sent, "completion_tokens": self.count, "total_tokens": sent + self.count}
            self._send_event({"choices": [], "usage": usage})
        self._send(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self.done.set()

    def _send_event(self, event: dict[str, Any]) -> None:
        text = json.dumps({"object": "text_completion", "model": self._model, **event}, separators=(",", ":"))
        self._send(_chunk(f"data: {text}\n\n".encode()))

    def _send(self, data: bytes) -> None:
        """A client that went away is noted; the others of its batch go on."""
        if self.is_broken:
            return
        try:
            self._connection.sendall(self._pending + data)
            self._pending = b""
        except OSError:
            self.is_broken = True


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def fault_of(body: Any, context_tokens: int | None) -> str | None:
    """What is wrong with a request, or None."""
    if not isinstance(body, dict):
        return "the body must be a JSON object"
    prompt, count = body.get("prompt"), body.get("max_tokens")
    if not (isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)):
        return "prompt must be a list of token ids"
    if not (type(count) is int and count > 0):
        return "max_tokens must be a positive number"
    if body.get("ignore_eos") is not True:
        return "a stream of this server always has max_tokens tokens: set ignore_eos"
    if context_tokens is not None and len(prompt) + count > context_tokens:
        return f"{len(prompt)} tokens in and {count} out are more than the model's context of {context_tokens}"
    return None
