"""What the study promises, held against everything that was measured of each cell."""

from collections.abc import Iterator
from functools import partial

from bitbench.core.found.summary import CellSummary, StudySummary
from bitbench.core.found.tails import ObjectiveVerdict
from bitbench.report.document.model import Mark, Name, Phrase, Quantity, Section, Unit
from bitbench.report.document.tables import number_column, table, words_column
from bitbench.report.document.text import MAX_NAME
from bitbench.report.document.words import bullets, listing, paragraph, say
from bitbench.report.labels import Labels
from bitbench.report.quantities import ROUGH

MARKS = {ObjectiveVerdict.MET: "✓", ObjectiveVerdict.MISSED: "✗", ObjectiveVerdict.INCONCLUSIVE: "?"}
SYMBOLS = "✓ the whole interval is within the limit, ✗ the whole interval is beyond it, ? inconclusive."


def objectives_section(summary: StudySummary) -> Section | None:
    """None of a study that promises nothing, or has no result yet."""
    objectives = summary.study.objectives
    cells = [cell for cell in summary.cells if any(one.value is not None for one in cell.objectives)]
    if not objectives or not cells:
        return None
    labels = Labels.of(summary, MAX_NAME)
    limits = [say(Name(one.name), " ≤ ", Quantity(one.limit, Unit.SECONDS, digits=ROUGH)) for one in objectives]
    verdicts = table(
        cells,
        words_column("Workload", lambda cell: Name(cell.cell.workload)),
        words_column("Contender", lambda cell: Name(labels[cell.cell.contender])),
        *(
            number_column(one.name, Unit.SECONDS, partial(_judged, place), intervals_from=0)
            for place, one in enumerate(objectives)
        ),
        mark=_mark,
    )
    asked = paragraph("Promised: ", listing(limits), ", of all trials of a cell together. ", SYMBOLS)
    return Section(say("Objectives"), (asked, verdicts, *bullets(_open(cells))))


def _judged(place: int, cell: CellSummary) -> Quantity:
    one = cell.objectives[place]
    note = " ".join(part for part in (f"({one.note})" if one.note else "", MARKS[one.verdict]) if part)
    return Quantity(one.value, Unit.SECONDS, one.low, one.high, note=note)


def _mark(cell: CellSummary) -> Mark | None:
    return Mark.ALARM if any(one.verdict is ObjectiveVerdict.MISSED for one in cell.objectives) else None


def _open(cells: list[CellSummary]) -> Iterator[Phrase]:
    """What is inconclusive, once per reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        for one in cell.objectives:
            if one.reason:
                reasons.setdefault((one.objective.name, one.reason), []).append(cell.cell.name)
    for (name, reason), found in reasons.items():
        where = listing([Name(one) for one in found], most=3)
        yield say("Inconclusive: ", Name(name), " of ", where, f": {reason}.")
