"""What `bitbench fleet` shows: the state that a driver writes, or what machines say when they are asked."""

from contextlib import closing
from pathlib import Path

from bitbench.core.recorded.fleet import FleetState, MachineState
from bitbench.core.recorded.host import HostFacts
from bitbench.fleet.address import roster_of
from bitbench.ground.errors import StoreError
from bitbench.ground.units import show_bytes
from bitbench.lab.fleet import FleetExecutor
from bitbench.lab.observer import LogObserver
from bitbench.lab.trial import now
from bitbench.store.folder import StudyFolder


def fleet_at(where: str, *, without_token: bool = False) -> FleetState:
    """`where`: a study folder, or an address as `--on` takes it."""
    if not Path(where).is_dir():
        return _asked(where, without_token=without_token)
    state = StudyFolder.existing(Path(where)).fleet()
    if state is None:
        raise StoreError(f"{where} was not run on several machines; `bitbench run STUDY --on WHERE` does that")
    return state


def _asked(address: str, *, without_token: bool) -> FleetState:
    roster = roster_of(address, without_token=without_token)
    with closing(FleetExecutor(roster, None, LogObserver())) as fleet:
        facts = fleet.hosts()
        machines = tuple(
            MachineState(name=one.seat.name, state=one.state, activity=_described(facts.get(one.seat.name)))
            for one in fleet.stations
        )
    return FleetState(updated_at=now(), machines=machines)


def _described(host: HostFacts | None) -> str:
    if host is None:
        return ""
    facts = (
        host.cpu_model,
        f"{host.cores} cores" if host.cores else None,
        show_bytes(host.memory_bytes) if host.memory_bytes else None,
        *(one.name for one in host.accelerators),
    )
    return ", ".join(fact for fact in facts if fact)
