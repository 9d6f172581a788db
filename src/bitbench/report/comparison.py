"""A comparison in words and tables: Markdown for a pull request, text for a terminal. One content for both."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bitbench.core.cell import Cell
from bitbench.core.comparison import ComparedCell, Comparison, GateOutcome, GateResult, Verdict
from bitbench.report.figures import mean, percent, scale_for, times
from bitbench.report.text import MAX_NAME, code, escape, listing, plain, table
from bitbench.units import UNKNOWN, show_percent

Quote = Callable[[str], str]  # how a name is written in the format at hand
MAX_NAMED = 4


@dataclass(frozen=True)
class Block:
    """A heading, sentences, and perhaps a table; `words` are its columns of text."""

    title: str
    sentences: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    words: tuple[int, ...] = ()


def markdown_comparison(comparison: Comparison) -> str:
    """A comment for a pull request."""
    parts = [f"## {code(comparison.candidate)} against {code(comparison.baseline)}"]
    for block in _blocks(comparison, code, escape):
        parts += [f"### {block.title}"] if block.title else []
        parts += ["\n".join(f"- {sentence}" for sentence in block.sentences)] if block.sentences else []
        parts += [table(block.header, block.rows, left=block.words)] if block.rows else []
    return "\n\n".join(parts) + "\n"


def render_comparison(comparison: Comparison, console: Console) -> None:
    def name(text: str) -> str:
        return plain(text, MAX_NAME)

    console.print(Text(f"{name(comparison.candidate)} against {name(comparison.baseline)}", style="bold"))
    for block in _blocks(comparison, name, plain):
        console.print()
        if block.title:
            console.print(Text(block.title, style="bold"))
        if block.rows:
            shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
            for place, column in enumerate(block.header):
                is_text = place in block.words
                shown.add_column(
                    Text(column), justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text
                )
            for row in block.rows:
                shown.add_row(*(Text(cell) for cell in row))
            console.print(shown)
        for sentence in block.sentences:
            console.print(Text(f"• {sentence}"))


def _blocks(comparison: Comparison, quote: Quote, text: Quote) -> Iterator[Block]:
    yield Block("", tuple(_answer(comparison, quote)))
    if comparison.gates:
        yield Block("Limits", tuple(_gate_notes(comparison)), *_gate_table(comparison, quote, text), words=(0, 1, 2, 5))
    for metric, definition in comparison.definitions.items():
        cells = [cell for cell in comparison.cells if cell.metric == metric]
        if cells:
            yield Block(
                definition.name[0].upper() + definition.name[1:],
                (),
                *_cell_table(comparison, cells, quote),
                words=(0, 1, 6),
            )
    if notes := tuple(_notes(comparison, quote, text)):
        yield Block("What to know", notes)


def _answer(comparison: Comparison, quote: Quote) -> Iterator[str]:
    """One sentence per figure, then what the limits say."""
    for metric, definition in comparison.definitions.items():
        cells = [cell for cell in comparison.cells if cell.metric == metric]
        if not cells:
            yield f"{definition.name}: no cell has a result on both sides."
            continue
        said = []
        for verdict in Verdict:
            names = [quote(cell.candidate.name) for cell in cells if cell.verdict is verdict]
            if names:
                more = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
                said.append(f"{verdict.value}: {listing([*names[:MAX_NAMED], *more])}")
        yield f"{definition.name}: {'; '.join(said)}."
    outcomes = [gate.outcome for gate in comparison.gates]
    if outcomes:
        counted = [f"{outcomes.count(one)} {one.value}" for one in GateOutcome if one in outcomes]
        yield f"Limits: {', '.join(counted)}; exit code {comparison.exit_code}."


def _names(cell: Cell, quote: Quote) -> tuple[str, str]:
    return quote(cell.contender.name), quote(cell.workload)


def _cell_table(
    comparison: Comparison, cells: Sequence[ComparedCell], quote: Quote
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    definition = comparison.definitions[cells[0].metric]
    scale = scale_for(definition, [one.mean for cell in cells for one in (cell.before, cell.after)])
    header = (
        "Contender",
        "Workload",
        f"Before ({scale.unit})",
        f"After ({scale.unit})",
        f"Ratio, {percent(comparison.confidence)}",
        "Starts",
        "Verdict",
    )
    rows = tuple(
        (
            *_names(cell.candidate, quote),
            mean(cell.before, scale),
            mean(cell.after, scale),
            times(cell.ratio),
            f"{cell.before.n_instances}, {cell.after.n_instances}",
            cell.verdict.value,
        )
        for cell in cells
    )
    return header, rows


def _gate_table(
    comparison: Comparison, quote: Quote, text: Quote
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """What broke first."""
    order = (GateOutcome.FAILED, GateOutcome.UNSURE, GateOutcome.PASSED)
    gates = sorted(comparison.gates, key=lambda gate: order.index(gate.outcome))
    rows = tuple(
        (
            *_names(gate.candidate, quote),
            text(gate.condition),
            show_percent(gate.ratio.value - 1, signed=True) if gate.ratio else UNKNOWN,
            times(gate.ratio),
            _outcome(gate),
        )
        for gate in gates
    )
    return ("Contender", "Workload", "Fails if", "Change", "Ratio", "Outcome"), rows


def _outcome(gate: GateResult) -> str:
    if gate.outcome is not GateOutcome.UNSURE:
        return gate.outcome.value
    needed = f"; about {gate.needed_starts} starts of each would tell" if gate.needed_starts else ""
    return f"{gate.outcome.value}: {gate.reason}{needed}"


def _gate_notes(comparison: Comparison) -> Iterator[str]:
    asked = len(comparison.gates)
    if asked > 1:
        single = 1 - (1 - comparison.confidence) / asked
        yield (
            f"{asked} questions are asked at once, so each interval is made at {percent(single)}: the chance that any "
            f"of equal cells fails stays below {percent(1 - comparison.confidence)}."
        )


def _notes(comparison: Comparison, quote: Quote, text: Quote) -> Iterator[str]:
    for lost in comparison.unpaired:
        yield f"{quote(lost.cell.name)} {text(lost.reason)}{': it had one before' if lost.was_lost else ''}."
    for one in comparison.differences:
        subject = f" of {quote(one.subject)}" if one.subject else ""
        allowed = " (allowed)" if one.is_allowed else ""
        yield f"Differs{allowed}: {one.fact.value}{subject}: {text(one.before)} before, {text(one.after)} after."
    if comparison.unknown_facts:
        names = listing([fact.value for fact in comparison.unknown_facts])
        yield f"Known on neither side, so not checked: {names}."
    if any(not one.covers_starts for cell in comparison.cells for one in (cell.before, cell.after)):
        yield (
            "Some cells rest on one start of the engine: their intervals say nothing about the next one, and a "
            "difference may be one of starts."
        )
