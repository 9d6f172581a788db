"""One machine, as the driver sees it: reached, heard, left alone for a while where it was lost."""

import threading
import time
from collections.abc import Callable, Sequence

from bitbench import __version__
from bitbench.features.fleet.channel import Channel, ChannelClosed, RunLost, Seat
from bitbench.features.fleet.incoming import host_facts
from bitbench.features.fleet.messages import PING_S, SILENCE_S, Message, message
from bitbench.records.host import HostFacts
from bitbench.util.quotation import quote

HELLO_S = 60.0  # to start the node program and to hear its first word; imports take a second or two
# A machine that was lost is left alone for this time, then for twice as long, and then for good, unless it completed a
# block in between.
QUARANTINE_S = 30.0
MOST_LOSSES = 3
WAIT_S = 0.5
MOST_AT_ONCE = 100  # messages of one machine: others want to be heard as well


class Station:
    """One machine, as the driver sees it: a channel where there is one, and why not where there is none."""

    def __init__(self, seat: Seat, on_arrival: Callable[[], None]) -> None:
        self.seat = seat
        self._on_arrival = on_arrival
        self._channel: Channel | None = None
        self._heard_at = self._pinged_at = 0.0
        self._closing: list[threading.Thread] = []
        self._losses = 0  # since its last complete block
        self._out_until = 0.0  # inf: for good
        self.facts: HostFacts | None = None
        self.trouble = ""  # why it is out
        self.activity = ""
        self.is_busy = False  # a run listens to it

    @property
    def is_out(self) -> bool:
        return time.monotonic() < self._out_until

    @property
    def is_out_for_good(self) -> bool:
        return self._out_until == float("inf")

    @property
    def state(self) -> str:
        if self.is_out:
            return f"out{' for good' if self.is_out_for_good else ''}: {self.trouble}"
        return "ready" if self.facts is not None else "connecting"

    def greet(self) -> None:
        """Connect where it is not; `facts` are known once it has answered."""
        if self._channel is not None or self.is_out:
            return
        try:
            self._channel = self.seat.connect(self._on_arrival)
            self._heard_at = self._pinged_at = time.monotonic()
            self._channel.send(message("hello"))
        except ChannelClosed as closed:
            self.lose(str(closed))

    def send(self, sent: Message) -> None:
        """Raises RunLost."""
        try:
            self._open.send(sent)
        except ChannelClosed as closed:
            raise RunLost(str(closed)) from None

    def listen(self, patience_s: float = SILENCE_S) -> list[Message]:
        """What has arrived for whoever works with it; asks for a sign of life now and then. Raises RunLost."""
        found: list[Message] = []
        try:
            for _ in range(MOST_AT_ONCE):
                if (arrived := self._open.receive()) is None:
                    break
                self._heard_at = time.monotonic()
                if arrived.header.kind == "hello":
                    self._meet(arrived)
                elif arrived.header.kind == "pong":
                    self.activity = quote(arrived.header.said, "")
                else:
                    found.append(arrived)
        except ChannelClosed as closed:
            raise RunLost(str(closed)) from None
        now = time.monotonic()
        if now - self._heard_at > patience_s:
            raise RunLost(f"it was silent for {patience_s:.0f} s")
        if now - self._pinged_at > PING_S:
            self._pinged_at = now
            self.send(message("ping"))
        return found

    def lose(self, cause: str) -> None:
        """Leave it alone for a while. What still runs there ends by itself once it hears nothing more."""
        self._losses += 1
        for_good = self._losses >= MOST_LOSSES
        self.keep_out(cause, float("inf") if for_good else QUARANTINE_S * 2 ** (self._losses - 1))

    def keep_out(self, cause: str, seconds: float) -> None:
        self.close()
        self.trouble, self._out_until = cause, time.monotonic() + seconds

    def succeed(self) -> None:
        """With a block: whatever was wrong before was not the machine."""
        self._losses = 0

    def close(self) -> None:
        """Not waited for: to end what is out of reach takes many seconds, in which the others would hear nothing."""
        if self._channel is not None:
            self._closing = [thread for thread in self._closing if thread.is_alive()]
            self._closing.append(threading.Thread(target=self._channel.close))
            self._closing[-1].start()
        self._channel, self.facts, self.activity = None, None, ""

    def end(self) -> None:
        self.close()
        for thread in self._closing:
            thread.join()

    @property
    def _open(self) -> Channel:
        if self._channel is None:
            raise RunLost("it is not connected")
        return self._channel

    def _meet(self, hello: Message) -> None:
        if hello.header.bitbench != __version__:
            raise RunLost(f"it has bitbench {quote(hello.header.bitbench, '')} instead of {__version__}")
        self.facts = self.facts or host_facts(hello)


def end_all(stations: Sequence[Station]) -> None:
    """At once: what is out of reach takes many seconds."""
    for station in stations:
        station.close()
    for station in stations:
        station.end()
