"""The node program's side of a conversation with its driver, whatever it works on, one order at a time on a machine."""

import contextlib
import os
import queue
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Protocol

from bitbench import __version__
from bitbench.features.fleet.channel import (
    LARGEST_FRAME_BYTES,
    SILENCE_S,
    Message,
    channel_message,
    decode_channel_message,
    encode_channel_message,
)
from bitbench.features.fleet.orders import PartProgress
from bitbench.loadgen.progress import Snapshot
from bitbench.loadgen.workers import LoadWorkers
from bitbench.measure.workplace import Workplace
from bitbench.util import machine_faults
from bitbench.util.child_processes import read_child_frame, write_child_frame
from bitbench.util.errors import BitbenchError, FleetError


class MachineBusy(Exception):
    """Another block runs here."""


@contextlib.contextmanager
def fleet_serving_lock(slot: str = "") -> Iterator[None]:
    """An abstract socket name: machine-wide, of no user and no folder, and gone with the process that holds it.

    `slot`: this machine may be divided on purpose, as by `--on local:N`. Raises MachineBusy.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        try:
            held.bind(f"\0bitbench-machine{slot and '-'}{slot}")
        except OSError:
            raise MachineBusy from None
        yield


END_S = 20.0  # to end an engine and the load client; what is left then ends with this process


class NodeJob(Protocol):
    """What an order asks for."""

    @property
    def id(self) -> str: ...

    def results(self, node: "Node") -> Iterator[Message]:
        """Drafts, each made when it is asked for. Everything that can be refused happens before `say_started`."""


class Node:
    """The main thread works; another one listens, and answers at once whatever is going on."""

    def __init__(self, requests: IO[bytes], results: IO[bytes], slot: str, read: Callable[[Message], NodeJob]) -> None:
        """`read` raises FleetError for an order that it does not understand."""
        self._requests, self._results, self._slot, self._read = requests, results, slot, read
        self._sending = threading.Lock()
        self._jobs: queue.SimpleQueue[NodeJob] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._order = ""  # the id of that under way, or of the last one
        self._started = False
        self._is_idle = True
        self._asked = -1  # the number of the newest result that was asked for
        self._offered: Message | None = None  # the newest result, until the one after it is asked for
        self._zero_ns: int | None = None  # of the load under way, once it is known
        self.load = LoadWorkers()  # started when a load is ordered, and kept: starting their processes takes a second
        self._heard_at = time.monotonic()  # when the driver was
        self.activity = "idle"

    def serve(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()
        with contextlib.ExitStack() as stack:
            stack.push(self.load)
            try:
                while True:
                    self._work(self._jobs.get())
            except KeyboardInterrupt:
                return

    def _listen(self) -> None:
        try:
            is_wanted = True
            while is_wanted:
                frame = read_child_frame(self._requests, LARGEST_FRAME_BYTES)
                at_ns = time.monotonic_ns()
                self._heard_at = at_ns / 1e9
                is_wanted = self._answer(decode_channel_message(frame), at_ns)
        except (EOFError, OSError, ValueError, FleetError):
            pass  # the driver is gone, or no driver
        self._end()

    def _watch(self) -> None:
        """Beside the listener, which cannot answer, and hears nothing more, where a cut cable keeps a result from
        leaving."""
        while (patience_s := self._heard_at + SILENCE_S - time.monotonic()) > 0:
            time.sleep(patience_s)
        self._end()

    def _end(self) -> None:
        patience = threading.Timer(END_S, os._exit, (1,))
        patience.daemon = True
        patience.start()
        os.kill(os.getpid(), signal.SIGINT)  # the way by which a study is stopped by hand

    def _answer(self, asked: Message, at_ns: int) -> bool:
        """`at_ns`: when it was asked. False: it is told to end."""
        header = asked.header
        if header.kind == "hello":
            self._send(channel_message("hello", bitbench=__version__, host=Workplace().host()))
        elif header.kind == "ping":
            self._send(channel_message("pong", order=self._order, said=self.activity))
        elif header.kind == "clock":
            self._send(channel_message("clock", seq=header.seq, clock_ns=(at_ns, time.monotonic_ns())))
        elif header.kind == "go":
            self._go(header.order, header.clock_ns)
        elif header.kind == "start":
            self._begin(asked)
        elif header.kind == "next":
            self._next(header.order, header.seq)
        return header.kind != "stop"

    def _begin(self, asked: Message) -> None:
        with self._state:
            if self._order == asked.header.order:
                if self._started:
                    self._send(channel_message("started", order=self._order))
                return
            if not self._is_idle:
                self._refuse(asked.header.order, f"it works on order {self._order}", is_passing=True)
                return
            try:
                job = self._read(asked)
            except FleetError as error:
                self._refuse(asked.header.order, str(error))
                return
            self._order, self._started, self._is_idle = job.id, False, False
            self._asked, self._offered, self._zero_ns = -1, None, None
        self._jobs.put(job)

    def _next(self, order: str, seq: int) -> None:
        with self._state:
            if order != self._order:
                return
            if self._offered is not None and self._offered.header.seq == seq:
                self._send(self._offered)
            elif seq == self._asked + 1:
                self._asked, self._offered = seq, None
                self._state.notify_all()

    def _go(self, order: str, clock_ns: Sequence[int]) -> None:
        with self._state:
            if order == self._order and clock_ns:
                self._zero_ns = clock_ns[0]
                self._state.notify_all()

    def _work(self, job: NodeJob) -> None:
        seq = 0
        self.activity = "preparing"
        try:
            with fleet_serving_lock(self._slot):
                for result in job.results(self):
                    self._offer(result)
                    seq += 1
            self._offer(channel_message("end", order=job.id, seq=seq))
        except Exception as error:
            if self._started:
                self._offer(channel_message("failed", order=job.id, seq=seq, said=_sentence(error)))
            else:
                busy = isinstance(error, MachineBusy)
                said = "another block or load runs on it" if busy else _sentence(error)
                self._end_order(channel_message("refused", order=job.id, said=said, is_passing=busy))

    def say_started(self) -> None:
        """All is well, and prepared."""
        with self._state:
            self._started = True
            self._send(channel_message("started", order=self._order))

    def wait_for_zero(self) -> float:
        """On this machine's clock, in seconds."""
        with self._state:
            self._state.wait_for(lambda: self._zero_ns is not None)
            assert self._zero_ns is not None
            return self._zero_ns / 1e9

    def tell(self, snapshots: Sequence[Snapshot]) -> None:
        told = PartProgress(workers=tuple(snapshots))
        self._send(channel_message("progress", order=self._order, record=told.model_dump_json()))

    def _offer(self, result: Message) -> None:
        """Send a result that was asked for, and wait until the next is."""
        self.wait_until_asked(result.header.seq)
        if result.header.kind != "draft":
            self._end_order(result)
            return
        with self._state:
            self._offered = result
            self._send(result)
            self._state.wait_for(lambda: self._asked > result.header.seq)

    def _end_order(self, last: Message) -> None:
        with self._state:
            self._is_idle, self.activity = True, "idle"
            self._offered = last
            if last.header.kind == "refused":
                self._order = ""  # it may be given again
            self._send(last)

    def wait_until_asked(self, seq: int) -> None:
        with self._state:
            self._state.wait_for(lambda: self._asked >= seq)

    def _refuse(self, order: str, why: str, *, is_passing: bool = False) -> None:
        self._send(channel_message("refused", order=order, said=why, is_passing=is_passing))

    def _send(self, sent: Message) -> None:
        with self._sending, contextlib.suppress(OSError):  # the listener sees that the driver is gone
            write_child_frame(self._results, encode_channel_message(sent))


def _sentence(error: Exception) -> str:
    if isinstance(error, BitbenchError):
        return str(error)
    traceback.print_exception(error)
    if isinstance(error, OSError) and (fault := machine_faults.explain_machine_fault(error)) is not None:
        return fault
    return f"unexpected {type(error).__name__}: {error}"
