"""An explanation as a page: the answer first, then each phase, then what is not known, then the records."""

from collections.abc import Callable, Iterator, Sequence

from bitbench.analysis.configs import PhaseSide, Side, Source
from bitbench.features.explain import sentences
from bitbench.features.explain.sentences import (
    BOUNDS,
    CAUSE_NAMES,
    COUNTED,
    EXPERTS_COUNTED,
    NOT_KNOWN,
    explained_phase_name,
    roof_sentence,
)
from bitbench.features.explain.types import Explanation, PhaseAccount
from bitbench.reports.document.model import Block, Bullets, Document, Name, Paragraph, Phrase, Quantity, Section, Unit
from bitbench.reports.document.numbers import ROUGH, number, seconds, share, shown, size, times
from bitbench.reports.document.words import (
    ColumnOf,
    Words,
    bullets,
    joined,
    number_column,
    ratio_column,
    say,
    table,
    words_column,
)
from bitbench.reports.sections.memory import TITLE, engine_counters_table
from bitbench.reports.sections.workloads import workload_shape
from bitbench.study.model_cost import StepCost

MOST_NAMED = 3  # causes of a phase in the answer; the table has all
LEAST_NAMED = 0.03  # of a step: less is not worth a sentence
LOCK = Source(file="lock.json")
ROOF = Source(file="roof.json")

Said = tuple[Words, tuple[Source, ...]]  # a sentence, and the records it rests on


class _Records:
    """Numbers sources in the order in which the document first names them."""

    def __init__(self) -> None:
        self._numbers: dict[Source, int] = {}

    def mark(self, sources: Sequence[Source]) -> str:
        """`[1, 4]`"""
        named = [
            self._numbers.setdefault(source, len(self._numbers) + 1) for source in sources if source.ids or source.file
        ]
        return f"[{', '.join(str(number) for number in dict.fromkeys(named))}]" if named else ""

    def cited(self, sentences: Iterator[Said] | Sequence[Said]) -> tuple[Bullets, ...]:
        return bullets(say(words, f" {mark}" if (mark := self.mark(sources)) else "") for words, sources in sentences)

    def section(self) -> Section:
        """To be made last."""
        items = []
        for source, place in self._numbers.items():
            ids = say(": ", joined(source.ids, ", ")) if source.ids else ()
            items.append(say(f"[{place}] ", Name(source.file), ids))
        return Section(say("Records"), bullets(items))


def explanation_document(of: Explanation) -> Document:
    records = _Records()
    answer: tuple[Block, ...] = (Paragraph(workload_shape(of.workload)), *records.cited(_short(of)))
    sections = tuple(_sections(of, records))
    return Document(_title(of), answer, (*sections, records.section()))


def _title(of: Explanation) -> Phrase:
    """`Why A is 0.83× as fast as B on W`; no figure where it may be chance."""
    own, baseline = Name(of.own.config.name), Name(of.baseline.config.name)
    on = say(" on ", Name(of.workload.name))
    if of.speed is None:
        return say(own, " beside ", baseline, on)
    if sentences.is_explained_by_chance(of.speed):
        return say("Why ", own, " is not shown to differ in speed from ", baseline, on)
    speed = shown(Quantity(of.speed.value, Unit.RATIO))
    return say("Why ", own, f" is {speed} as fast as ", baseline, on)


def _sections(of: Explanation, records: _Records) -> Iterator[Section]:
    """In the order of the document, which is that of the numbers of its records."""
    if any(phase.own.cost and phase.baseline.cost for phase in of.phases):
        yield _cost_section(of, records)
    yield from (_parts_section(of, phase, records) for phase in of.phases if phase.expected_gain is not None)
    kernels = [(sentences.explained_kernel_sentence(side), (side.instances,)) for side in (of.own, of.baseline)]
    yield Section(say("Kernels"), records.cited(kernels))
    if of.own.engine or of.baseline.engine:
        yield _engine_section(of, records)
    if of.elsewhere:
        yield _elsewhere_section(of, records)
    if of.gaps:
        yield Section(say(NOT_KNOWN), bullets(sentences.gap_sentence(of, gap) for gap in of.gaps))


def _short(of: Explanation) -> Iterator[Said]:
    trials = (of.own.trials, of.baseline.trials)
    yield sentences.explained_speed_sentence(of), trials
    if of.own.stored_bytes is not None and of.baseline.stored_bytes is not None:
        loaded = [side.instances for side in (of.own, of.baseline) if side.loaded_bytes is not None]
        roof = [ROOF] if any(phase.is_roofline for phase in of.phases) else []
        yield sentences.expected_sentence(of), (LOCK, *loaded, *roof)
    if reached := sentences.reached_sentence(of):
        yield reached, (ROOF, LOCK, *trials)
    if how := sentences.kernel_path_sentence(of):
        yield how, (of.own.instances,)
    if warned := sentences.explained_warnings_sentence(of):
        yield warned, (of.own.instances,)
    if of.known_beforehand:
        yield f"Known beforehand: {of.known_beforehand}", (LOCK,)
    for phase in of.phases:
        yield from _causes(of, phase)
    if not any(phase.unexplained for phase in of.phases):
        yield f"Where the time goes is unexplained: the records do not say enough (see {NOT_KNOWN.lower()}).", trials


def _causes(of: Explanation, phase: PhaseAccount) -> Iterator[Said]:
    for part in phase.parts[:MOST_NAMED]:
        if part.excess_s > LEAST_NAMED * phase.own.step.value:
            yield sentences.cause_sentence(of, phase, part), part.sources
    if phase.unexplained is not None:
        yield sentences.unexplained_sentence(phase), phase.unexplained.sources


def _cost_section(of: Explanation, records: _Records) -> Section:
    """What a step has to read and compute, and how fast that could be here."""
    sides = [
        (f"{phase.phase.value}, {name}", side)
        for phase in of.phases
        for name, side in (("variant", phase.own), ("baseline", phase.baseline))
    ]
    lines: dict[str, Callable[[StepCost, PhaseSide], Words]] = {
        "weights": lambda cost, _: size(cost.weight_bytes),
        "experts touched": lambda cost, _: share(cost.touched_experts),
        "KV cache": lambda cost, _: size(cost.kv_bytes),
        "activations": lambda cost, _: size(cost.activation_bytes),
        "operations": lambda cost, _: number(cost.flops / 1e9, "Gflop"),
        "fastest here": lambda _, side: seconds(side.attainable.seconds if side.attainable else None),
        "bound by": lambda _, side: BOUNDS[side.attainable.bound] if side.attainable else None,
        "measured": lambda _, side: seconds(side.step.value),
        "share of the roof": lambda _, side: share(side.roof_share),
    }

    def column(title: str, side: PhaseSide) -> ColumnOf[str]:
        return number_column(title, Unit.NONE, lambda line: lines[line](side.cost, side) if side.cost else None)

    known = [
        line for line, of_side in lines.items() if any(side.cost and of_side(side.cost, side) for _, side in sides)
    ]
    first: ColumnOf[str] = words_column("", lambda line: line)
    costs = table(known, first, *(column(*side) for side in sides))
    roof: list[Said] = [(roof_sentence(of.roof), (ROOF,))] if of.roof else []
    has_experts = any(side.cost and side.cost.touched_experts is not None for _, side in sides)
    counted: Said = (
        f"{COUNTED} {EXPERTS_COUNTED}" if has_experts else COUNTED,
        (LOCK, of.own.trials, of.baseline.trials),
    )
    return Section(say("What a step asks for"), (costs, *records.cited([*roof, counted])))


def _parts_section(of: Explanation, phase: PhaseAccount, records: _Records) -> Section:
    parts = (*phase.parts, *([phase.unexplained] if phase.unexplained else []))
    lines = [(CAUSE_NAMES[part.cause], part.baseline_s, part.own_s, part.excess_s) for part in parts]
    where = table(
        [*lines, ("a step", phase.baseline.step.value, phase.own.step.value, phase.excess_s)],
        words_column("", lambda line: line[0]),
        number_column("Baseline", Unit.NONE, lambda line: seconds(line[1])),
        number_column("Variant", Unit.NONE, lambda line: seconds(line[2])),
        number_column(
            "More than expected",
            Unit.NONE,
            lambda line: Quantity(line[3], Unit.SECONDS, digits=ROUGH, is_signed=True),
        ),
    )
    sources = dict.fromkeys(source for part in phase.parts for source in part.sources)
    said: Said = (sentences.shares_sentence(phase), (*sources, of.own.trials, of.baseline.trials))
    return Section(say(f"{explained_phase_name(phase)}: where the difference is"), (where, *records.cited([said])))


def _engine_section(of: Explanation, records: _Records) -> Section:
    who: ColumnOf[Side] = words_column("", lambda side: "variant" if side == of.own else "baseline")
    sides = [side for side in (of.own, of.baseline) if side.engine]
    mark = records.mark([side.trials for side in sides])
    return Section(TITLE, (*engine_counters_table(sides, lambda side: side.engine, who), Paragraph(say(mark))))


def _elsewhere_section(of: Explanation, records: _Records) -> Section:
    elsewhere = table(
        of.elsewhere,
        words_column("Workload", lambda speed: Name(speed.workload)),
        ratio_column("Speed", lambda speed: times(speed.speed)),
        words_column("Records", lambda speed: records.mark(speed.sources)),
    )
    return Section(say("Other workloads"), (elsewhere,))
