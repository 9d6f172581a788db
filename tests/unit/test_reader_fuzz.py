"""The stream reader under thousands of cases: it neither fails nor hangs, and reads the same however the bytes are
split, from a socket and from bytes."""

import asyncio
import random
from collections.abc import Iterator
from itertools import islice, pairwise

from bitbench.util.http.response import ResponseReader
from tests.length import by_length
from tests.support.read_socket import SocketReading
from tests.support.streamed_answer import read_answer
from tests.unit.test_load_response import VALID, chunked, read, record, split

TOKEN = b'data: {"choices":[{"text":" x","finish_reason":null}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
SHORT = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: a\n\r\n7\r\n\ndata:b\r\n2\r\n\n\n\r\n0\r\n\r\n"
COMPLETE = [
    *VALID,
    SHORT,
    chunked(TOKEN, TOKEN, TOKEN, USAGE, DONE),
    chunked(TOKEN + TOKEN, b": ping\n\n", TOKEN + USAGE + DONE),
    chunked(TOKEN, TOKEN[:30], TOKEN[30:] + TOKEN + USAGE[:5], USAGE[5:] + DONE),
    b'HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 32\r\n\r\n{"error":{"message":"too many"}} ',
]
PIECES = [b"\r\n", b"\n\n", b"\r", b"0\r\n\r\n", b"data:", b"-1", b"ffffffff", b"\x00", b"\xff\xfe", b"HTTP/1.1 ",
          b": ", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"{", b"[DONE]"]  # fmt: skip
CASES = 100_000
EVERY = by_length(40, 1)  # so many of them are one that is tried


def spoiled(source: random.Random) -> bytes:
    """A response that was cut, altered, repeated or followed by more, or that never was one."""
    data = source.choice(COMPLETE)
    kind = source.randrange(6)
    if kind == 0:
        return data[: source.randrange(len(data) + 1)]
    if kind == 1:
        place = source.randrange(len(data))
        return data[:place] + source.choice(PIECES) + data[place + source.randrange(4) :]
    if kind == 2:
        place = source.randrange(len(data))
        return data[:place] + bytes([source.randrange(256)]) + data[place + 1 :]
    if kind == 3:
        return data + source.choice(COMPLETE)[: source.randrange(1, 40)]
    if kind == 4:
        start, end = sorted(source.randrange(len(data) + 1) for _ in range(2))
        return data[:end] + data[start:]
    return b"".join(source.choice(PIECES) for _ in range(source.randrange(12))) + source.randbytes(
        source.randrange(40)
    )


def chosen() -> Iterator[tuple[list[bytes], bytes, bool]]:
    return islice(cases(), 0, CASES, EVERY)


def cases() -> Iterator[tuple[list[bytes], bytes, bool]]:
    """Every split of a short response in three, every split of the others in two, and random ones."""
    for first in range(len(SHORT) + 1):
        for second in range(first, len(SHORT) + 1):
            yield [SHORT[:first], SHORT[first:second], SHORT[second:]], SHORT, False
    for data in COMPLETE:
        for place in range(len(data) + 1):
            yield [data[:place], data[place:]], data, True
    source = random.Random(4)
    while True:
        data = spoiled(source)
        cuts = [source.randrange(len(data) + 1) for _ in range(source.choice((1, 1, 2, 3, 5, 9)))]
        yield split(data, cuts), data, source.random() < 0.5


def test_the_same_bytes_give_the_same_record_in_every_case() -> None:
    seen: dict[tuple[bytes, bool], tuple[object, ...]] = {}
    outcomes = set()
    for number, (parts, data, close) in enumerate(chosen()):
        whole = seen.get((data, close)) or record(read([data], close=close))
        if len(data) < 700 and number < 20_000:
            seen[data, close] = whole
        reader = read([part for part in parts if part], close=close)
        assert record(reader) == whole, (parts, close)
        assert_times_fit(reader, len(parts))
        outcomes.add(
            (reader.complete, reader.malformed is None, read_answer(reader, key="").problem is None)
        )
    assert (True, True, True) in outcomes
    assert (False, False, False) in outcomes
    assert (False, True, False) in outcomes


def assert_times_fit(reader: ResponseReader, reads: int) -> None:
    """One time for each part of the body, in order, each of a read that there was."""
    times = list(reader.times)
    assert len(times) == len(reader.part_ends)
    assert all(0 <= time < reads for time in times)
    assert all(earlier < later for earlier, later in pairwise(times))


def test_a_socket_read_by_the_native_receiver_gives_the_same_record_in_every_case() -> None:
    asyncio.run(read_every_case_from_a_socket())


async def read_every_case_from_a_socket() -> None:
    reading = SocketReading()
    for parts, _, close in chosen():
        sent = [part for part in parts if part]
        ours = reading.read(sent, close=close)
        reader = ResponseReader()
        ended = any(reader.feed(part, float(number)) for number, part in enumerate(sent))
        if close and not ended:
            reader.close()
        assert record(ours) == record(reader), (parts, close)
        assert ours.part_ends == reader.part_ends
        assert list(ours.times) == sorted(ours.times)
    reading.close()
