"""From what came back to rows."""

from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa
import pytest

from bitbench.loadgen.answer import REQUEST_SCHEMA, make_request_row
from bitbench.loadgen.connection import Exchange
from bitbench.loadgen.requests import PlannedRequest
from bitbench.records.tables import REQUEST_STATUSES
from bitbench.study.base import Json
from bitbench.util.http.response import ResponseReader


@dataclass
class Came:
    """As much of an exchange as a row needs."""

    request: PlannedRequest
    planned: float = 100.0
    sent: float | None = 100.0
    end: float | None = 103.0
    response: ResponseReader = field(default_factory=ResponseReader)
    failure: tuple[str, str] | None = None


def row_of(*data: bytes, at_s: float | None = 0.0, asked: int | None = 7) -> dict[str, Json]:
    came = Came(PlannedRequest(4, b"", None, at_s, asked, 2, 2))
    for second, part in enumerate(data):
        came.response.feed(part, 101.0 + second)
    came.response.close()
    steps = make_request_row(cast(Exchange, came), zero=100.0, key="")
    with pytest.raises(StopIteration) as end:
        next(steps)
    (row,) = pa.Table.from_pylist([end.value.value], schema=REQUEST_SCHEMA).to_pylist()
    assert row["status"] in REQUEST_STATUSES
    return cast(dict[str, Json], row)


def answered(status: int, reason: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ((), "slow down"),
        (("Retry-After: 7",), "slow down; it says to try again after 7 s"),
        (
            ("Retry-After: Sun, 15 Nov 2026 06:00:00 GMT",),
            "slow down; it says to try again after Sun, 15 Nov 2026",
        ),
    ],
)
def test_too_many_requests_is_a_status_of_its_own(headers: tuple[str, ...], said: str) -> None:
    row = row_of(
        answered(429, "Too Many Requests", b'{"error": {"message": "slow down."}}', *headers)
    )
    assert (row["status"], row["http_status"]) == ("rate_limited", 429)
    assert row["error"].startswith(said)


def test_other_errors_stay_what_they_were() -> None:
    row = row_of(answered(503, "Service Unavailable", b"busy", "Retry-After: 7"))
    assert (row["status"], row["error"]) == ("http_error", "busy")


STREAM = b"HTTP/1.1 200 OK\r\n\r\n"
THINKING = b'data: {"choices":[{"delta":{"reasoning":"hm"},"finish_reason":null}]}\n\n'
SAYING = b'data: {"choices":[{"delta":{"content":"Yes"},"finish_reason":"length"}]}\n\n'
END = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\ndata: [DONE]\n\n'


def test_a_row_says_when_reasoning_and_answer_began_and_what_was_asked() -> None:
    row = row_of(STREAM, THINKING, SAYING, END, asked=None)
    assert row["status"] == "ok"
    assert (row["first_token_s"], row["first_answer_s"], row["last_token_s"]) == (2.0, 3.0, 3.0)
    assert (row["asked_input_tokens"], row["input_tokens"], row["asked_output_tokens"]) == (
        None,
        7,
        2,
    )
    assert (row["request"], row["scheduled_s"]) == (4, 0.0)


def test_what_followed_an_answer_was_not_on_a_schedule() -> None:
    row = row_of(STREAM, SAYING, END, at_s=None)
    assert (row["planned_s"], row["scheduled_s"]) == (0.0, None)
