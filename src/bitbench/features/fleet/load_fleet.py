"""The load client on several machines: each sends its part of one plan by itself, on a clock that is compared with
ours."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self
from uuid import uuid4

import numpy as np

from bitbench import __version__
from bitbench.features.fleet.channel import LARGEST_FRAME_BYTES, PING_S, Message, Roster, RunLost, Seat, channel_message
from bitbench.features.fleet.incoming import (
    incoming_clock_reading,
    incoming_load_progress,
    incoming_part_report,
    incoming_part_rows,
)
from bitbench.features.fleet.machines import HELLO_S, MOST_LOSSES, WAIT_S, Station, end_machine_stations
from bitbench.features.fleet.orders import LoadOrder, PartReport, merged_fleet_order_times
from bitbench.features.fleet.roster import roster_of
from bitbench.loadgen.client import WorkerPart
from bitbench.loadgen.inputs import hash_input_files
from bitbench.loadgen.progress import Snapshot, sum_progress_snapshots
from bitbench.loadgen.workers import WorkerTask, encode_task_frame, merge_worker_results
from bitbench.ports import LoadJob, LoadLost, LoadResult
from bitbench.records.trial import ClockReading, LoadNode, LoadProgress
from bitbench.util.errors import FleetError, LoadError, UsageError
from bitbench.util.machine_faults import require_linux
from bitbench.util.text import quote

_NS = 1e9


@dataclass
class ClockComparison:
    """Of exchanges: we send, it is asked, it answers, the answer arrives; the middle two on its own clock.

    It cannot be asked before we sent, nor can its answer arrive before it answered, whatever either way took: so its
    clock is ahead by `asked - sent` at most and by `answered - arrived` at least. More exchanges remove what was
    unusual in a way; half of the shortest round trip stays, since how it is divided cannot be known.
    """

    least_ns: float = -math.inf
    most_ns: float = math.inf

    def add(self, sent_ns: int, asked_ns: int, answered_ns: int, arrived_ns: int) -> None:
        self.least_ns = max(self.least_ns, answered_ns - arrived_ns)
        self.most_ns = min(self.most_ns, asked_ns - sent_ns)

    @property
    def offset_ns(self) -> int:
        return round((self.least_ns + self.most_ns) / 2)

    def reading(self) -> ClockReading:
        return ClockReading(offset_s=self.offset_ns / _NS, bound_s=abs(self.most_ns - self.least_ns) / 2 / _NS)


EXCHANGES = 50  # per reading of a clock: past that a bound hardly gets narrower, see docs/scale.md
# From the moment at which all are ready to time zero; more where the way to a machine is long.
LEAD_S = 0.25
WORST_BOUND_S = 5.0  # of a clock: a way of ten seconds. No trial would count long before that


def load_fleet_client(where: str, nodes: int | None, *, has_key: bool, without_token: bool) -> "LoadFleet":
    """`nodes` of the machines at `where`; None: all of them. `has_key`: the endpoint's key goes there. Raises
    UsageError."""
    if where.startswith("ray://") and has_key and os.environ.get("RAY_USE_TLS") != "1":
        raise UsageError("the endpoint's key would go to the Ray cluster in clear; set RAY_USE_TLS=1, or use ssh://")
    return LoadFleet(roster_of(where, without_token=without_token), nodes)


class LoadFleet:
    """Implements core.ports.LoadClient. Node programs are kept from job to job and end with the context."""

    def __init__(self, roster: Roster, count: int | None = None) -> None:
        self._roster, self._count = roster, count
        self._arrived = threading.Event()
        self._stations: list[Station] = []
        self._losses: dict[str, int] = {}  # by machine

    def __enter__(self) -> Self:
        """Raises FleetError where a machine does not answer: its part of the requests would be missing."""
        require_linux()
        try:
            seats = self._roster.seats()
            if self._count is not None and len(seats) < self._count:
                raise FleetError(f"--nodes asks for {self._count} machines, but --on names {len(seats)}")
            self._stations = [self._station(seat) for seat in seats[: self._count]]
            self._connect()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(station.seat.name for station in self._stations)

    def run(self, job: LoadJob, on_progress: Callable[[LoadProgress], None] | None = None) -> LoadResult:
        """Blocks until the trial has ended. Raises LoadLost where a machine went away meanwhile, and LoadError where
        one cannot do its part."""
        self._connect()
        order = LoadOrder(
            id=f"load-{uuid4().hex[:12]}",
            bitbench=__version__,
            numpy=np.__version__,
            files=hash_input_files([job.workload], job.folder),
        )
        count = len(self._stations)
        parts = [
            _Part(station, order, WorkerTask(job, WorkerPart(place, count), report=on_progress is not None))
            for place, station in enumerate(self._stations)
        ]
        try:
            return self._run(parts, on_progress)
        except _PartLost as lost:
            name = lost.part.name
            self._losses[name] = self._losses.get(name, 0) + 1
            self._drop()
            if self._losses[name] >= MOST_LOSSES:
                said = f"{name} was lost {MOST_LOSSES} times ({lost}); the same command with --into resumes"
                raise FleetError(said) from None
            raise LoadLost(f"the load node {name} was lost ({lost})") from None
        except BaseException:  # also an interrupt: what the others still do would disturb the next job
            self._drop()
            raise

    def _run(self, parts: Sequence["_Part"], on_progress: Callable[[LoadProgress], None] | None) -> LoadResult:
        for part in parts:
            part.order()
        self._until(parts, lambda: all(part.is_started for part in parts))
        before = [self._compare_clock(part) for part in parts]
        lead_s = LEAD_S + 4 * max(comparison.reading().bound_s for comparison in before)
        zero_ns = time.monotonic_ns() + round(lead_s * 1e9)
        started_at = datetime.now(UTC) + timedelta(seconds=lead_s)
        for part, comparison in zip(parts, before, strict=True):
            part.go(zero_ns, comparison)
        progress = _Progress(parts, on_progress) if on_progress else None
        self._until(parts, lambda: all(part.report is not None for part in parts), progress.tell if progress else None)
        nodes = [
            part.described(comparison.reading(), self._compare_clock(part).reading())
            for part, comparison in zip(parts, before, strict=True)
        ]
        for part in parts:  # not sooner: rows on their way would disturb machines that still measure
            part.collect()
        self._until(parts, lambda: all(part.is_complete for part in parts))
        results = [part.result() for part in parts]
        _refuse_unconnected(parts, results)
        merged = merge_worker_results(results)
        return replace(
            merged,
            health=merged.health.model_copy(update={"nodes": tuple(nodes)}),
            started_at=started_at.isoformat(),
            sketched=merged_fleet_order_times([part.reported for part in parts]),
        )

    def _until(
        self, parts: Sequence["_Part"], is_done: Callable[[], bool], each: Callable[[], None] | None = None
    ) -> None:
        while True:
            for part in parts:
                part.listen()
            if each is not None:
                each()
            if is_done():
                return
            self._wait()

    def _compare_clock(self, part: "_Part") -> ClockComparison:
        comparison = ClockComparison()
        for number in range(EXCHANGES):
            sent_ns = time.monotonic_ns()
            part.ask_clock(number)
            while part.clock is None and time.monotonic_ns() - sent_ns < PING_S * 1e9:  # or it got lost on the way
                self._wait()
                part.listen()
            part.add_to(comparison, sent_ns)
        if not abs(comparison.most_ns - comparison.least_ns) < 2 * WORST_BOUND_S * 1e9:
            raise part.lost("it does not say what its clock shows, or not in time")
        return comparison

    def _wait(self) -> None:
        self._arrived.wait(WAIT_S)
        self._arrived.clear()

    def _station(self, seat: Seat) -> Station:
        return Station(seat, self._arrived.set)

    def _connect(self) -> None:
        """Those that are not, or are no more. Raises FleetError."""
        for place, station in enumerate(self._stations):
            if station.facts is not None:
                self._hear(station)  # it may be gone since its last part
            if station.is_out:
                self._stations[place] = self._station(station.seat)
        deadline = time.monotonic() + HELLO_S
        for station in self._stations:
            station.greet()
        while missing := [station for station in self._stations if station.facts is None]:
            self._wait()
            for station in missing:
                if not station.is_out:
                    self._hear(station)
                if station.is_out or time.monotonic() > deadline:
                    raise FleetError(f"{station.seat.name} does not answer: {station.trouble or 'it is silent'}")

    def _hear(self, station: Station) -> None:
        try:
            station.listen(HELLO_S)
        except RunLost as lost:
            station.lose(str(lost))

    def _drop(self) -> None:
        """End what runs on all of them; the next job finds new node programs."""
        end_machine_stations(self._stations)
        self._stations = [self._station(station.seat) for station in self._stations]

    def _close(self) -> None:
        end_machine_stations(self._stations)
        self._roster.close()


def _refuse_unconnected(parts: Sequence["_Part"], results: Sequence[LoadResult]) -> None:
    """Raises LoadError for a machine that has no way to an endpoint which answers others: not the endpoint's doing."""
    statuses = [set(result.requests["status"].to_pylist()) for result in results]
    if any("ok" in found for found in statuses):
        for part, result, found in zip(parts, results, statuses, strict=True):
            if found == {"refused"}:
                said = part.quoted(str(result.requests["error"][0]))
                raise LoadError(f"{part.name} has no way to the endpoint, others do: {said}")


class _PartLost(Exception):
    def __init__(self, part: "_Part", why: str) -> None:
        super().__init__(why)
        self.part = part


class _Part:
    """What one machine was told to send, and what it has said about that. Raises _PartLost from any of its methods
    that speak to the machine, and LoadError where the machine refuses."""

    def __init__(self, station: Station, order: LoadOrder, task: WorkerTask) -> None:
        self._station, self._order, self._task = station, order, task
        self.name = station.seat.name
        self.is_started = False
        self.report: PartReport | None = None
        self.is_complete = False
        self.snapshots: Sequence[Snapshot] = ()
        self.clock: Message | None = None  # the answer to the newest question
        self._clock_asked = -1
        self._zero_ns = 0.0  # on our clock, at the earliest
        self._rows = bytearray()
        self._wanted = -1  # the number of the next result
        self._repeat_at = 0.0

    @property
    def reported(self) -> PartReport:
        assert self.report is not None
        return self.report

    def order(self) -> None:
        record = self._order.model_dump_json()
        self._send(
            channel_message("start", encode_task_frame(self._task), work="load", order=self._order.id, record=record)
        )

    def ask_clock(self, number: int) -> None:
        self.clock, self._clock_asked = None, number
        self._send(channel_message("clock", seq=number))

    def add_to(self, comparison: ClockComparison, sent_ns: int) -> None:
        """The answer to the newest question, where it came."""
        if self.clock is not None:
            # Later than it really arrived, which makes the bound wider, not wrong.
            arrived_ns = time.monotonic_ns()
            with self._losing():
                comparison.add(sent_ns, *incoming_clock_reading(self.clock, sent_ns, arrived_ns), arrived_ns)

    def go(self, zero_ns: int, clock: ClockComparison) -> None:
        self._zero_ns = zero_ns - clock.reading().bound_s * 1e9
        self._send(channel_message("go", order=self._order.id, clock_ns=(zero_ns + clock.offset_ns,)))
        self._ask(0)

    def collect(self) -> None:
        """Its rows, piece by piece."""
        self._ask(1)

    def listen(self) -> None:
        """Take in what has arrived. What was asked for and did not come is asked for again."""
        with self._losing():
            for arrived in self._station.listen():
                self._take(arrived)
        if self._wanted >= 0 and not self.is_complete and time.monotonic() > self._repeat_at:
            self._ask(self._wanted)

    def described(self, before: ClockReading, after: ClockReading) -> LoadNode:
        return LoadNode(name=self.name, requests=self.reported.requests, clock_before=before, clock_after=after)

    def result(self) -> LoadResult:
        with self._losing():
            return incoming_part_rows(bytes(self._rows), self.reported, self._task.job, self._task.part)

    def _take(self, arrived: Message) -> None:
        header = arrived.header
        if header.kind == "clock" and header.seq == self._clock_asked:
            self.clock = arrived
        if header.order != self._order.id:
            return
        if header.kind == "refused":
            raise LoadError(f"{self.name} cannot send its part of the requests: {self.quoted(header.said)}")
        if header.kind == "failed":
            raise RunLost(header.said)
        if header.kind == "started":
            self.is_started = True
        elif header.kind == "progress":
            self.snapshots = incoming_load_progress(arrived, self._since_zero_s())
        elif header.kind in ("draft", "end") and header.seq == self._wanted:
            self._take_result(arrived)

    def _take_result(self, arrived: Message) -> None:
        """Number 0 is the report, the others are pieces of the file of rows."""
        if self._wanted == 0:
            self.report = incoming_part_report(arrived, self._since_zero_s())
            self._wanted = -1
        elif arrived.header.kind == "end":
            self.is_complete = True
        else:
            self._rows += b"".join(arrived.parts)
            if not any(arrived.parts) or len(self._rows) > LARGEST_FRAME_BYTES:
                raise RunLost("it sent pieces of rows that are none, or too many")
            self._ask(self._wanted + 1)

    def _since_zero_s(self) -> float:
        return (time.monotonic_ns() - self._zero_ns) / 1e9

    def _ask(self, seq: int) -> None:
        self._wanted, self._repeat_at = seq, time.monotonic() + PING_S
        self._send(channel_message("next", order=self._order.id, seq=seq))

    def _send(self, sent: Message) -> None:
        with self._losing():
            self._station.send(sent)

    def lost(self, why: str) -> _PartLost:
        return _PartLost(self, self.quoted(why))

    @contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except RunLost as lost:
            raise self.lost(str(lost)) from None

    def quoted(self, said: str) -> str:
        return quote(said, self._task.job.endpoint.api_key)


class _Progress:
    """What all machines say, summed up whenever each that still works has said something new."""

    def __init__(self, parts: Sequence[_Part], on_progress: Callable[[LoadProgress], None]) -> None:
        self._parts, self._on_progress = parts, on_progress
        self._before: LoadProgress | None = None
        self._shown: list[Sequence[Snapshot]] = [()] * len(parts)

    def tell(self) -> None:
        newest = [part.snapshots for part in self._parts]
        waits = any(
            new is shown and part.report is None
            for part, new, shown in zip(self._parts, newest, self._shown, strict=True)
        )
        if waits or newest == self._shown or not all(newest):
            return
        self._shown = newest
        self._before = sum_progress_snapshots(
            [snapshot for snapshots in newest for snapshot in snapshots], self._before
        )
        self._on_progress(self._before)
