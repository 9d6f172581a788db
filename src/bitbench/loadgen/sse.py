"""Server-sent events, found in a body that is complete: nothing of this runs while a stream is being timed."""

import re
import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from bitbench.util.http.limits import EVENT_BYTES, AnswerLimits
from bitbench.util.http.response import ResponseReader
from bitbench.util.units import show_bytes

# A line ends with CRLF, LF or CR, and an empty line ends an event.
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_CLOCK_EACH = 64  # events between two looks at the clock


class Event(NamedTuple):
    data: bytes
    arrived: float  # when the last byte of it did; events of one read have one time


class TooMuch(Exception):
    """The body holds more than its limits allow; says what."""


def events(response: ResponseReader, limits: AnswerLimits) -> Iterator[Event]:
    """The events that carry data, in order. Comments, pings and other fields are passed over.

    An event that the end of the body cut off before its empty line counts too: some servers end with a bare
    `data: [DONE]`, and one that is really cut does not parse. Raises TooMuch; events without data count, too.
    """
    body, part_ends, times = response.body, response.part_ends, response.times
    until = time.thread_time() + limits.decoding_s
    start = 0
    for number, (end, following) in enumerate(_boundaries(body)):
        if number >= limits.events:
            raise TooMuch(f"the stream has more than {limits.events:,} events")
        if number % _CLOCK_EACH == 0 and time.thread_time() > until:
            raise TooMuch("the answers took too long to decode")
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
        line[6:] if line.startswith(b"data: ") else line[5:] for line in event.splitlines() if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None
