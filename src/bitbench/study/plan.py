"""The matrix of a study: who is compared (contenders), on what (workloads), in which order (groups)."""

from collections.abc import Callable, Collection
from enum import StrEnum

from bitbench.study.base import Record
from bitbench.study.imported import ImportSource
from bitbench.study.processor import Level
from bitbench.study.study import Study
from bitbench.study.variant import NO_MODEL, Variant
from bitbench.study.workload import Workload

UNKNOWN_ENGINE = "unknown"  # an imported file that does not say what ran it


class Contender(Record):
    """A variant on an engine: one row of a ranking, and what one instance runs."""

    variant: str
    engine: str

    @property
    def name(self) -> str:
        if self.engine == UNKNOWN_ENGINE:
            return self.variant
        return self.engine if self.variant == NO_MODEL else f"{self.variant} @ {self.engine}"


class Cell(Record):
    contender: Contender
    workload: str

    @property
    def name(self) -> str:
        return f"{self.contender.name} · {self.workload}"


class Refusal(Record):
    """A cell that would be meaningless or cannot run, known before anything is started."""

    cell: Cell
    reason: str
    was_tried: bool = False  # its variant could not be made; the next run of the study tries again


class QualityRefusal(Record):
    """A contender whose quality cannot be measured, known before anything is started."""

    contender: Contender
    reason: str


class Support(StrEnum):
    """What is known about a variant on an engine before it is tried."""

    RUNS = "runs"
    RUNS_WITHOUT_SPEEDUP = "runs_without_speedup"
    DOES_NOT_RUN = "does_not_run"


class Expectation(Record):
    """A contender that is tried although it is known not to run, or not to gain anything, and why."""

    contender: Contender
    verdict: Support
    why: str


class ProcessorNote(Record):
    """What instructions that the processor of this machine lacks mean for a contender."""

    contender: Contender
    why: str
    dtype: str | None = None  # what it computes in for that reason, since the study does not say


class Member(Record):
    """A contender of a group, and what it is asked there."""

    contender: Contender
    workloads: tuple[Workload, ...]  # empty where only its quality is left to measure


class Purpose(StrEnum):
    """What the trials of a block are for."""

    SELECTION = "selection"  # all figures, ratios and claims
    CONFIRMATION = "confirmation"  # the chosen contender and the baseline once more, after the choice


class Group(Record):
    """Contenders of a block that are started together and take turns: one round after the other, in random order.

    A block holds one fresh start of each contender. Where memory allows it, one group is all of it, at once or in
    shifts beside the baseline; else each contender is a group of its own. It says all that another machine would need
    to know to run it.
    """

    block: int
    members: tuple[Member, ...]
    rounds: int  # trials of each workload that a member has in this block, those of an interrupted run included
    # Who is resident together, one shift after the other; the member in none of them, the baseline, stays beside each.
    # Empty: all at once.
    shifts: tuple[tuple[Contender, ...], ...] = ()
    purpose: Purpose = Purpose.SELECTION

    @property
    def stays(self) -> Member | None:
        """Has a turn in every round of every shift, so that each contender meets it in all of its rounds."""
        comes = {contender for shift in self.shifts for contender in shift}
        return next((member for member in self.members if self.shifts and member.contender not in comes), None)

    @property
    def shifts_of_members(self) -> tuple[tuple[Member, ...], ...]:
        """Without the one that stays."""
        if not self.shifts:
            return (self.members,)
        member = {one.contender: one for one in self.members}
        return tuple(tuple(member[contender] for contender in shift) for shift in self.shifts)

    @property
    def name(self) -> str:
        return ", ".join(member.contender.name for member in self.members)


class Plan(Record):
    """A study, expanded: what will run, and what will not and why."""

    study: Study
    variants: tuple[Variant, ...]
    cells: tuple[Cell, ...]
    refusals: tuple[Refusal, ...] = ()
    imported_from: ImportSource | None = None  # not run by bitbench, and not to be run: made from another tool's file
    expectations: tuple[Expectation, ...] = ()
    quality: tuple[Contender, ...] = ()  # whose quality is measured: also of some whose speed would mean nothing
    quality_refusals: tuple[QualityRefusal, ...] = ()
    # Names of setups with which every variant says the same: its quality with one is its quality with all of them.
    # Empty: each contender's is measured.
    alike_setups: tuple[tuple[str, ...], ...] = ()
    level: Level | None = None  # of the processor that it was planned for; None: not known, or not computed on
    processor_notes: tuple[ProcessorNote, ...] = ()

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """All that are started."""
        return tuple(dict.fromkeys([*(cell.contender for cell in self.cells), *self.quality]))

    @property
    def models(self) -> tuple[str, ...]:
        """Whose contenders are compared with each other, and with no other model's."""
        model_of = self._model_of()
        refused = (refusal.cell.contender for refusal in self.refusals)
        return tuple(dict.fromkeys(map(model_of, dict.fromkeys([*self.contenders, *refused]))))

    @property
    def rounded_before(self) -> dict[str, str]:
        """Models whose unquantized layers had been rounded already, and to what."""
        known = {variant.model_name: variant.facts.rounded_before for variant in self.variants}
        return {model: rounded for model, rounded in known.items() if rounded is not None}

    def of_model(self, model: str) -> "Plan":
        """The same without the contenders of other models."""
        model_of = self._model_of()
        return self.model_copy(
            update={
                "cells": tuple(cell for cell in self.cells if model_of(cell.contender) == model),
                "refusals": tuple(refusal for refusal in self.refusals if model_of(refusal.cell.contender) == model),
                "quality": tuple(one for one in self.quality if model_of(one) == model),
            }
        )

    def only(self, contenders: Collection[Contender]) -> "Plan":
        """The same without all other contenders."""
        variants = {contender.variant for contender in contenders}
        return self.model_copy(
            update={
                "variants": tuple(variant for variant in self.variants if variant.name in variants),
                "cells": tuple(cell for cell in self.cells if cell.contender in contenders),
                "refusals": tuple(refusal for refusal in self.refusals if refusal.cell.contender in contenders),
                "expectations": tuple(
                    expectation for expectation in self.expectations if expectation.contender in contenders
                ),
                "quality": tuple(one for one in self.quality if one in contenders),
                "quality_refusals": tuple(
                    quality_refusal
                    for quality_refusal in self.quality_refusals
                    if quality_refusal.contender in contenders
                ),
            }
        )

    def _model_of(self) -> Callable[[Contender], str]:
        known = {variant.name: variant.compared_as for variant in self.variants}
        return lambda contender: known.get(contender.variant, "")

    @property
    def chosen_dtypes(self) -> dict[Contender, str]:
        """What contenders compute in because of the processor; of others the engine's default or the study decides."""
        return {note.contender: note.dtype for note in self.processor_notes if note.dtype}

    def sharing_quality(self, contender: Contender) -> tuple[Contender, ...]:
        """Those whose quality is its own, itself among them, in the order in which they are to be measured."""
        alike = next((names for names in self.alike_setups if contender.engine in names), (contender.engine,))
        return tuple(Contender(variant=contender.variant, engine=name) for name in alike)

    @property
    def quality_once(self) -> tuple[Contender, ...]:
        """Whose quality is measured where nothing fails: the first of those that share it."""
        first = {name: names[0] for names in self.alike_setups for name in names}
        found: dict[tuple[str, str], Contender] = {}
        for contender in self.quality:
            found.setdefault((contender.variant, first.get(contender.engine, contender.engine)), contender)
        return tuple(found.values())

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)
