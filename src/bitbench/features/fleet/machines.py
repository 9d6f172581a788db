"""The machines of a study as the driver sees them: which there are, what each runs, and what is done when one goes
away."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bitbench import __version__
from bitbench.features.fleet.channel import (
    PING_S,
    SILENCE_S,
    Channel,
    ChannelClosed,
    Message,
    Roster,
    RunLost,
    RunRefused,
    Seat,
    channel_message,
)
from bitbench.features.fleet.incoming import BlockResults, clock_for_incoming_s, incoming_host_facts
from bitbench.features.fleet.orders import MATERIALS, BlockOrder
from bitbench.measure.group import Draft
from bitbench.measure.quality import QualityDraft
from bitbench.measure.trial import TrialDraft
from bitbench.ports import Observer
from bitbench.records.folder import Writer
from bitbench.records.lock import HostFacts
from bitbench.records.quality import QualityMaterial
from bitbench.study.plan import Group, Member
from bitbench.util.errors import FleetError
from bitbench.util.text import quote

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
            self._channel.send(channel_message("hello"))
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
            self.send(channel_message("ping"))
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
        self.facts = self.facts or incoming_host_facts(hello)


def end_machine_stations(stations: Sequence[Station]) -> None:
    """At once: what is out of reach takes many seconds."""
    for station in stations:
        station.close()
    for station in stations:
        station.end()


BUSY_S = 5.0  # another block runs there: asked again after this time


@dataclass(frozen=True)
class Machine:
    """One that can take a block."""

    name: str
    facts: HostFacts


class Ended:
    """Nothing is left of the block."""


ENDED = Ended()


class Fleet:
    """All machines of a study; they join and leave while it runs."""

    def __init__(self, roster: Roster, writer: Writer | None, observer: Observer) -> None:
        """`writer`: None where machines are only looked at."""
        self._roster, self._writer, self._observer = roster, writer, observer
        self._arrived = threading.Event()
        self._stations: dict[str, Station] = {}  # by the key of a seat
        self._gone: list[Station] = []  # that have left, and may not have ended
        self._class: HostFacts | None = None

    @property
    def size(self) -> int:
        """Machines that there are, well or not."""
        return max(1, len(self._stations))

    @property
    def stations(self) -> Sequence[Station]:
        return tuple(self._stations.values())

    def hosts(self) -> dict[str, HostFacts]:
        """Of all machines that answer within a minute; others may come later. Raises FleetError where none does."""
        deadline = time.monotonic() + HELLO_S
        while time.monotonic() < deadline:
            ready = self.machines()
            if ready and len(ready) == len([station for station in self.stations if not station.is_out]):
                break
            self.wait()
        found = {machine.name: machine.facts for machine in self.machines()}
        if not found:
            raise FleetError(f"no machine answers: {self._troubles()}")
        for station in self.stations:
            if station.facts is None:
                self._observer.warn(f"{station.seat.name} does not answer{station.trouble and f': {station.trouble}'}")
        self._class = next(iter(found.values()))
        return found

    def machines(self) -> Sequence[Machine]:
        """Those that could take a block now. Raises FleetError where none will ever again."""
        known = {seat.key: seat for seat in self._roster.seats()}
        for key, seat in known.items():
            self._stations.setdefault(key, Station(seat, self._arrived.set))
        for key in [key for key in self._stations if key not in known]:
            gone = self._stations.pop(key)
            gone.close()
            self._gone.append(gone)
        for station in self.stations:
            station.greet()
            if station.facts is None and not station.is_out:
                self._hear_first_word(station)
        if all(station.is_out_for_good for station in self.stations):
            raise FleetError(f"no machine is left to work on this study: {self._troubles()}")
        return [
            Machine(station.seat.name, station.facts)
            for station in self.stations
            if station.facts and not station.is_out
        ]

    def start(self, order: BlockOrder, machine: Machine) -> "RemoteRun":
        self._observer.group_started(_as_group(order), None)
        assert self._writer is not None
        return RemoteRun(self._named(machine.name)[0], order, self._writer)

    def knows(self, host: str) -> bool:
        """Whether a block that was begun on this host can be resumed there, now or later."""
        return any(station.seat.name == host and not station.is_out_for_good for station in self.stations)

    def lost(self, machine: Machine, cause: str) -> None:
        """Keep it out for a while, or for good."""
        for station in self._named(machine.name):
            station.lose(cause)

    def refused(self, machine: Machine, why: str, *, is_passing: bool) -> None:
        """Likewise, by what it said."""
        if not is_passing:
            self._observer.warn(f"{machine.name} does not take part: {why}")
        for station in self._named(machine.name):
            station.keep_out(why, BUSY_S if is_passing else float("inf"))

    def wait(self) -> None:
        """Until something arrives, or a moment has passed."""
        self._arrived.wait(WAIT_S)
        self._arrived.clear()
        for station in self.stations:
            if station.facts is not None and not station.is_busy:
                try:
                    station.listen()  # to those without a block, too: they end when they hear nothing
                except RunLost as lost:
                    station.lose(str(lost))

    def close(self) -> None:
        end_machine_stations((*self.stations, *self._gone))
        self._roster.close()

    def _hear_first_word(self, station: Station) -> None:
        try:
            station.listen(HELLO_S)
        except RunLost as lost:
            station.lose(str(lost))
            return
        if station.facts and self._class and (names := self._class.differences(station.facts)):
            self._observer.warn(
                f"{station.seat.name} is a machine of another class ({', '.join(names)}), and is not used"
            )
            station.keep_out(f"another class of machine ({', '.join(names)})", float("inf"))

    def _named(self, name: str) -> list[Station]:
        """One, or none where it has left meanwhile."""
        return [station for station in self.stations if station.seat.name == name]

    def _troubles(self) -> str:
        said = [f"{station.seat.name}: {station.trouble or 'silent'}" for station in self.stations]
        return "; ".join(said) or "there is none"


class RemoteRun:
    """One order on one machine. Gives instances the ids of this study, and keeps their logs here.

    The driver asks for one result after the other. It asks for the next only when the last is on disk, and may ask for
    the same one again: nothing is lost with the driver, and nothing is written twice.
    """

    def __init__(self, station: Station, order: BlockOrder, writer: Writer) -> None:
        self._station, self._order, self._writer = station, order, writer
        self._ids: dict[str, str] = {}  # of this study, by those of the node
        self._is_started = False
        self._asked: tuple[bool, int] = (False, -1)
        self._asked_at = 0.0  # for the last time
        self._wanted_at = 0.0  # when it was first asked for
        self._waiting: list[Message] = []  # arrived, and not yet looked at
        self._seq = -1
        self._last: Draft | Ended | None = None
        self._materials = self._known_materials()
        self._results = BlockResults(order, self._materials)
        station.is_busy = True

    def next(self, seq: int) -> Draft | Ended | None:
        """The result of this number, from 0 on, once those before it are on disk; None where it has not come yet.
        Raises RunLost and RunRefused."""
        if seq == self._seq:
            return self._last
        self._waiting += self._station.listen()
        while self._waiting:
            arrived = self._waiting.pop(0)
            if arrived.header.order == self._order.id and self._takes(arrived, seq):
                return self._last
        self._ask(seq)
        return None

    def stop(self) -> None:
        """A machine with a block that is not complete is left, and ends it; one that is done stays for the next. Safe
        to call twice."""
        self._station.is_busy = False
        if isinstance(self._last, Ended):
            self._station.succeed()
        else:
            self._station.close()

    def _takes(self, arrived: Message, seq: int) -> bool:
        """Whether it is the result that was asked for."""
        header = arrived.header
        if header.kind == "refused":
            raise RunRefused(quote(header.said, ""), is_passing=header.is_passing)
        if header.kind == "failed":
            raise RunLost(quote(header.said, ""))
        if header.kind == "started":
            self._is_started = True
        if header.kind not in ("draft", "end") or header.seq < seq:
            return False  # a result that was asked for twice
        if self._asked != (True, header.seq):
            raise RunLost("it sent a result that it was not asked for")
        if header.kind == "end":
            self._results.end()
        self._seq, self._last = seq, ENDED if header.kind == "end" else self._stored(arrived)
        return True

    def _ask(self, seq: int) -> None:
        """Once, and again now and then: what got lost on the way is repeated, and nothing happens twice by that."""
        now, wanted = time.monotonic(), (self._is_started, seq)
        if wanted == self._asked and now - self._asked_at < PING_S:
            return
        if wanted != self._asked:
            self._wanted_at = clock_for_incoming_s()
        self._asked, self._asked_at = wanted, now
        if self._is_started:
            self._station.send(channel_message("next", order=self._order.id, seq=seq))
        else:
            order = self._order.model_dump_json()
            materials = MATERIALS.dump_json(self._materials)
            self._station.send(channel_message("start", materials, order=self._order.id, record=order))

    def _known_materials(self) -> dict[str, QualityMaterial]:
        models = {self._order.plan.variant(config.variant).model_name for config in self._order.quality}
        found = {name: self._writer.folder.material(name) for name in models}
        return {name: material for name, material in found.items() if material is not None}

    def _stored(self, arrived: Message) -> Draft:
        draft, logs = self._results.take(arrived, clock_for_incoming_s() - self._wanted_at)
        for instance, gained in logs.items():
            self._writer.append_log(self._id(instance), gained)
        if isinstance(draft, TrialDraft):
            record = draft.record.model_copy(update={"instance_id": self._id(draft.record.instance_id)})
            return TrialDraft(record, draft.requests)
        if isinstance(draft, QualityDraft):
            measured = draft.record.model_copy(update={"instance_id": self._id(draft.record.instance_id)})
            return QualityDraft(measured, draft.scores)
        own = self._id(draft.id)
        return draft.model_copy(update={"id": own, "log_file": f"logs/{own}.log", "host": self._station.seat.name})

    def _id(self, instance: str) -> str:
        if instance not in self._ids:
            self._ids[instance], _ = self._writer.new_instance()
        return self._ids[instance]


def _as_group(order: BlockOrder) -> Group:
    configs = dict.fromkeys(order.plan.points[place].config for place in order.open_points)
    members = tuple(Member(config=config, workloads=()) for config in configs or order.quality)
    return Group(block=order.block, members=members, rounds=order.rounds)
