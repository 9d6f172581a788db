"""An explanation as a page: the answer first, then each phase, then what is not known."""

from collections.abc import Iterator

from bitbench.analysis.configs import Side
from bitbench.features.explain import sentences
from bitbench.features.explain.sentences import (
    CAUSE_NAMES,
    NOT_KNOWN,
    RoofLine,
    build_step_section,
    format_phase_name,
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
from bitbench.reports.document.numbers import ROUGH, format_quantity, make_seconds
from bitbench.reports.document.words import (
    Words,
    build_table,
    bullets,
    make_number_column,
    make_words_column,
    paragraph,
    say,
)
from bitbench.reports.sections.memory import TITLE, build_engine_counters
from bitbench.reports.sections.workloads import describe_workload

MOST_NAMED = 3  # causes of a phase in the answer (the table lists all)
LEAST_NAMED = 0.03  # share of a step: smaller causes are not in the answer


def build_explanation_document(explanation: Explanation) -> Document:
    """Build the page of an explanation."""
    answer: tuple[Block, ...] = (
        Paragraph(describe_workload(explanation.workload)),
        *bullets(filter(None, _iter_answer(explanation))),
    )
    return Document(_format_title(explanation), answer, tuple(_iter_sections(explanation)))


def _format_title(explanation: Explanation) -> Phrase:
    """Return `Why A is 0.83× as fast as B on W`, without the number if it may be chance."""
    variant = Name(explanation.own.config.name)
    baseline = Name(explanation.baseline.config.name)
    on_workload = say(" on ", Name(explanation.workload.name))
    if explanation.speed is None:
        return say(variant, " beside ", baseline, on_workload)
    if sentences.is_explained_by_chance(explanation.speed):
        return say("Why ", variant, " is not shown to differ in speed from ", baseline, on_workload)
    speed = format_quantity(Quantity(explanation.speed.value, Unit.RATIO))
    return say("Why ", variant, f" is {speed} as fast as ", baseline, on_workload)


def _iter_sections(explanation: Explanation) -> Iterator[Section]:
    lines = list(_iter_roof_lines(explanation))
    if lines:
        yield build_step_section("What a step asks for", lines, explanation.roof)
    for phase in explanation.phases:
        if phase.expected_gain is not None:
            yield _build_parts_section(phase)
    sides = (explanation.own, explanation.baseline)
    yield Section(say("Kernels"), bullets(map(sentences.describe_kernels, sides)))
    counted = [side for side in sides if side.engine]
    if counted:

        def role(side: Side) -> str:
            return "variant" if side == explanation.own else "baseline"

        column = make_words_column("", role)
        yield Section(TITLE, build_engine_counters(counted, lambda side: side.engine, column))
    if explanation.gaps:
        gaps = bullets(sentences.describe_gap(explanation, gap) for gap in explanation.gaps)
        yield Section(say(NOT_KNOWN), gaps)


def _iter_roof_lines(explanation: Explanation) -> Iterator[RoofLine]:
    """Yield both sides of each phase, as far as their cost is known."""
    for account in explanation.phases:
        for side, measured in (
            (explanation.own, account.own),
            (explanation.baseline, account.baseline),
        ):
            if measured.cost is not None:
                yield RoofLine(
                    explanation.workload.name,
                    account.phase,
                    side.config.name,
                    measured.cost,
                    measured.attainable,
                    measured.step.value,
                )


def _iter_answer(explanation: Explanation) -> Iterator[Words]:
    """Yield the sentences of the answer. Empty ones are left out later."""
    yield sentences.describe_speed(explanation)
    yield sentences.describe_expected_gain(explanation)
    yield sentences.describe_kernel_path(explanation)
    yield sentences.describe_warnings(explanation)
    if explanation.known_beforehand:
        yield f"Known beforehand: {explanation.known_beforehand}"
    for phase in explanation.phases:
        for part in phase.parts[:MOST_NAMED]:
            if part.excess_s > LEAST_NAMED * phase.own.step.value:
                yield sentences.describe_cause(explanation, phase, part)
        if phase.unexplained is not None:
            yield sentences.describe_unexplained_time(phase)
    if not any(phase.unexplained for phase in explanation.phases):
        yield (
            "Where the time goes is unexplained: the records do not say enough "
            f"(see {NOT_KNOWN.lower()})."
        )


def _build_parts_section(phase: PhaseAccount) -> Section:
    parts = list(phase.parts)
    if phase.unexplained is not None:
        parts.append(phase.unexplained)
    lines = []
    for part in parts:
        lines.append((CAUSE_NAMES[part.cause], part.baseline_s, part.own_s, part.excess_s))
    causes = build_table(
        [*lines, ("a step", phase.baseline.step.value, phase.own.step.value, phase.excess_s)],
        make_words_column("", lambda line: line[0]),
        make_number_column("Baseline", Unit.NONE, lambda line: make_seconds(line[1])),
        make_number_column("Variant", Unit.NONE, lambda line: make_seconds(line[2])),
        make_number_column(
            "More than expected",
            Unit.NONE,
            lambda line: Quantity(line[3], Unit.SECONDS, digits=ROUGH, is_signed=True),
        ),
    )
    title = say(f"{format_phase_name(phase)}: where the difference is")
    return Section(title, (causes, paragraph(sentences.describe_shares(phase))))
