"""A way to a node program: messages go in, messages come out, and its end is noticed."""

import contextlib
import queue
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from bitbench.features.fleet.messages import Message, decode, encode
from bitbench.util.child_python import NOWHERE
from bitbench.util.errors import FleetError
from bitbench.util.frames import read_frame, write_frame
from bitbench.util.quotation import quote

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
            write_frame(_pipe(self._process.stdin), encode(sent))
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
                frame = read_frame(_pipe(self._process.stdout), LARGEST_FRAME_BYTES)
                self._inbox.put(decode(frame))
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
