"""What the native receiver hands over and what it keeps, on real sockets."""

import select
import socket
import time
from collections.abc import Iterator

import pytest

from bitbench.util.http.response import PLAIN_BYTES

pytestmark = pytest.mark.alone

native = pytest.importorskip(
    "bitbench._native", reason="the native part was not built: no C++ compiler here"
)

CHUNK = b"5\r\nhello\r\n"
OTHER = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
        ours.setblocking(False)
        with ours, theirs:
            yield ours, theirs


def reads(receiver: "native.Receiver") -> list[tuple[int, bytes, int, float, float]]:
    select.select([receiver], [], [], 5)
    return list(receiver.receive(may_wait=False))


def test_whole_chunks_are_kept_until_something_else_comes(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    receiver, parts = native.Receiver(), native.Parts(PLAIN_BYTES)
    receiver.watch(ours.fileno())
    theirs.sendall(CHUNK)
    assert [data for _, data, *_ in reads(receiver)] == [CHUNK]  # nobody has said where it goes
    receiver.keep_chunks(ours.fileno(), parts)
    for data in (CHUNK, CHUNK):
        theirs.sendall(data)
        assert reads(receiver) == []
    theirs.sendall(OTHER)
    assert [data for _, data, *_ in reads(receiver)] == [OTHER]
    theirs.sendall(CHUNK)
    assert [data for _, data, *_ in reads(receiver)] == [
        CHUNK
    ]  # it belongs behind what is not looked into yet
    assert parts.body == b"hellohello"
    assert parts.lengths == [5, 5]
    assert parts.times == sorted(parts.times)


@pytest.mark.parametrize(
    "data",
    [
        CHUNK + CHUNK,
        CHUNK[:-1],
        b"05\r\nhello\r\n",
        b"5;x=1\r\nhello\r\n",
        b"0\r\n\r\n",
        b"6\r\nhello\r\n",
    ],
)
def test_only_a_plain_whole_chunk_is_kept(
    pair: tuple[socket.socket, socket.socket], data: bytes
) -> None:
    ours, theirs = pair
    receiver, parts = native.Receiver(), native.Parts(PLAIN_BYTES)
    receiver.watch(ours.fileno())
    receiver.keep_chunks(ours.fileno(), parts)
    theirs.sendall(data)
    assert [read[1] for read in reads(receiver)] == [data]
    assert len(parts) == 0


def test_a_read_has_the_time_at_which_the_kernel_had_it(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    receiver = native.Receiver()
    receiver.watch(ours.fileno())
    theirs.sendall(CHUNK)
    time.sleep(
        0.05
    )  # the kernel begins to note times a moment after the first socket that asks for them
    reads(receiver)
    before = time.monotonic()
    theirs.sendall(CHUNK)
    after = time.monotonic()
    time.sleep(0.05)
    ((_, _, _, arrived, noticed),) = reads(receiver)
    assert before <= arrived <= after + 0.01
    assert noticed - arrived >= 0.04


def test_a_connection_that_is_closed_or_forgotten_is_read_no_more(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    receiver = native.Receiver()
    receiver.watch(ours.fileno())
    theirs.close()
    assert [(data, error) for _, data, error, *_ in reads(receiver)] == [(b"", 0)]
    assert receiver.receive(may_wait=True) == []
    receiver.forget(ours.fileno())


def test_a_connection_that_breaks_says_why(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    receiver = native.Receiver()
    receiver.watch(ours.fileno())
    theirs.setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0"
    )  # a close sends a reset
    theirs.close()
    ((_, data, error, *_),) = reads(receiver)
    assert (data, error) == (b"", 104)  # ECONNRESET
