"""An explanation as a page: the answer first, then each phase, then what is not known, then the records."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bitbench.core.found.crossover import Crossover
from bitbench.core.found.explanation import Explanation, PhaseAccount, PhaseSide, Source
from bitbench.core.found.model_cost import StepCost
from bitbench.core.recorded.profile import Phase
from bitbench.ground.units import UNKNOWN, show_bytes, show_percent, show_seconds, significant
from bitbench.report.document.numbers import times
from bitbench.report.document.text import MAX_NAME, code, escape, plain, table
from bitbench.report.sections.crossover import verdict
from bitbench.report.sections.explain_words import (
    CAUSE_NAMES,
    cause_sentence,
    expected_sentence,
    gap_sentence,
    kernel_sentences,
    measured_sentence,
    path_sentence,
    reached_sentence,
    unexplained_sentence,
)
from bitbench.report.sections.roofline import BOUNDS, COUNTED, roof_sentence
from bitbench.report.shape import shape

Quote = Callable[[str], str]

MOST_NAMED = 3  # causes of a phase in the short answer; the table has all
LEAST_NAMED = 0.03  # of a step: less is not worth a sentence
LOCK = Source(file="lock.json")
ROOF = Source(file="roof.json")


@dataclass(frozen=True)
class Said:
    """A sentence and the records it rests on."""

    text: str
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Block:
    """A heading, sentences, and perhaps a table before them.

    `words` are its columns of text; where its rows have sources of their own, a last column names them.
    """

    title: str
    sentences: tuple[Said, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    row_sources: tuple[tuple[Source, ...], ...] = ()
    words: tuple[int, ...] = (0,)

    def table(self, references: "_References") -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Header and rows, with the records."""
        if not self.row_sources:
            return self.header, list(self.rows)
        marks = [references.marks(sources).strip() for sources in self.row_sources]
        return (*self.header, "Records"), [(*row, mark) for row, mark in zip(self.rows, marks, strict=True)]


@dataclass
class _References:
    """Numbers the sources in the order in which they are first named."""

    numbers: dict[Source, int] = field(default_factory=dict)

    def marks(self, sources: Sequence[Source]) -> str:
        named = [self.numbers.setdefault(one, len(self.numbers) + 1) for one in sources if one.ids or one.file]
        return "".join(f" [{number}]" for number in dict.fromkeys(named))


def explanation_markdown(of: Explanation) -> str:
    references = _References()
    parts = [f"# {title(of, code)}", shape(of.workload, code)]
    for block in _blocks(of, code, escape):
        parts.append(f"## {block.title}")
        if block.rows:
            parts.append(table(*block.table(references), left=block.words))
        if block.sentences:
            parts.append("\n".join(f"- {one.text}{references.marks(one.sources)}" for one in block.sentences))
    parts += ["## Records", "\n".join(f"{number}. {_named(source, code)}" for source, number in _listed(references))]
    return "\n\n".join(parts) + "\n"


def render_explanation(of: Explanation, console: Console) -> None:
    def name(text: str) -> str:
        return plain(text, MAX_NAME)

    references = _References()
    console.print(Text(title(of, name), style="bold"))
    console.print(Text(shape(of.workload, name), style="dim"))
    for block in _blocks(of, name, plain):
        console.print()
        console.print(Text(block.title, style="bold"))
        if block.rows:
            shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
            header, rows = block.table(references)
            for place, column in enumerate(header):
                shown.add_column(Text(column), justify="left" if place in block.words else "right", overflow="fold")
            for row in rows:
                shown.add_row(*(Text(cell) for cell in row))
            console.print(shown)
        for one in block.sentences:
            console.print(Text(f"• {one.text}{references.marks(one.sources)}"))
    console.print()
    console.print(Text("Records", style="bold"))
    for source, number in _listed(references):
        console.print(Text(f"[{number}] {_named(source, name)}", style="dim"))


def title(of: Explanation, quote: Quote) -> str:
    """`Why A is 0.83× as fast as B at W`"""
    own, baseline = quote(of.own.contender.name), quote(of.baseline.contender.name)
    value = UNKNOWN if of.speed is None else f"{of.speed.value:.2f}×"
    return f"Why {own} is {value} as fast as {baseline} at {quote(of.workload.name)}"


def _blocks(of: Explanation, quote: Quote, text: Quote) -> Iterator[Block]:
    yield Block("In short", tuple(_short(of, text)))
    if any(one.own.cost and one.baseline.cost for one in of.phases):
        yield _cost_block(of)
    yield from (_parts_block(of, one) for one in of.phases if one.expected_gain is not None)
    yield Block("Kernels", tuple(Said(words, (side.instances,)) for side, words in kernel_sentences(of, quote, text)))
    yield _crossover_block(of, quote)
    if of.gaps:
        yield Block("What is not known", tuple(Said(gap_sentence(of, gap, text)) for gap in of.gaps))


def _short(of: Explanation, text: Quote) -> Iterator[Said]:
    trials = (of.own.trials, of.baseline.trials)
    yield Said(measured_sentence(of), trials)
    if of.own.stored_bytes is not None and of.baseline.stored_bytes is not None:
        said = [side.instances for side in (of.own, of.baseline) if side.loaded_bytes is not None]
        roof = [ROOF] if any(one.is_roofline for one in of.phases) else []
        yield Said(expected_sentence(of), (LOCK, *said, *roof))
    if (reached := reached_sentence(of)) is not None:
        yield Said(reached, (ROOF, LOCK, *trials))
    for crossover in of.beyond:
        yield Said(f"This workload is beyond the crossover: {verdict(crossover)}.", _trials(of, crossover))
    if (how := path_sentence(of)) is not None:
        yield Said(how, (of.own.instances,))
    if of.known_beforehand:
        yield Said(f"Known beforehand: {text(of.known_beforehand)}", (LOCK,))
    for one in of.phases:
        for part in one.parts[:MOST_NAMED]:
            if part.excess_s > LEAST_NAMED * one.own.step.mean:
                yield Said(cause_sentence(of, one, part), part.sources)
        if one.unexplained is not None:
            yield Said(unexplained_sentence(one), one.unexplained.sources)
    if not any(one.unexplained for one in of.phases):
        yield Said("Where the time goes is unexplained: the records do not say enough (see what is not known).", trials)


def _cost_block(of: Explanation) -> Block:
    """What a step has to read and compute, and how fast that could be here."""
    columns = [
        (f"{one.phase.value}, {name}", side.cost, side)
        for one in of.phases
        for name, side in (("variant", one.own), ("baseline", one.baseline))
    ]
    lines: dict[str, Callable[[StepCost, PhaseSide], str]] = {
        "weights": lambda cost, _: show_bytes(cost.weight_bytes),
        "KV cache": lambda cost, _: show_bytes(cost.kv_bytes),
        "activations": lambda cost, _: show_bytes(cost.activation_bytes),
        "operations": lambda cost, _: f"{significant(cost.flops / 1e9)} G",
        "fastest here": lambda _, side: show_seconds(side.attainable.seconds if side.attainable else None),
        "bound by": lambda _, side: BOUNDS[side.attainable.bound] if side.attainable else UNKNOWN,
        "measured": lambda _, side: show_seconds(side.step.mean),
        "share of the roof": lambda _, side: show_percent(side.roof_share),
    }
    filled = [
        (name, *(show(cost, side) if cost else UNKNOWN for _, cost, side in columns)) for name, show in lines.items()
    ]
    rows = tuple(row for row in filled if set(row[1:]) != {UNKNOWN})
    roof = [Said(roof_sentence(of.roof), (ROOF,))] if of.roof else []
    sentences = (*roof, Said(COUNTED, (LOCK, of.own.trials, of.baseline.trials)))
    return Block("What a step asks for", sentences, ("", *(name for name, _, _ in columns)), rows)


def _parts_block(of: Explanation, one: PhaseAccount) -> Block:
    assert one.expected_gain is not None
    share = 1 / one.expected_gain
    rows = [
        (
            CAUSE_NAMES[part.cause],
            show_seconds(part.baseline_s),
            show_seconds(part.own_s),
            _signed(part.excess_s),
        )
        for part in (*one.parts, *([one.unexplained] if one.unexplained else []))
    ]
    rows.append(
        ("a step", show_seconds(one.baseline.step.mean), show_seconds(one.own.step.mean), _signed(one.excess_s))
    )
    how = "by the roofline" if one.is_roofline else "by bytes alone"
    said = (
        f"Expected is {show_percent(share)} of the baseline's time ({how}). A line's excess is what it takes beyond "
        "that share of the baseline's line: it did not shrink, or it grew."
    )
    profiled = ""
    if one.profiler_overheads is not None:
        own, baseline = (
            "by less than they vary" if share is None else show_percent(share) for share in one.profiler_overheads
        )
        profiled = (
            " Lines are the shares of operator profiles, applied to steps with the profiler off; the profiler itself "
            f"made steps longer: {own} (variant), {baseline} (baseline), and more so with many small operators."
        )
    sources = tuple(dict.fromkeys(source for part in one.parts for source in part.sources))
    return Block(
        _phase_title(one, "where the difference is"),
        (Said(said + profiled, (*sources, of.own.trials, of.baseline.trials)),),
        ("", "Baseline", "Variant", "More than expected"),
        tuple(rows),
    )


def _crossover_block(of: Explanation, quote: Quote) -> Block:
    sentences = [
        Said(f"Along {one.axis.value.replace('_', ' ')}: {verdict(one)}.", _trials(of, one)) for one in of.crossovers
    ]
    if not of.crossovers:
        sentences.append(
            Said(
                "No other workload differs from this one in concurrency or input length alone, so that a crossover "
                "cannot be looked for."
            )
        )
    return Block(
        "Where it stops being faster",
        tuple(sentences),
        ("At the other workloads", "Speed"),
        tuple((quote(one.workload), times(one.speed)) for one in of.elsewhere),
        tuple(one.sources for one in of.elsewhere),
    )


def _trials(of: Explanation, crossover: Crossover) -> tuple[Source, ...]:
    """Of every point of a series."""
    names = {point.workload for point in crossover.points}
    others = (source for one in of.elsewhere if one.workload in names for source in one.sources)
    return (of.own.trials, of.baseline.trials, *others)


def _phase_title(one: PhaseAccount, what: str) -> str:
    return f"{'Prefill' if one.phase is Phase.PREFILL else 'Decode'}: {what}"


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return f"{'−' if seconds < 0 else '+'}{show_seconds(abs(seconds))}"


def _listed(references: _References) -> list[tuple[Source, int]]:
    return sorted(references.numbers.items(), key=lambda item: item[1])


def _named(source: Source, quote: Quote) -> str:
    ids = f": {', '.join(source.ids)}" if source.ids else ""
    return f"{quote(source.file)}{ids}"
