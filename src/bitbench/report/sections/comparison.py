"""A comparison in words and tables: Markdown for a pull request, text for a terminal. One content for both."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bitbench.core.cell import Cell
from bitbench.core.found.comparison import ComparedCell, Comparison, GateOutcome, GateResult, Verdict
from bitbench.ground.units import UNKNOWN, show_percent
from bitbench.report.document.numbers import mean, percent, scale_for, times
from bitbench.report.document.text import MAX_NAME, code, escape, listing, plain, table

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
                    Text(column.replace(" (", "\n(")),
                    justify="left" if is_text else "right",
                    overflow="fold",
                    no_wrap=not is_text,
                )
            for row in block.rows:
                shown.add_row(*(Text(cell) for cell in row))
            console.print(shown)
        for sentence in block.sentences:
            console.print(Text(f"• {sentence}"))


def _blocks(comparison: Comparison, quote: Quote, text: Quote) -> Iterator[Block]:
    yield Block("", tuple(_answer(comparison, quote)))
    for condition in dict.fromkeys(gate.condition for gate in comparison.gates):
        yield _gate_block(comparison, condition, quote, text)
    for metric in comparison.definitions:
        cells = [cell for cell in comparison.cells if cell.metric == metric]
        if cells:
            yield _cell_block(comparison, cells, quote)
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


def _with_names(
    title: str,
    cells: Sequence[Cell],
    figures: Sequence[tuple[str, ...]],
    header: tuple[str, ...],
    quote: Quote,
) -> Block:
    """A table whose last column is a word. The contender is left out where there is only one."""
    if len({cell.contender for cell in cells}) == 1:
        named: list[tuple[str, ...]] = [(quote(cell.workload),) for cell in cells]
        header = ("Workload", *header)
    else:
        named = [(quote(cell.contender.name), quote(cell.workload)) for cell in cells]
        header = ("Contender", "Workload", *header)
    rows = tuple((*names, *row) for names, row in zip(named, figures, strict=True))
    return Block(title, (), header, rows, words=(*range(len(named[0])), len(header) - 1))


def _cell_block(comparison: Comparison, cells: Sequence[ComparedCell], quote: Quote) -> Block:
    definition = comparison.definitions[cells[0].metric]
    scale = scale_for(definition, [one.mean for cell in cells for one in (cell.before, cell.after)])
    figures = [
        (
            mean(cell.before, scale),
            mean(cell.after, scale),
            times(cell.ratio),
            f"{cell.before.n_instances}, {cell.after.n_instances}",
            cell.verdict.value,
        )
        for cell in cells
    ]
    unit = f" ({scale.unit})" if scale.unit else ""
    header = (
        f"Before{unit}",
        f"After{unit}",
        f"Ratio ({percent(comparison.confidence)})",
        "Starts",
        "Verdict",
    )
    title = definition.name[0].upper() + definition.name[1:]
    return _with_names(title, [cell.candidate for cell in cells], figures, header, quote)


def _gate_block(comparison: Comparison, condition: str, quote: Quote, text: Quote) -> Block:
    """What broke first; below it, what it would take to tell the rest."""
    order = (GateOutcome.FAILED, GateOutcome.UNSURE, GateOutcome.PASSED)
    gates = [gate for gate in comparison.gates if gate.condition == condition]
    gates.sort(key=lambda gate: order.index(gate.outcome))
    figures = [
        (
            show_percent(gate.ratio.value - 1, signed=True) if gate.ratio else UNKNOWN,
            times(gate.ratio),
            UNKNOWN if gate.needed_starts is None else str(gate.needed_starts),
            gate.outcome.value,
        )
        for gate in gates
    ]
    asked = len(comparison.gates)
    single = 1 - (1 - comparison.confidence) / asked
    header = ("Change", f"Ratio ({percent(single)})", "Starts needed", "Outcome")
    block = _with_names(f"Fails if {text(condition)}", [gate.candidate for gate in gates], figures, header, quote)
    return replace(block, sentences=tuple(_doubts(gates)) + _for_many(asked, single, comparison.confidence))


def _doubts(gates: Sequence[GateResult]) -> Iterator[str]:
    unsure = [gate for gate in gates if gate.outcome is GateOutcome.UNSURE]
    for reason in dict.fromkeys(gate.reason for gate in unsure):
        alike = [gate for gate in unsure if gate.reason == reason]
        needed = [gate.needed_starts for gate in alike if gate.needed_starts is not None]
        enough = f"; to tell all of them takes at least about {max(needed)} starts of each side" if needed else ""
        yield f"Cannot tell ({len(alike)}): {reason}{enough}."


def _for_many(asked: int, single: float, confidence: float) -> tuple[str, ...]:
    if asked == 1:
        return ()
    return (
        f"{asked} questions are asked at once, so each interval is made at {percent(single)}: the chance that any of "
        f"equal cells fails stays below {percent(1 - confidence)}.",
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
