"""The table of hostile servers: what each sends, and what becomes of the request or of the endpoint."""

import json
from typing import NamedTuple

from bitbench.records.trial import Outcome
from tests.support.raw_server import (
    Answerer,
    drip,
    flood,
    models,
    plain,
    send,
    send_and_close,
    send_and_reset,
    silence,
)
from tests.support.scripted_server import END, STREAM, TOKEN, USAGE, event

MB = 1_000_000
GOOD = TOKEN + TOKEN + USAGE + END
OK_HEAD = b"HTTP/1.1 200 OK\r\n"
UNTIL_CLOSE = OK_HEAD + b"\r\n"
BLOCK = b"x" * 65_536


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*events: bytes) -> Answerer:
    return send(STREAM, *(chunk(data) for data in events), END)


def error(text: str, status: str = "400 Bad Request") -> Answerer:
    return send(plain(json.dumps({"error": {"message": text}}).encode(), status))


def usage(**counts: object) -> Answerer:
    return send(STREAM, TOKEN, TOKEN, event(choices=[], usage=counts), END)


class Mode(NamedTuple):
    """One way to answer a request for a stream of two tokens."""

    answer: Answerer
    status: str  # of REQUEST_STATUSES
    said: str = ""  # in its error
    memory_mb: float = 64.0  # beyond what the process had
    time_s: float = 30.0  # many times what it takes: a busy machine is no failure


STREAMS: dict[str, Mode] = {
    # No HTTP at all
    "a garbage status line": Mode(
        send(b"\x00\xff\x1b[31m garbage\r\n\r\n"), "broken", "not an HTTP/1.1 status line"
    ),
    "another protocol": Mode(send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "broken", "SSH-2.0-OpenSSH_9.2"),
    "HTTP/2": Mode(send(b"HTTP/2 200\r\n\r\n"), "broken", "not an HTTP/1.1 status line"),
    "a status of 999": Mode(send(b"HTTP/1.1 999 OK\r\n\r\n"), "broken", "status line"),
    "a status below zero": Mode(send(b"HTTP/1.1 -20 OK\r\n\r\n"), "broken", "status line"),
    "a status without a number": Mode(send(b"HTTP/1.1 OK\r\n\r\n"), "broken", "status line"),
    "closes at once": Mode(send_and_close(b""), "broken", "closed the connection"),
    "resets the connection": Mode(
        send_and_reset(b"HTTP"), "broken", "before the answer was complete"
    ),
    "says nothing": Mode(silence, "stalled", "no byte for 1.00 s"),
    # Heads
    "a head without end": Mode(
        flood(b"HTTP/1.1 200 OK\r\nX: ", BLOCK), "broken", "more than 65536 bytes"
    ),
    "headers without end": Mode(
        flood(OK_HEAD, b"X: y\r\n" * 1_000), "broken", "more than 65536 bytes"
    ),
    "a head byte by byte": Mode(
        drip(b"", b"HTTP/1.1 200 OK\r\n" + b"X" * 500), "timeout", "not complete after"
    ),
    "two hundred headers": Mode(
        send(STREAM[:-2], b"".join(b"X-%d: y\r\n" % i for i in range(200)), b"\r\n", GOOD), "ok"
    ),
    "a header without a colon": Mode(
        send(OK_HEAD, b"nonsense\r\n\r\n"), "broken", "not a header line: nonsense"
    ),
    "one interim head": Mode(send(b"HTTP/1.1 100 Continue\r\n\r\n", STREAM, GOOD), "ok"),
    "interim heads without end": Mode(
        flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), "broken", "more than 64"
    ),
    # Lengths
    "a length below zero": Mode(
        send(OK_HEAD, b"Content-Length: -5\r\n\r\n"), "broken", "not a content length: -5"
    ),
    "a length of 20 digits": Mode(
        send(OK_HEAD, b"Content-Length: " + b"9" * 20 + b"\r\n\r\n"), "broken", "length"
    ),
    "two lengths": Mode(
        send(OK_HEAD, b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n"),
        "broken",
        "not a content length: 5, 6",
    ),
    "a length that is too long": Mode(
        send_and_close(OK_HEAD, b"Content-Length: 99\r\n\r\nshort"), "broken", "closed"
    ),
    "a length that is too short": Mode(
        send(OK_HEAD, b"Content-Length: 9\r\n\r\n", b"data: {}\n\n"), "broken"
    ),
    # Bodies
    "a body without end": Mode(flood(UNTIL_CLOSE, BLOCK), "oversized", "larger than"),
    "a body of the length it says": Mode(
        flood(OK_HEAD + b"Content-Length: 999999999999999999\r\n\r\n", BLOCK),
        "oversized",
        "larger than",
    ),
    "large chunks without end": Mode(
        flood(STREAM, chunk(b"x" * 1_000_000)), "oversized", "larger than"
    ),
    "chunks of a token without end": Mode(
        flood(STREAM, chunk(b"x" * 16_000), each_alone=True), "oversized", "larger"
    ),
    "one chunk without end": Mode(
        flood(STREAM + b"ffffffffffffffff\r\n", BLOCK), "oversized", "larger than"
    ),
    "a body byte by byte": Mode(drip(UNTIL_CLOSE, b"x" * 500), "timeout", "not complete after"),
    "an error page of 5 MB": Mode(
        send(plain(b"<p>" * 1_700_000, "500 Error")), "oversized", "larger than"
    ),
    # Chunks
    "a chunk size below zero": Mode(
        send(STREAM, b"-5\r\nhello\r\n"), "broken", "not a chunk size: -5"
    ),
    "a chunk size in Python's words": Mode(
        send(STREAM, b"1_0\r\n" + b"x" * 16), "broken", "not a chunk size: 1_0"
    ),
    "a chunk size with a prefix": Mode(
        send(STREAM, b"0x5\r\nhello\r\n"), "broken", "not a chunk size: 0x5"
    ),
    "a chunk size of 17 digits": Mode(
        send(STREAM, b"f" * 17 + b"\r\n"), "broken", "not a chunk size"
    ),
    "a chunk size without end": Mode(
        flood(STREAM, b"0" * 65_536), "broken", "more than 4096 bytes"
    ),
    "a chunk that is longer than it says": Mode(
        send(STREAM, b"2\r\nhello\r\n"), "broken", "a chunk is longer"
    ),
    "ends in the middle of a chunk": Mode(
        send_and_close(STREAM, b"ff\r\nhello"), "broken", "closed the connection"
    ),
    "trailers without end": Mode(
        flood(STREAM + b"0\r\n", b"X: y\r\n" * 1_000), "broken", "trailer lines"
    ),
    # Events
    "empty events": Mode(stream(b"\n\n" * 400_000), "broken", "without usage"),
    "events of nothing": Mode(stream(b"data:\n\n" * 100_000), "broken", "not a JSON object"),
    "comments": Mode(stream(b": ping\n\n" * 100_000), "broken", "without usage"),
    "events that end in CR": Mode(stream(b"data: {}\r\r" * 100_000), "broken", "without usage"),
    "an event of a megabyte": Mode(
        stream(b"data: " + b"x" * MB + b"\n\n"), "oversized", "an event is larger than"
    ),
    "dense JSON": Mode(
        stream(b"data: [" + b"[]," * 300_000 + b"0]\n\n"), "broken", "not a JSON object", 128.0
    ),
    "deep JSON": Mode(stream(b"data: " + b"[" * 200_000 + b"\n\n"), "broken", "not a JSON object"),
    "deep JSON of objects": Mode(
        stream(b'data: {"a":' + b'{"a":' * 100_000 + b"\n\n"), "broken", "not a JSON object"
    ),
    "events that are no objects": Mode(
        stream(b"data: 7\n\n", b"data: null\n\n"), "broken", "not a JSON object: 7"
    ),
    "null bytes": Mode(stream(b"data: \x00\x00\x00\n\n"), "broken", r"\x00\x00"),
    "choices of another kind": Mode(
        stream(b'data: {"choices": "x"}\n\n', b'data: {"choices": [[1]]}\n\n'),
        "broken",
        "without usage",
    ),
    "nothing but the end": Mode(stream(), "broken", "without usage"),
    "no end": Mode(send(STREAM, TOKEN, TOKEN, USAGE, b"0\r\n\r\n"), "broken", "without [DONE]"),
    "a page in place of a stream": Mode(
        send(plain(b"<html>Welcome to nginx!</html>")), "broken", "without [DONE]"
    ),
    "a compressed stream": Mode(
        send(plain(b"\x1f\x8b\x08\x00" * 9, "200 OK", "Content-Encoding: gzip")), "broken"
    ),
    "two answers at once": Mode(send(STREAM, GOOD, STREAM, GOOD), "ok"),
    # Usage
    "a usage that contradicts its chunks": Mode(
        send(STREAM, TOKEN * 504, event(usage={"prompt_tokens": 4, "completion_tokens": 4}), END),
        "contradictory",
        "504 chunks with text, but its usage counts 4 output tokens",
    ),
    "a usage below zero": Mode(
        usage(prompt_tokens=-4, completion_tokens=-2), "broken", "without usage"
    ),
    "a usage of truths": Mode(
        usage(prompt_tokens=True, completion_tokens=True), "broken", "without usage"
    ),
    "a usage of words": Mode(
        usage(prompt_tokens="4", completion_tokens="2"), "broken", "without usage"
    ),
    "a usage of 400 digits": Mode(
        usage(prompt_tokens=4, completion_tokens=10**400), "broken", "without usage"
    ),
    "a usage of 5,000 digits": Mode(
        stream(b'data: {"usage": {"completion_tokens": ' + b"9" * 5_000 + b"}}\n\n"),
        "broken",
        "not a JSON object",
    ),
    "a usage without end": Mode(
        stream(b'data: {"usage": {"prompt_tokens": 1e999, "completion_tokens": NaN}}\n\n'),
        "broken",
        "without usage",
    ),
    # Words
    "half a surrogate in an error": Mode(error("no \ud800 more"), "http_error", r"no \ud800 more"),
    "half a surrogate in a stream": Mode(
        stream(b'data: {"error": {"message": "no \\ud800 more"}}\n\n'), "broken", r"no \ud800 more"
    ),
    "escape sequences": Mode(
        error("\x1b]52;c;aGk=\x07\u202e\x9b31m"), "http_error", r"\x1b]52;c;aGk=\x07\u202e\x9b31m"
    ),
    "a body that is no UTF-8": Mode(
        send(plain(b"\xff\xfe\xc3(", "500 Error")), "http_error", "\ufffd"
    ),
    "deep JSON in an error": Mode(send(plain(b"[" * 100_000, "400 Bad")), "http_error", "[[[["),
    "an error without words": Mode(send(plain(b"", "503 Busy")), "http_error", "no explanation"),
    "an error of other kinds": Mode(
        send(plain(b'{"error": [1, {"message": 2}]}', "400 Bad")), "http_error", "[1, "
    ),
    "a wait of a thousand letters": Mode(
        send(plain(b"slow down", "429 Many", "Retry-After: " + "x" * 1_000)),
        "rate_limited",
        "try again after xxx",
    ),
    "no content": Mode(send(b"HTTP/1.1 204 No Content\r\n\r\n"), "http_error", "no explanation"),
    # Redirects
    "a redirect": Mode(
        send(plain(b"", "307 Temporary", "Location: http://elsewhere.example/v1/completions")),
        "http_error",
        "it redirects to http://elsewhere.example/v1/completions; if that is meant, give its address",
    ),
    "a redirect to nowhere": Mode(
        send(plain(b"", "302 Found")), "http_error", "it redirects without saying where"
    ),
}


class ModelsMode(NamedTuple):
    """One way to answer GET /v1/models."""

    answer: Answerer
    outcome: Outcome | None  # None: it is usable
    said: str = ""  # in the cause
    names: tuple[str, ...] = ()


def listing(text: bytes) -> Answerer:
    return send(plain(text))


MODEL_LISTS: dict[str, ModelsMode] = {
    "a head byte by byte": ModelsMode(
        drip(b"", b"HTTP/1.1 200 OK\r\n" + b"X" * 500), Outcome.TIMEOUT, "did not answer within"
    ),
    "a body byte by byte": ModelsMode(
        drip(OK_HEAD + b"Content-Length: 500\r\n\r\n", b" " * 500),
        Outcome.TIMEOUT,
        "did not answer within",
    ),
    "says nothing": ModelsMode(silence, Outcome.TIMEOUT, "did not answer"),
    "closes at once": ModelsMode(send_and_close(b""), Outcome.CRASHED, "closed the connection"),
    "resets the connection": ModelsMode(
        send_and_reset(b"HTTP"), Outcome.CRASHED, "no connection to"
    ),
    "ends in the middle": ModelsMode(
        send_and_close(OK_HEAD, b"Content-Length: 99\r\n\r\n{"),
        Outcome.CRASHED,
        "before the answer was complete",
    ),
    "a garbage status line": ModelsMode(
        send(b"\x1b[31m\r\n\r\n"), Outcome.INVALID, r"status line: \x1b[31m"
    ),
    "a head without end": ModelsMode(
        flood(OK_HEAD + b"X: ", BLOCK), Outcome.INVALID, "more than 65536 bytes"
    ),
    "interim heads without end": ModelsMode(
        flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), Outcome.INVALID, "more than 64"
    ),
    "a body without end": ModelsMode(
        flood(UNTIL_CLOSE, BLOCK), Outcome.INVALID, "it is larger than"
    ),
    "a chunk size below zero": ModelsMode(
        flood(STREAM + b"-5\r\n", BLOCK), Outcome.INVALID, "chunk size: -5"
    ),
    "two hundred headers": ModelsMode(
        send(OK_HEAD, b"X: y\r\n" * 200, b'Content-Length: 23\r\n\r\n{"data": [{"id": "m"}]}'),
        None,
        names=("m",),
    ),
    "deep JSON": ModelsMode(listing(b"[" * 200_000), None),
    "another kind of JSON": ModelsMode(listing(b'{"data": {"id": "m"}}'), None),
    "names that cannot be written": ModelsMode(
        send(models("\ud800", "\x1b[31m", "\u202eevil", "x" * 500, "", "m")), None, names=("m",)
    ),
    "no list": ModelsMode(send(plain(b"not found", "404 Not Found")), None),
    "a reason that is no word": ModelsMode(
        send(plain(b"", "401 \x1b[31m\ud800".encode("utf-8", "replace").decode())),
        Outcome.INVALID,
        "says 401 Unauth",
    ),
    "a redirect": ModelsMode(
        send(plain(b"", "301 Moved", "Location: https://elsewhere.example")),
        Outcome.INVALID,
        "https://elsewhere",
    ),
}
