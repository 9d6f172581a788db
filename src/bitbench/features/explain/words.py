"""An explanation as a page: the answer first, then each phase, then what is not known."""

from collections.abc import Iterator

from bitbench.analysis.configs import Side
from bitbench.features.explain import sentences
from bitbench.features.explain.sentences import (
    CAUSE_NAMES,
    NOT_KNOWN,
    RoofLine,
    asked_of_step_section,
    explained_phase_name,
)
from bitbench.features.explain.types import Explanation, PhaseAccount
from bitbench.reports.document.model import (
    Block,
    Document,
    Name,
    Paragraph,
    Phrase,
    Quantity,
    Section,
    Unit,
)
from bitbench.reports.document.numbers import ROUGH, seconds, shown
from bitbench.reports.document.words import (
    ColumnOf,
    Words,
    bullets,
    number_column,
    paragraph,
    say,
    table,
    words_column,
)
from bitbench.reports.sections.memory import TITLE, engine_counters_table
from bitbench.reports.sections.workloads import workload_shape

MOST_NAMED = 3  # causes of a phase in the answer; the table has all
LEAST_NAMED = 0.03  # of a step: less is not worth a sentence


def explanation_document(of: Explanation) -> Document:
    answer: tuple[Block, ...] = (
        Paragraph(workload_shape(of.workload)),
        *bullets(said for said in _short(of) if said),
    )
    return Document(_title(of), answer, tuple(_sections(of)))


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


def _sections(of: Explanation) -> Iterator[Section]:
    lines = [
        RoofLine(
            of.workload.name,
            phase.phase,
            whose.config.name,
            side.cost,
            side.attainable,
            side.step.value,
        )
        for phase in of.phases
        for whose, side in ((of.own, phase.own), (of.baseline, phase.baseline))
        if side.cost is not None
    ]
    if lines:
        yield asked_of_step_section("What a step asks for", lines, of.roof)
    yield from (_parts_section(phase) for phase in of.phases if phase.expected_gain is not None)
    yield Section(
        say("Kernels"), bullets(map(sentences.explained_kernel_sentence, (of.own, of.baseline)))
    )
    if sides := [side for side in (of.own, of.baseline) if side.engine]:
        who: ColumnOf[Side] = words_column(
            "", lambda side: "variant" if side == of.own else "baseline"
        )
        yield Section(TITLE, tuple(engine_counters_table(sides, lambda side: side.engine, who)))
    if of.gaps:
        yield Section(say(NOT_KNOWN), bullets(sentences.gap_sentence(of, gap) for gap in of.gaps))


def _short(of: Explanation) -> Iterator[Words]:
    """The sentences of the answer; an empty one says nothing."""
    yield sentences.explained_speed_sentence(of)
    yield sentences.expected_sentence(of)
    yield sentences.kernel_path_sentence(of)
    yield sentences.explained_warnings_sentence(of)
    if of.known_beforehand:
        yield f"Known beforehand: {of.known_beforehand}"
    for phase in of.phases:
        for part in phase.parts[:MOST_NAMED]:
            if part.excess_s > LEAST_NAMED * phase.own.step.value:
                yield sentences.cause_sentence(of, phase, part)
        if phase.unexplained is not None:
            yield sentences.unexplained_sentence(phase)
    if not any(phase.unexplained for phase in of.phases):
        yield f"Where the time goes is unexplained: the records do not say enough (see {NOT_KNOWN.lower()})."


def _parts_section(phase: PhaseAccount) -> Section:
    parts = (*phase.parts, *([phase.unexplained] if phase.unexplained else []))
    lines = [
        (CAUSE_NAMES[part.cause], part.baseline_s, part.own_s, part.excess_s) for part in parts
    ]
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
    title = say(f"{explained_phase_name(phase)}: where the difference is")
    return Section(title, (where, paragraph(sentences.shares_sentence(phase))))
