"""A comparison of two studies, or of two contenders: for a pull request, and for a terminal."""

from collections.abc import Callable, Iterator, Sequence

from bitbench.core.cell import Cell
from bitbench.core.found.comparison import ComparedCell, Comparison, GateOutcome, GateResult, Verdict
from bitbench.report.document.model import (
    Block,
    Column,
    Document,
    Mark,
    Name,
    Paragraph,
    Phrase,
    Quantity,
    Row,
    Section,
    Table,
    TableCell,
    Unit,
)
from bitbench.report.document.numbers import percent
from bitbench.report.document.words import (
    Words,
    bullets,
    joined,
    listing,
    names,
    number_column,
    say,
    strong,
    words_column,
)
from bitbench.report.quantities import count, estimated, times, unit_of

MAX_NAMED = 4
WORST_FIRST = (GateOutcome.FAILED, GateOutcome.UNSURE, GateOutcome.PASSED)


def comparison_document(comparison: Comparison) -> Document:
    """What the limits say closes the answer, so that it is the last line in a terminal."""
    limits = [Paragraph(_limits(comparison))] if comparison.gates else []
    conditions = dict.fromkeys(gate.condition for gate in comparison.gates)
    found = [(metric, cells) for metric in comparison.definitions if (cells := _cells_of(comparison, metric))]
    notes = bullets(_notes(comparison))
    return Document(
        say(Name(comparison.candidate), " against ", Name(comparison.baseline)),
        (*bullets(_verdicts(comparison, metric) for metric in comparison.definitions), *limits),
        (
            *(_gate_section(comparison, condition) for condition in conditions),
            *(_metric_section(comparison, metric, cells) for metric, cells in found),
            *([Section(say("What to know"), notes, in_terminal=True)] if notes else []),
        ),
    )


def _cells_of(comparison: Comparison, metric: str) -> list[ComparedCell]:
    return [cell for cell in comparison.cells if cell.metric == metric]


def _verdicts(comparison: Comparison, metric: str) -> Phrase:
    """`Output throughput against a: slower (x · one, x · two); tie (y · one).`"""
    cells = _cells_of(comparison, metric)
    said: list[Words] = []
    for verdict in Verdict:
        found = names(cell.candidate.name for cell in cells if cell.verdict is verdict)
        if found:
            more = [f"{len(found) - MAX_NAMED} more"] if len(found) > MAX_NAMED else []
            said.append(say(f"{verdict.value} (", listing([*found[:MAX_NAMED], *more]), ")"))
    what = say(_title(comparison, metric), " against ", Name(comparison.baseline), ": ")
    return say(what, joined(said, "; ") or "no cell has a result on both sides", ".")


def _title(comparison: Comparison, metric: str) -> str:
    name = comparison.definitions[metric].name
    return name[0].upper() + name[1:]


def _limits(comparison: Comparison) -> Phrase:
    outcomes = [gate.outcome for gate in comparison.gates]
    counts = [f"{outcomes.count(one)} {one.value}" for one in GateOutcome if one in outcomes]
    return strong(f"Limits: {', '.join(counts)}; exit code {comparison.exit_code}.")


def _table(cells: Sequence[Cell], columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """With the names before the figures; without that of the contender where there is only one."""
    named: dict[str, Callable[[Cell], str]] = {
        "Contender": lambda cell: cell.contender.name,
        "Workload": lambda cell: cell.workload,
    }
    if len({cell.contender for cell in cells}) == 1:
        named.pop("Contender")
    full = (
        Row((*(say(Name(name_of(cell))) for name_of in named.values()), *row.cells), row.mark)
        for cell, row in zip(cells, rows, strict=True)
    )
    return Table((*(words_column(title) for title in named), *columns), tuple(full))


def _metric_section(comparison: Comparison, metric: str, cells: Sequence[ComparedCell]) -> Section:
    definition = comparison.definitions[metric]
    columns = (
        number_column("Before", unit_of(definition)),
        number_column("After", unit_of(definition)),
        number_column(f"Ratio ({percent(comparison.confidence)})", Unit.RATIO, intervals_from=0),
        number_column("Starts before", Unit.COUNT, shown_from=110),
        number_column("Starts after", Unit.COUNT, shown_from=110),
        words_column("Verdict"),
    )
    rows = [
        Row(
            (
                estimated(cell.before, definition),
                estimated(cell.after, definition),
                times(cell.ratio),
                count(cell.before.n_instances),
                count(cell.after.n_instances),
                say(cell.verdict.value),
            )
        )
        for cell in cells
    ]
    table = _table([cell.candidate for cell in cells], columns, rows)
    return Section(say(_title(comparison, metric)), (table,), in_terminal=True)


def _gate_section(comparison: Comparison, condition: str) -> Section:
    """What failed first; below it, what would decide the rest."""
    gates = [gate for gate in comparison.gates if gate.condition == condition]
    gates.sort(key=lambda gate: WORST_FIRST.index(gate.outcome))
    columns = (
        number_column("Change", Unit.SHARE),
        number_column(f"Ratio ({percent(_single(comparison))})", Unit.RATIO, intervals_from=0),
        number_column("Starts needed", Unit.COUNT),
        words_column("Outcome"),
    )
    rows = [Row(_gate_cells(gate), Mark.ALARM if gate.outcome is GateOutcome.FAILED else None) for gate in gates]
    blocks: tuple[Block, ...] = (_table([gate.candidate for gate in gates], columns, rows), *bullets(_doubts(gates)))
    return Section(say(f"Fails if {condition}"), blocks, in_terminal=True)


def _gate_cells(gate: GateResult) -> tuple[TableCell, ...]:
    change = Quantity(gate.ratio.value - 1, Unit.SHARE, is_signed=True) if gate.ratio else None
    return change, times(gate.ratio), count(gate.needed_starts), say(gate.outcome.value)


def _single(comparison: Comparison) -> float:
    """The confidence of one interval among all that decide."""
    return 1 - (1 - comparison.confidence) / len(comparison.gates)


def _doubts(gates: Sequence[GateResult]) -> Iterator[str]:
    unsure = [gate for gate in gates if gate.outcome is GateOutcome.UNSURE]
    for reason in dict.fromkeys(gate.reason for gate in unsure):
        alike = [gate for gate in unsure if gate.reason == reason]
        needed = [gate.needed_starts for gate in alike if gate.needed_starts is not None]
        enough = f"; about {max(needed)} starts of each side would decide" if needed else ""
        yield f"Inconclusive ({len(alike)}): {reason}{enough}."


def _notes(comparison: Comparison) -> Iterator[Phrase]:
    if (asked := len(comparison.gates)) > 1:
        yield say(
            f"Corrected for {asked} comparisons ({percent(_single(comparison))} intervals each): the overall "
            f"false-alarm rate stays below {percent(1 - comparison.confidence)}."
        )
    for lost in comparison.unpaired:
        yield say(Name(lost.cell.name), f" {lost.reason}{': it had one before' if lost.was_lost else ''}.")
    for one in comparison.differences:
        subject = say(" of ", Name(one.subject)) if one.subject else ()
        allowed = " (allowed)" if one.is_allowed else ""
        yield say(f"Differs{allowed}: {one.fact.value}", subject, f": {one.before} before, {one.after} after.")
    if comparison.unknown_facts:
        yield say(
            "Missing on both sides, so not checked: ", listing([one.value for one in comparison.unknown_facts]), "."
        )
    if any(not one.covers_starts for cell in comparison.cells for one in (cell.before, cell.after)):
        yield say(
            "Some cells have a single start of the engine: their intervals do not cover a restart, which alone may "
            "have made a difference."
        )
