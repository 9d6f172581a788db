"""Who works on a study that runs on several machines, and what a report says of them."""

from typing import Literal

from bitbench.study.base import Record

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
    """Content of fleet/state.json in a study folder. A view for people; nothing is decided from it."""

    format: int = FLEET_FORMAT
    updated_at: str  # wall clock, ISO 8601 in UTC
    trials: int | None = None  # recorded so far; None: no study, machines were only looked at
    remaining_s: float | None = None  # an estimate, with the machines that there are
    machines: tuple[MachineState, ...] = ()


class MachinePart(Record):
    """What one machine of several did, and how fast it is beside the others."""

    name: str
    blocks: int
    trials: int  # that count
    speed: float  # over all points, relative to the mean of the blocks: 1.1 is ten percent faster


class MachineFactor(Record):
    """Of a study whose blocks ran on several machines."""

    machines: tuple[MachinePart, ...]
    # Of the variation of a block's speed, how much is the machine's; None where no machine ran two blocks.
    share: float | None = None


class LoadNodeSummary(Record):
    """What one of several machines sent, in the trials that count."""

    name: str
    trials: int
    requests: int
    off_by_s: float  # at most: how much earlier or later than planned, because of its clock; the worst of the trials


class LoadNodes(Record):
    """Of a study whose requests were sent by several machines; never empty."""

    nodes: tuple[LoadNodeSummary, ...]
