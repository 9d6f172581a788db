"""What a machine of a fleet is asked to do: one block of a study, or a part of a trial's requests. Everything else is
made on that machine."""

from typing import Literal

from pydantic import Field

from bitbench.core.base import Record
from bitbench.core.cell import Cell, Contender, Plan, Purpose
from bitbench.core.recorded.trial import TrialRecord

ORDER_FORMAT: Literal[1] = 1
# History of ORDER_FORMAT:
#   1  first form; `excused` came later


class Order(Record):
    """A block, or what is left of one: all of its contenders, so that what is special about a machine cancels out.

    The machine works only where its own versions, variants and files are those that the driver found. No weights, rows
    or keys are in it: it has some kilobytes.
    """

    format: int = ORDER_FORMAT
    id: str  # of this attempt; the same block has another one when it is repeated
    bitbench: str  # the version that wrote it, and has to run it
    plan: Plan
    folder: str  # what file names in the study are relative to, on the driver and on the machine
    block: int
    rounds: int  # 0: only quality is left to measure
    purpose: Purpose = Purpose.SELECTION
    open_cells: tuple[int, ...] = ()  # places in the plan's cells that have an undecided question
    quality: tuple[Contender, ...] = ()  # whose quality this machine measures
    # What was recorded before and matters here: this block, failures elsewhere, the most memory of each contender.
    # Without figures.
    history: tuple[TrialRecord, ...] = ()
    excused: tuple[str, ...] = ()  # ids of those that an earlier call of the driver rejected
    environments: dict[str, str] = Field(default_factory=dict)  # hashes of their package versions
    variants: dict[str, str] = Field(default_factory=dict)  # content hashes
    files: dict[str, str] = Field(default_factory=dict)  # hashes of the texts and traces that the study reads

    @property
    def cells(self) -> frozenset[Cell]:
        return frozenset(self.plan.cells[place] for place in self.open_cells)

    @property
    def name(self) -> str:
        return f"block {self.block + 1}" if self.rounds else "quality"


LOAD_ORDER_FORMAT: Literal[1] = 1
# History of LOAD_ORDER_FORMAT:
#   1  first form


class LoadOrder(Record):
    """One machine's part of the requests of a trial. The task itself, with the key of the endpoint, is a part of the
    message and in no record."""

    format: int = LOAD_ORDER_FORMAT
    id: str
    bitbench: str  # the version that wrote it, and has to run it
    numpy: str  # likewise: it draws the plan, and every machine has to draw the same
    files: dict[str, str] = Field(default_factory=dict)  # hashes of the texts and traces that the workload reads
