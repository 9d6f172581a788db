"""What `bitbench fleet` shows: the state that a driver writes, or what machines say when they are asked."""

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bitbench.features.fleet.address import roster_of
from bitbench.features.fleet.driver import UnderWay
from bitbench.features.fleet.machines import Fleet
from bitbench.features.fleet.types import FLEET_FORMAT, FleetState, MachineState
from bitbench.measure.observer import LogObserver
from bitbench.measure.schedule import Schedule
from bitbench.measure.trial import now
from bitbench.records.folder import StudyFolder
from bitbench.records.host import HostFacts
from bitbench.records.strict_reader import read_document
from bitbench.util.errors import StoreError
from bitbench.util.safe_files import SafeFolder
from bitbench.util.units import show_bytes

_PLACE, _NAME = "fleet", "state.json"  # in a study folder


def fleet_at(where: str, *, without_token: bool = False) -> FleetState:
    """`where`: a study folder, or an address as `--on` takes it."""
    if not Path(where).is_dir():
        return _asked(where, without_token=without_token)
    file = StudyFolder.existing(Path(where)).path / _PLACE / _NAME
    if not file.exists():
        raise StoreError(f"{where} was not run on several machines; `bitbench run STUDY --on WHERE` does that")
    return read_document(file, FleetState, FLEET_FORMAT, "remove it; it is only a view")


def _asked(address: str, *, without_token: bool) -> FleetState:
    roster = roster_of(address, without_token=without_token)
    with closing(Fleet(roster, None, LogObserver())) as fleet:
        facts = fleet.hosts()
        machines = tuple(
            MachineState(name=station.seat.name, state=station.state, activity=_described(facts.get(station.seat.name)))
            for station in fleet.stations
        )
    return FleetState(updated_at=now(), machines=machines)


def _described(host: HostFacts | None) -> str:
    if host is None:
        return ""
    facts = (
        host.cpu_model,
        f"{host.cores} cores" if host.cores else None,
        show_bytes(host.memory_bytes) if host.memory_bytes else None,
        *(accelerator.name for accelerator in host.accelerators),
    )
    return ", ".join(fact for fact in facts if fact)


class FleetStatus:
    """Tells the study folder who works on what, for `bitbench fleet`."""

    def __init__(self, folder: StudyFolder, fleet: Fleet, schedule: Schedule) -> None:
        self._files, self._fleet, self._schedule = SafeFolder(folder.path), fleet, schedule
        self._files.remove_matching(_PLACE, re.compile(re.escape(_NAME)), frozenset({_NAME}))  # what a kill left of it
        self._blocks: dict[str, set[int]] = {}  # by machine
        self._written: tuple[MachineState, ...] | None = None

    def update(self, under_way: Sequence[UnderWay]) -> None:
        """Written where it says something new."""
        orders = {work.machine.name: work.order for work in under_way}
        for block, host in self._schedule.hosts.items():
            self._blocks.setdefault(host, set()).add(block)
        states = tuple(
            MachineState(
                name=station.seat.name,
                state=station.state,
                works_on=order.name if (order := orders.get(station.seat.name)) else None,
                activity=station.activity if order else "",
                blocks=len(self._blocks.get(station.seat.name, ())),
            )
            for station in self._fleet.stations
        )
        if states != self._written:
            self._written = states
            state = FleetState(
                updated_at=now(),
                trials=self._schedule.measured,
                remaining_s=self._schedule.pace.remaining_s(),
                machines=states,
            )
            self._files.write(f"{_PLACE}/{_NAME}", state.model_dump_json(indent=1) + "\n")
