"""fleet.json: who works on a study that runs on several machines. A view for people; nothing is decided from it."""

from typing import Literal

from bitbench.core.base import Record

FLEET_FORMAT: Literal[1] = 1
# History of FLEET_FORMAT:
#   1  first form


class MachineState(Record):
    name: str
    state: str  # ready, connecting, or why it is out
    works_on: str | None = None  # the block
    activity: str = ""  # within it
    blocks: int = 0  # that it began, and did not lose


class FleetState(Record):
    format: int = FLEET_FORMAT
    updated_at: str  # wall clock, ISO 8601 in UTC
    trials: int | None = None  # recorded so far; None: no study, machines were only looked at
    remaining_s: float | None = None  # an estimate, with the machines that there are
    machines: tuple[MachineState, ...] = ()
