"""What each config keeps of its baseline's quality: divergence and perplexity, equal answers, tasks question by
question, and where in a long text it loses."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from bitbench.analysis.results.summary import (
    ConfigQuality,
    NeedleDepth,
    QualityState,
    StudySummary,
    TaskEstimate,
    TaskFlips,
)
from bitbench.records.trial import Outcome
from bitbench.reports.document.model import (
    Block,
    Details,
    Emphasis,
    Heading,
    Mark,
    Name,
    Phrase,
    Quantity,
    Section,
    Table,
    Unit,
)
from bitbench.reports.document.numbers import (
    ROUGH,
    estimated,
    percent,
    plus_minus,
    quantity,
    quantity_unit,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    bullets,
    listing,
    name_phrases,
    number_column,
    paragraph,
    say,
    small_print,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import Labels, grouped
from bitbench.study.quality import BUILT_IN
from bitbench.util.units import UNKNOWN

TASK_DECIMALS = 4
SIGNIFICANT = 0.05
NEEDLE = f"{BUILT_IN}/needle-"
POSITIONS = "Mean KL divergence from the baseline over tokens at these places of a window; intervals over windows."

TaskRow = tuple[ConfigQuality, TaskEstimate]


def _task_sentences(summary: StudySummary, labels: Labels) -> Iterator[Phrase]:
    """Of each variant that was asked the same questions as its baseline: whether it answers fewer right."""
    for row, task in _rows(summary):
        if task.flips is not None and not task.task.startswith(f"{BUILT_IN}/"):
            yield _sentence(labels[row.config], task, task.flips)
    for row in summary.quality:
        lost = [
            task
            for task in row.tasks
            if task.task.startswith(NEEDLE) and _verdict(task.flips) == "fewer"
        ]
        if lost:
            length = min(int(task.task.removeprefix(NEEDLE)) for task in lost)
            yield say(
                "Long prompts: ",
                Name(labels[row.config]),
                f" finds fewer needles than its baseline from {length:,} tokens on.",
            )


def _sentence(name: str, task: TaskEstimate, flips: TaskFlips) -> Phrase:
    points = flips.difference.interval
    width = (
        f"; {_points(flips.difference.value)} [{_points(points.low)}, {_points(points.high)}] points"
        if points
        else ""
    )
    found = f"{flips.lost} answers lost and {flips.gained} gained of {task.samples} (p = {flips.p_value:.2g}{width})"
    words = {
        "fewer": " answers significantly fewer questions right than its baseline: ",
        "more": " answers significantly more questions right than its baseline: ",
        "": ": no significant difference from its baseline: ",
    }
    return say(f"Tasks: {task.task}: ", Name(name), words[_verdict(flips)], f"{found}.")


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _verdict(flips: TaskFlips | None) -> str:
    if flips is None or flips.p_value >= SIGNIFICANT:
        return ""
    return "fewer" if flips.lost > flips.gained else "more"


def _rows(summary: StudySummary) -> list[TaskRow]:
    return [(row, task) for row in summary.quality for task in row.tasks]


def _task_blocks(summary: StudySummary) -> Iterator[Block]:
    results = _rows(summary)
    failures = [
        say(Name(row.name), ", ", Name(failure.task), f": {failure.cause}")
        for row in summary.quality
        for failure in row.task_failures
    ]
    if results or failures:
        yield Heading(say("Tasks"))
    if results:
        yield small_print(_meaning(results))
        yield _task_table(results)
    if failures:
        yield paragraph("Without a result:")
        yield from bullets(failures)
    yield from _needles(summary)


def _meaning(results: list[TaskRow]) -> str:
    said = "± is one standard error"
    if any(task.flips is None and task.difference is not None for _, task in results):
        said += ", for a difference as if the two results were independent"
    if any(task.flips is not None for _, task in results):
        said += (
            ". Lost: right in the baseline and wrong here; gained: the other way. p: exact, for as many lost as "
            "gained, corrected for the number of variants (Holm). The interval of a difference is paired, question by "
            "question"
        )
    return f"{said}."


def _task_table(results: list[TaskRow]) -> Block:
    return table(
        results,
        words_column("Config", lambda row: Name(row[0].name)),
        words_column("Task", lambda row: Name(row[1].task)),
        words_column("Metric", lambda row: row[1].metric),
        number_column(
            "Value", Unit.NONE, lambda row: _with_error(row[1].value, row[1].standard_error)
        ),
        number_column("To the baseline", Unit.NONE, lambda row: _difference(row[1])),
        number_column("Lost", Unit.COUNT, lambda row: row[1].flips.lost if row[1].flips else None),
        number_column(
            "Gained", Unit.COUNT, lambda row: row[1].flips.gained if row[1].flips else None
        ),
        words_column("p", lambda row: f"{row[1].flips.p_value:.2g}" if row[1].flips else None),
        number_column("Cut", Unit.SHARE, lambda row: row[1].cut_share),
        number_column("Questions", Unit.COUNT, lambda row: row[1].samples),
        drop_empty=True,
    )


def _difference(task: TaskEstimate) -> Quantity | Phrase | None:
    if task.flips is None:
        return _with_error(task.difference, task.difference_error, "+")
    known = quantity(task.flips.difference, Unit.NONE)
    return replace(known, is_signed=True) if known else None


def _with_error(value: float | None, error: float | None, sign: str = "") -> Phrase | None:
    if value is None:
        return None
    known = None if error is None else Quantity(error, decimals=TASK_DECIMALS)
    return plus_minus(Quantity(value, decimals=TASK_DECIMALS, is_signed=bool(sign)), known)


def _needles(summary: StudySummary) -> Iterator[Block]:
    """A row for each length, a column for each depth."""
    cells = {
        (row.name, cell.length): {
            other.depth: other for other in row.needles if other.length == cell.length
        }
        for row in summary.quality
        for cell in row.needles
    }
    depths = sorted({depth for by_depth in cells.values() for depth in by_depth})
    if not cells:
        return

    def column(depth: int) -> ColumnOf[tuple[tuple[str, int], dict[int, NeedleDepth]]]:
        return words_column(f"{depth} %", lambda row: _found(row[1].get(depth)))

    yield Heading(say("Needles that were found, by how deep they lie in the text"))
    yield table(
        list(cells.items()),
        words_column("Config", lambda row: Name(row[0][0])),
        number_column("Tokens", Unit.COUNT, lambda row: row[0][1]),
        *(column(depth) for depth in depths),
    )


def _found(cell: NeedleDepth | None) -> str | None:
    return None if cell is None else f"{cell.found} of {cell.asked}"


def _position_blocks(summary: StudySummary, labels: Labels) -> Iterator[Block]:
    """The divergence at each stretch of a window: what a cache loses adds up along a text, or does not."""
    known = [row for row in summary.quality if row.by_position]
    if not known:
        return

    def column(place: int, title: str) -> ColumnOf[ConfigQuality]:
        return number_column(title, "nats", lambda row: _stretch(row, place), intervals_from=0)

    titles = [f"{part.first:,} to {part.last:,}" for part in known[0].by_position]
    config: ColumnOf[ConfigQuality] = words_column("Config", lambda row: Name(labels[row.config]))
    yield Heading(say("Divergence by position"))
    yield table(known, config, *(column(place, title) for place, title in enumerate(titles)))
    yield small_print(POSITIONS)


def _stretch(row: ConfigQuality, place: int) -> Quantity | None:
    if place >= len(row.by_position):
        return None
    return quantity(row.by_position[place].divergence, "nats")


STATES = {
    QualityState.WITHIN: "within",
    QualityState.BEYOND: "flagged",
    QualityState.UNDECIDED: "undecided",
}
KEYS = (
    "perplexity",
    "perplexity_rise",
    "kl_mean",
    "kl_mass",
    "kl_median",
    "kl_p99_9",
    "probability_change_rms",
    "top1_agreement",
)

# Characters of a terminal from which there is room for memory and the tail, for speed, and for intervals of quality.
WIDE, WIDER, WIDEST = 110, 150, 200
SHOWN_FROM = {
    "kl_mass": WIDE,
    "kl_median": WIDER,
    "kl_p99_9": WIDER,
    "probability_change_rms": WIDER,
}


def quality_sentences(summary: StudySummary) -> Iterator[Phrase]:
    """For the answer above all tables: what lost too much, and what could not be measured."""
    labels = Labels.of(summary, MAX_NAME)
    if summary.quality:
        yield from quality_rounding_sentences(summary.rounded_before)
    for row in summary.quality:
        if row.flagged:
            yield say("Quality: ", Name(labels[row.config]), f" is flagged: {row.reason}.")
    for row in summary.quality:
        if row.outcome is not Outcome.OK:
            cause = f" has no result ({row.outcome.value}): {row.cause}"
            yield say("Quality: ", Name(labels[row.config]), cause)
    lossless = {config.config for config in summary.configs if config.is_reference}
    measured = [
        row for row in summary.quality if row.outcome is Outcome.OK and row.config not in lossless
    ]
    if alone := [labels[row.config] for row in measured if not row.is_known]:
        why = " is unknown: the unquantized model on the same engine has no result to compare it with."
        yield say("Quality: that of ", listing(name_phrases(alone)), why)
    compared = [row for row in summary.quality if row.baseline not in (None, row.config)]
    fine = [labels[row.config] for row in compared if row.state is QualityState.WITHIN]
    if fine:
        verb = "is" if len(fine) == 1 else "are"
        yield say(
            "Quality: ",
            listing(name_phrases(fine)),
            f" {verb} within the limits ({_limits(summary)}).",
        )
    yield from undecided_quality_sentences(summary)
    yield from _task_sentences(summary, labels)


def undecided_quality_sentences(summary: StudySummary) -> Iterator[Phrase]:
    """Of each variant that may be within the limits or beyond them: what is lacking to tell."""
    labels = Labels.of(summary, MAX_NAME)
    for row in summary.quality:
        if row.state is QualityState.UNDECIDED:
            yield say("Quality: ", Name(labels[row.config]), f": {row.reason}.")


def quality_section(summary: StudySummary) -> Section | None:
    if summary.study.quality is None:
        return None
    blocks = [
        *_figures(summary),
        *_position_blocks(summary, Labels.of(summary, MAX_NAME)),
        *_task_blocks(summary),
        *_refused(summary),
    ]
    return Section(say("Quality"), tuple(blocks), in_terminal=True)


def quality_rounding_sentences(rounded_before: Mapping[str, str]) -> Iterator[Phrase]:
    """Of models whose unquantized weights are not the original ones: what their figures of quality compare with."""
    for model, rounded in rounded_before.items():
        yield say(
            "The linear layers of ",
            Name(model),
            f" had been rounded to {rounded} before they were written as bf16: its figures of quality show what a "
            "variant loses against those rounded weights, not against the original model.",
        )


def _limits(summary: StudySummary) -> str:
    limits = summary.study.quality
    assert limits is not None  # there is a section
    rise = percent(limits.max_perplexity_rise)
    return f"mean KL divergence {limits.max_divergence:g} nats, perplexity +{rise}"


def _figures(summary: StudySummary) -> Iterator[Block]:
    yield _basis(summary)
    if summary.quality:
        labels = Labels.of(summary, MAX_NAME)
        yield _table(summary, labels)
        if labels.shared:
            yield small_print(labels.shared)
        yield Details("What the figures of quality mean", bullets(_definitions(summary)))


def _basis(summary: StudySummary) -> Block:
    known = next((row for row in summary.quality if row.outcome is Outcome.OK), None)
    if known is None:
        return paragraph("No config has a result.")
    dense = any(config.is_reference for config in summary.configs)
    baseline = "the unquantized variant on the same engine" if dense else "that of the study"
    return small_print(
        f"Text: {known.corpus or UNKNOWN}. {known.windows} windows, {known.tokens:,} scored tokens, the same for all "
        f"variants of a model. The divergence is from the {known.top_tokens} likeliest tokens of each side. The "
        f"baseline is {baseline}. Each difference from it is paired, token by token, and its interval is Student's t "
        "over windows."
    )


def _table(summary: StudySummary, labels: Labels) -> Table:
    """Without what was never measured."""
    return table(
        summary.quality,
        words_column("Config", lambda row: Name(labels[row.config])),
        *(_quality_column(summary, key) for key in KEYS),
        words_column("Answers", _equal, shown_from=WIDER),
        words_column("", _mark),
        mark=lambda row: Mark.ALARM if row.flagged else None,
        drop_empty=True,
    )


def _quality_column(summary: StudySummary, key: str) -> ColumnOf[ConfigQuality]:
    definition = summary.quality_definitions[key]

    def figure(row: ConfigQuality) -> Quantity | None:
        found = estimated(row.estimates.get(key), definition)
        if found is None:
            return None
        if (
            key == "perplexity"
        ):  # its interval is that of the text, which all share: their differences are finer
            return replace(found, digits=ROUGH + 1)
        is_exact = found.low == found.high == found.value and found.value in (
            0.0,
            1.0,
        )  # of a variant against itself
        return replace(found, is_signed=key == "perplexity_rise", digits=1 if is_exact else None)

    shown_from = SHOWN_FROM.get(key, 0)
    return number_column(
        definition.label,
        quantity_unit(definition),
        figure,
        shown_from=shown_from,
        intervals_from=WIDEST,
    )


def _mark(row: ConfigQuality) -> str:
    if row.outcome is not Outcome.OK:
        return row.outcome.value
    if row.baseline == row.config and not row.flagged:
        return "baseline"
    return STATES[row.state] if row.state else ""


def _equal(row: ConfigQuality) -> str | None:
    if row.equal_answers is None:
        return None
    loops = f", {row.looping_answers} in a loop" if row.looping_answers else ""
    return f"{row.equal_answers} of {row.answers}{loops}"


def _definitions(summary: StudySummary) -> Iterator[Phrase]:
    for definition in summary.quality_definitions.values():
        yield say(strong(definition.label), f": {definition.definition}")
    yield say(
        strong("flagged"),
        ": a log-probability is not a finite number, or the whole interval is beyond a limit of the study "
        f"({_limits(summary)}). ",
        strong("Within"),
        ": both whole intervals are within the limits. ",
        strong("Undecided"),
        ": not enough text, or not enough probability mass, to tell.",
    )
    if any(row.answers for row in summary.quality):
        yield say(
            strong("Answers"),
            ": greedy answers to fixed questions that equal the baseline's, token for token. ",
            Emphasis(say("In a loop")),
            ": it ends in one piece, repeated four times or more, 16 tokens or more.",
        )


def _refused(summary: StudySummary) -> Iterator[Block]:
    for reason, alike in grouped(summary.quality_refusals, lambda refusal: refusal.reason).items():
        yield paragraph(
            "Not measured: ",
            listing(name_phrases(refusal.config.name for refusal in alike)),
            f": {reason}",
        )
