"""What a driver and a node program say to each other. A message is a header and parts of bytes, in one frame.

| driver | node | |
|---|---|---|
| hello | hello | version and facts of the machine |
| start | started, or refused | an order; the same order again changes nothing |
| next | draft, end or failed | the result of this number; asked for twice, it comes twice |
| clock | clock | the machine's monotonic time, when it was asked and when it answered |
| go | progress | time zero of a load on that clock; how it goes from then on |
| ping | pong | every few seconds; either side that hears nothing for a minute gives up |
| stop | | ends the block and the program |

Asking for a number says that all before it are written down. Whoever is in doubt whether something arrived repeats it.
"""

import struct
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from bitbench.records.host import HostFacts
from bitbench.study.base import Record
from bitbench.util.errors import FleetError

PING_S = 5.0
SILENCE_S = 60.0  # after which the other side is given up

Kind = Literal[
    "hello", "start", "next", "ping", "stop", "started", "refused", "draft", "end", "failed", "pong",
    "clock", "go", "progress",
]  # fmt: skip
DraftKind = Literal["instance", "trial", "quality", "load", "rows"]
Work = Literal["block", "load"]

# Of a header: a record of quality with long answers has some megabytes.
LARGEST_HEADER_BYTES = 2**26
_Number = Annotated[int, Field(ge=-1, lt=2**31)]
_Nanoseconds = Annotated[int, Field(gt=-(2**62), lt=2**62)]
_Size = Annotated[int, Field(ge=0)]
_LENGTHS = struct.Struct("<I")


class Header(Record):
    kind: Kind
    order: str = ""  # its id
    work: Work = "block"  # what is ordered: a block of a study, or a part of the requests of a trial
    seq: _Number = -1
    draft: DraftKind | None = None
    record: str = ""  # JSON
    has_rows: bool = False  # the first part is a table
    logs: tuple[str, ...] = ()  # instances of which the further parts are what their logs gained
    said: str = ""  # why it is refused or failed; what it is doing
    is_passing: bool = False  # of a refusal: the machine is busy, or not well, for a while
    bitbench: str = ""
    host: HostFacts | None = None
    clock_ns: tuple[_Nanoseconds, ...] = ()  # of the machine's monotonic clock: asked and answered; time zero
    parts: tuple[_Size, ...] = ()  # their lengths


@dataclass(frozen=True)
class Message:
    header: Header
    parts: tuple[bytes, ...] = field(default=(), repr=False)


def message(kind: Kind, *parts: bytes, **fields: object) -> Message:
    return Message(Header.model_validate({"kind": kind, **fields}), parts)


def encode(sent: Message) -> bytes:
    header = sent.header.model_copy(update={"parts": tuple(len(part) for part in sent.parts)})
    text = header.model_dump_json(exclude_defaults=True).encode()
    return b"".join((_LENGTHS.pack(len(text)), text, *sent.parts))


def decode(frame: bytes) -> Message:
    """Raises FleetError for what no bitbench wrote."""
    try:
        (length,) = _LENGTHS.unpack_from(frame)
        if length > LARGEST_HEADER_BYTES:
            raise FleetError("it sent a message whose header is too large")
        begin = _LENGTHS.size + length
        header = Header.model_validate_json(frame[_LENGTHS.size : begin])
    except (struct.error, ValidationError) as error:
        raise FleetError("it sent something that is no message of bitbench") from error
    parts = []
    for size in header.parts:
        parts.append(frame[begin : begin + size])
        begin += size
    if begin != len(frame):
        raise FleetError("it sent a damaged message")
    return Message(header, tuple(parts))
