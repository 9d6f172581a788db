"""The stream reader: what it holds depends on the bytes, not on how they were split."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bitbench.loadgen.answer import events
from bitbench.util.http.response import (
    HEAD_BYTES,
    LINE_BYTES,
    ResponseReader,
)
from tests.support.streamed_answer import read_answer

EVENTS = b'data: {"a":1}\n\n: ping\n\ndata: {"b":2}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def with_length(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def until_close(body: bytes) -> bytes:
    return HEAD + b"\r\n" + body


def read(parts: list[bytes], *, close: bool = False) -> ResponseReader:
    reader = ResponseReader()
    for number, part in enumerate(parts):
        reader.feed(part, float(number))
    if close:
        reader.close()
    return reader


def record(reader: ResponseReader) -> tuple[object, ...]:
    """All that a reader holds but for times."""
    found = [event.data for event in events(reader)]
    answer = read_answer(reader, key="")
    known = (
        reader.http_status,
        reader.headers,
        bytes(reader.body),
        reader.complete,
        reader.persistent,
    )
    said = answer._replace(chunk_times=[], first_answer=None)
    return (
        *known,
        reader.malformed,
        found,
        len(answer.chunk_times),
        answer.first_answer is None,
        said,
    )


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


VALID = [
    chunked(EVENTS),
    chunked(EVENTS[:9], EVENTS[9:30], EVENTS[30:]),
    with_length(EVENTS),
    until_close(EVENTS),
    b"HTTP/1.1 100 Continue\r\n\r\n" + chunked(EVENTS),
    chunked(EVENTS.replace(b"\n", b"\r\n")),
    chunked(EVENTS.replace(b"\n", b"\r")),
    chunked(EVENTS)[:-5] + b"0;last=1\r\nX-Sum: 1\r\n\r\n",
]


@pytest.mark.parametrize("data", VALID)
def test_every_framing_gives_the_same_events(data: bytes) -> None:
    reader = read([data], close=True)
    assert reader.complete
    assert reader.malformed is None
    assert [event.data for event in events(reader)] == [b'{"a":1}', b'{"b":2}', b"[DONE]"]


@pytest.mark.parametrize("data", VALID)
@pytest.mark.parametrize("close", [True, False])
def test_byte_by_byte_is_the_same_as_at_once(data: bytes, close: bool) -> None:
    pieces = [data[place : place + 1] for place in range(len(data))]
    assert record(read(pieces, close=close)) == record(read([data], close=close))


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """Valid responses, and what becomes of them when they are cut, altered or followed by more."""
    data = draw(st.sampled_from(VALID))
    kind = draw(st.sampled_from(["whole", "cut", "altered", "followed", "garbage"]))
    if kind == "cut":
        return data[: draw(st.integers(0, len(data)))]
    if kind == "altered":
        place = draw(st.integers(0, len(data) - 1))
        return data[:place] + draw(st.binary(min_size=0, max_size=4)) + data[place + 1 :]
    if kind == "followed":
        return data + draw(st.binary(min_size=1, max_size=20))
    if kind == "garbage":
        return draw(st.binary(max_size=200)) + draw(st.sampled_from([b"", b"\r\n\r\n"]))
    return data


@settings(max_examples=600, deadline=None)
@given(data=responses(), cuts=st.lists(st.integers(0, 500), max_size=12), close=st.booleans())
@example(data=VALID[0] + b"x", cuts=[len(VALID[0])], close=False)
@example(
    data=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n\r\n", cuts=[], close=False
)
@example(
    data=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0000000000a\r\n",
    cuts=[47],
    close=False,
)
def test_the_same_bytes_give_the_same_record_however_they_are_split(
    data: bytes, cuts: list[int], close: bool
) -> None:
    whole = record(read([data], close=close))
    assert record(read(split(data, cuts), close=close)) == whole


@pytest.mark.parametrize("step", [1_000, 4_099, 1_000_000])
@pytest.mark.parametrize(
    "data", [b"x" * (HEAD_BYTES + 10), HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 5_000]
)
def test_a_head_or_a_line_without_an_end_is_given_up(data: bytes, step: int) -> None:
    assert len(data) > LINE_BYTES
    reader = read([data[place : place + step] for place in range(0, len(data), step)])
    assert reader.malformed is not None


def test_an_event_has_the_time_of_the_read_that_completed_it() -> None:
    data = chunked(EVENTS)
    first_end = data.index(b"\n\n") + 2
    reader = read(
        [
            data[:20],
            data[20 : first_end - 1],
            data[first_end - 1 : first_end + 3],
            data[first_end + 3 :],
        ]
    )
    assert [event.arrived for event in events(reader)] == [2.0, 3.0, 3.0]


def test_a_connection_is_kept_only_when_both_sides_know_where_they_are() -> None:
    assert read([chunked(EVENTS)]).persistent
    assert read([with_length(EVENTS)]).persistent
    assert not read([until_close(EVENTS)], close=True).persistent
    assert not read([chunked(EVENTS) + b"HTTP"]).persistent
    assert not read(
        [with_length(EVENTS).replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")]
    ).persistent
    assert not read([chunked(EVENTS).replace(b"1.1", b"1.0", 1)]).persistent


def test_a_body_that_was_cut_off_is_not_complete() -> None:
    assert not read([chunked(EVENTS)[:-3]], close=True).complete
    assert not read([with_length(EVENTS)[:-1]], close=True).complete
    assert read([until_close(EVENTS)[:-1]], close=True).complete
