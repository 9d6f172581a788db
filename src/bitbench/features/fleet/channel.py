"""What a driver and a node program say to each other, message by message, and the way it takes.

A message is a header and parts of bytes, in one frame.

| driver | node | |
|---|---|---|
| hello | hello | version and facts of the machine |
| start | started, or refused | an order; the same order again changes nothing |
| next | draft, end or failed | the result of this number; asked for twice, it comes twice |
| clock | clock | the machine's monotonic time, when it was asked and when it answered |
| go | progress | time zero of a load on that clock; how it goes from then on |
| ping | pong | every few seconds; either side that hears nothing for a minute gives up |
| stop | | ends the block and the program |

Asking for a number says that all before it are written down. Whoever is in doubt whether something arrived repeats
it.
"""

import contextlib
import queue
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Annotated, Literal, Protocol

from pydantic import Field, ValidationError

from bitbench.records.lock import HostFacts
from bitbench.study.base import Record
from bitbench.util.child_processes import NOWHERE, read_child_frame, write_child_frame
from bitbench.util.errors import FleetError
from bitbench.util.text import quote

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


def channel_message(kind: Kind, *parts: bytes, **fields: object) -> Message:
    return Message(Header.model_validate({"kind": kind, **fields}), parts)


def encode_channel_message(sent: Message) -> bytes:
    header = sent.header.model_copy(update={"parts": tuple(len(part) for part in sent.parts)})
    text = header.model_dump_json(exclude_defaults=True).encode()
    return b"".join((_LENGTHS.pack(len(text)), text, *sent.parts))


def decode_channel_message(frame: bytes) -> Message:
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


NODE = "bitbench.features.fleet.node"  # the module of the node program
_EXIT_TIMEOUT_S = 10.0  # to end an engine, which has some seconds to end by itself
_SHOWN_LINES = 3
# Of one message. Rows of a trial have about a kilobyte per request; a length beyond this is no length.
LARGEST_FRAME_BYTES = 2**31
# Not yet looked at, of one machine: it answers what it is asked, and tells a few times a second how a load goes.
MOST_WAITING, MOST_WAITING_BYTES = 10_000, 2 * LARGEST_FRAME_BYTES


class ChannelClosed(Exception):
    """The node program is gone, or out of reach; says how."""


class RunLost(Exception):
    """The machine went away, or could not go on; says how. Not the engine's doing."""


class RunRefused(Exception):
    """The machine does not begin; says why. `is_passing`: it may later."""

    def __init__(self, why: str, *, is_passing: bool) -> None:
        super().__init__(why)
        self.is_passing = is_passing


class Channel(Protocol):
    def send(self, sent: Message) -> None:
        """Raises ChannelClosed."""

    def receive(self) -> Message | None:
        """What has arrived, in order; None where nothing has. Raises ChannelClosed once the rest was read."""

    def close(self) -> None:
        """End the program and wait for it. Safe to call twice."""


@dataclass(frozen=True)
class Seat:
    """A machine that could work: what records call it, and the way there."""

    name: str
    key: str  # the same machine after a restart has another one, where that can be told
    connect: Callable[[Callable[[], None]], Channel]  # calls back, from another thread, when something arrived


class Roster(Protocol):
    """The machines that can be reached by now."""

    def seats(self) -> Sequence[Seat]:
        """Raises FleetError where no machine can be reached at all."""

    def close(self) -> None: ...


class Inbox:
    """What arrived from a node program, in order; once it said that the channel is closed, it says so again."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[Message | ChannelClosed] = queue.SimpleQueue()
        self._put_bytes = self._taken_bytes = 0  # each has one thread that counts it
        self.end: ChannelClosed | None = None

    def put(self, arrived: Message | ChannelClosed) -> None:
        """Raises FleetError where more comes than is taken out."""
        if isinstance(arrived, Message):
            self._put_bytes += sum(map(len, arrived.parts))
            if self._arrived.qsize() >= MOST_WAITING or self._put_bytes - self._taken_bytes > MOST_WAITING_BYTES:
                raise FleetError("it sends more than it is asked for")
        self._arrived.put(arrived)

    def receive(self) -> Message | None:
        """None: nothing yet. Raises ChannelClosed."""
        if self.end is not None:
            raise self.end
        try:
            found = self._arrived.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, ChannelClosed):
            self.end = found
            raise found
        self._taken_bytes += sum(map(len, found.parts))
        return found


class PipeChannel:
    """A node program as a child of this process, here or behind a command that reaches another machine."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], on_arrival: Callable[[], None]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=NOWHERE,
                env=dict(environment),
                bufsize=0,
                start_new_session=True,  # an interrupt in the terminal is the driver's to handle
            )
        except OSError as error:
            raise ChannelClosed(f"{command[0]} cannot be started: {error.strerror}") from error
        self._inbox = Inbox()
        self._on_arrival = on_arrival
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, sent: Message) -> None:
        try:
            write_child_frame(_pipe(self._process.stdin), encode_channel_message(sent))
        except (OSError, ValueError):
            raise ChannelClosed(self._obituary()) from None

    def receive(self) -> Message | None:
        return self._inbox.receive()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may be gone already
            _pipe(self._process.stdin).close()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_EXIT_TIMEOUT_S)
        if not self._errors.closed:
            _pipe(self._process.stdout).close()
            self._errors.close()

    def _read(self) -> None:
        try:
            while True:
                frame = read_child_frame(_pipe(self._process.stdout), LARGEST_FRAME_BYTES)
                self._inbox.put(decode_channel_message(frame))
                self._on_arrival()
        except (EOFError, OSError, ValueError):
            self._inbox.put(ChannelClosed(self._obituary()))
        except FleetError as error:
            self._inbox.put(ChannelClosed(str(error)))
        self._on_arrival()

    def _obituary(self) -> str:
        try:
            code = self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "its node program closed its pipes"
        lines: list[str] = []
        if not self._errors.closed:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"its node program {ended}" + (f": {quote(' / '.join(lines), '')}" if lines else "")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
