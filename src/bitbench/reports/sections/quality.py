"""The quality of each config compared with its baseline.

Divergence and perplexity, equal answers, tasks question by question, and losses in long texts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

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
    find_unit,
    format_percent,
    format_plus_minus,
    make_quantity,
    to_quantity,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    build_table,
    bullets,
    format_names,
    make_number_column,
    make_words_column,
    mark_if,
    paragraph,
    say,
    small_print,
    strong,
)
from bitbench.reports.labels import Labels, group_by
from bitbench.study.quality import BUILT_IN
from bitbench.util.units import UNKNOWN

TASK_DECIMALS = 4
SIGNIFICANT = 0.05
NEEDLE = f"{BUILT_IN}/needle-"
POSITIONS = (
    "Mean KL divergence from the baseline over tokens at these places of a window; intervals over "
    "windows."
)

TaskRow = tuple[ConfigQuality, TaskEstimate]


def _iter_task_sentences(summary: StudySummary, labels: Labels) -> Iterator[Phrase]:
    """Yield which variants answer significantly more or fewer questions than their baseline."""
    for row, task in _list_task_rows(summary):
        if task.flips is not None and not task.task.startswith(f"{BUILT_IN}/"):
            yield _describe_task(labels[row.config], task, task.flips)
    for row in summary.quality:
        lengths = []
        for task in row.tasks:
            if task.task.startswith(NEEDLE) and _find_verdict(task.flips) == "fewer":
                lengths.append(int(task.task.removeprefix(NEEDLE)))
        if lengths:
            loss = f" finds fewer needles than its baseline from {min(lengths):,} tokens on."
            yield say("Long prompts: ", Name(labels[row.config]), loss)


def _describe_task(name: str, task: TaskEstimate, flips: TaskFlips) -> Phrase:
    interval = flips.difference.interval
    points = ""
    if interval:
        ends = f"[{_format_points(interval.low)}, {_format_points(interval.high)}]"
        points = f"; {_format_points(flips.difference.value)} {ends} points"
    counts = f"{flips.lost} answers lost and {flips.gained} gained of {task.samples}"
    verdicts = {
        "fewer": " answers significantly fewer questions right than its baseline: ",
        "more": " answers significantly more questions right than its baseline: ",
        "": ": no significant difference from its baseline: ",
    }
    evidence = f"{counts} (p = {flips.p_value:.2g}{points})."
    return say(f"Tasks: {task.task}: ", Name(name), verdicts[_find_verdict(flips)], evidence)


def _format_points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _find_verdict(flips: TaskFlips | None) -> str:
    """Return `fewer` or `more`. The result is empty if the difference is not significant."""
    if flips is None or flips.p_value >= SIGNIFICANT:
        return ""
    return "fewer" if flips.lost > flips.gained else "more"


def _list_task_rows(summary: StudySummary) -> list[TaskRow]:
    return [(row, task) for row in summary.quality for task in row.tasks]


def _iter_task_blocks(summary: StudySummary) -> Iterator[Block]:
    results = _list_task_rows(summary)
    failures = []
    for row in summary.quality:
        for failure in row.task_failures:
            failures.append(say(Name(row.name), ", ", Name(failure.task), f": {failure.cause}"))
    if results or failures:
        yield Heading(say("Tasks"))
    if results:
        yield small_print(_describe_columns([task for _, task in results]))
        yield _build_task_table(results)
    if failures:
        yield paragraph("Without a result:")
        yield from bullets(failures)
    yield from _iter_needle_blocks(summary)


def _describe_columns(tasks: list[TaskEstimate]) -> str:
    """Return how to read the columns of the table of tasks."""
    text = "± is one standard error"
    if any(task.flips is None and task.difference is not None for task in tasks):
        text += ", for a difference as if the two results were independent"
    if any(task.flips is not None for task in tasks):
        text += (
            ". Lost: right in the baseline and wrong here; gained: the other way. p: exact, for as "
            "many lost as gained, corrected for the number of variants (Holm). The interval of a "
            "difference is paired, question by question"
        )
    return f"{text}."


def _build_task_table(results: list[TaskRow]) -> Block:
    return build_table(
        results,
        make_words_column("Config", lambda row: Name(row[0].name)),
        make_words_column("Task", lambda row: Name(row[1].task)),
        make_words_column("Metric", lambda row: row[1].metric),
        make_number_column(
            "Value", Unit.NONE, lambda row: _format_with_error(row[1].value, row[1].standard_error)
        ),
        make_number_column("To the baseline", Unit.NONE, lambda row: _format_difference(row[1])),
        make_number_column("Lost", Unit.COUNT, lambda row: getattr(row[1].flips, "lost", None)),
        make_number_column("Gained", Unit.COUNT, lambda row: getattr(row[1].flips, "gained", None)),
        make_words_column("p", _format_p_value),
        make_number_column("Cut", Unit.SHARE, lambda row: row[1].cut_share),
        make_number_column("Questions", Unit.COUNT, lambda row: row[1].samples),
        drop_empty=True,
    )


def _format_p_value(row: TaskRow) -> str | None:
    flips = row[1].flips
    return f"{flips.p_value:.2g}" if flips else None


def _format_difference(task: TaskEstimate) -> Quantity | Phrase | None:
    if task.flips is None:
        return _format_with_error(task.difference, task.difference_error, "+")
    difference = make_quantity(task.flips.difference, Unit.NONE)
    return replace(difference, is_signed=True) if difference else None


def _format_with_error(value: float | None, error: float | None, sign: str = "") -> Phrase | None:
    if value is None:
        return None
    result = Quantity(value, decimals=TASK_DECIMALS, is_signed=bool(sign))
    if error is None:
        return format_plus_minus(result, None)
    return format_plus_minus(result, Quantity(error, decimals=TASK_DECIMALS))


def _iter_needle_blocks(summary: StudySummary) -> Iterator[Block]:
    """Yield a table with a row for each config and length, and a column for each depth."""
    cells: dict[tuple[str, int], dict[int, NeedleDepth]] = {}
    for row in summary.quality:
        for cell in row.needles:
            cells.setdefault((row.name, cell.length), {})[cell.depth] = cell
    if not cells:
        return

    def make_column(depth: int) -> ColumnOf[tuple[tuple[str, int], dict[int, NeedleDepth]]]:
        return make_words_column(f"{depth} %", lambda row: _format_needles(row[1].get(depth)))

    depths = {cell.depth for row in summary.quality for cell in row.needles}
    yield Heading(say("Needles that were found, by how deep they lie in the text"))
    yield build_table(
        cells.items(),
        make_words_column("Config", lambda row: Name(row[0][0])),
        make_number_column("Tokens", Unit.COUNT, lambda row: row[0][1]),
        *map(make_column, sorted(depths)),
    )


def _format_needles(cell: NeedleDepth | None) -> str | None:
    return None if cell is None else f"{cell.found} of {cell.asked}"


def _iter_position_blocks(summary: StudySummary, labels: Labels) -> Iterator[Block]:
    """Yield the divergence at each stretch of a window.

    It shows whether the loss of a quantized cache adds up along a text.
    """
    rows = [row for row in summary.quality if row.by_position]
    if not rows:
        return
    config: ColumnOf[ConfigQuality] = make_words_column(
        "Config", lambda row: Name(labels[row.config])
    )
    columns = [config]
    for index, part in enumerate(rows[0].by_position):
        title = f"{part.first:,} to {part.last:,}"
        stretch = partial(_find_divergence, index)
        columns.append(make_number_column(title, "nats", stretch, intervals_from=0))
    yield Heading(say("Divergence by position"))
    yield build_table(rows, *columns)
    yield small_print(POSITIONS)


def _find_divergence(index: int, row: ConfigQuality) -> Quantity | None:
    if index >= len(row.by_position):
        return None
    return make_quantity(row.by_position[index].divergence, "nats")


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

# Characters of a terminal from which there is room for memory and the tail, for speed, and for
# intervals of quality.
WIDE = 110
WIDER = 150
WIDEST = 200
SHOWN_FROM = {
    "kl_mass": WIDE,
    "kl_median": WIDER,
    "kl_p99_9": WIDER,
    "probability_change_rms": WIDER,
}


def iter_quality_sentences(summary: StudySummary) -> Iterator[Phrase]:
    """Yield the sentences about quality for the answer: losses, failures and results."""
    labels = Labels.of(summary, MAX_NAME)
    if summary.quality:
        yield from iter_rounding_sentences(summary.rounded_before)
    for row in summary.quality:
        if row.flagged:
            yield say("Quality: ", Name(labels[row.config]), f" is flagged: {row.reason}.")
    for row in summary.quality:
        if row.outcome is not Outcome.OK:
            cause = f" has no result ({row.outcome.value}): {row.cause}"
            yield say("Quality: ", Name(labels[row.config]), cause)
    lossless = {config.config for config in summary.configs if config.is_reference}
    unknown = []
    for row in summary.quality:
        if row.outcome is Outcome.OK and row.config not in lossless and not row.is_known:
            unknown.append(row.config)
    if unknown:
        yield say(
            "Quality: that of ",
            labels.format_configs(unknown),
            " is unknown: the unquantized model on the same engine has no result to compare it "
            "with.",
        )
    fine = []
    for row in summary.quality:
        if row.state is QualityState.WITHIN and row.baseline not in (None, row.config):
            fine.append(row.config)
    if fine:
        verb = "is" if len(fine) == 1 else "are"
        limits = f" {verb} within the limits ({_format_limits(summary)})."
        yield say("Quality: ", labels.format_configs(fine), limits)
    yield from iter_undecided_quality(summary)
    yield from _iter_task_sentences(summary, labels)


def iter_undecided_quality(summary: StudySummary) -> Iterator[Phrase]:
    """Yield the variants that may be within the limits or beyond them, with the reason."""
    labels = Labels.of(summary, MAX_NAME)
    for row in summary.quality:
        if row.state is QualityState.UNDECIDED:
            yield say("Quality: ", Name(labels[row.config]), f": {row.reason}.")


def build_quality_section(summary: StudySummary) -> Section | None:
    """Return all results of quality, or None if the study does not measure it."""
    if summary.study.quality is None:
        return None
    blocks = [
        *_iter_figures(summary),
        *_iter_position_blocks(summary, Labels.of(summary, MAX_NAME)),
        *_iter_task_blocks(summary),
        *_iter_refusals(summary),
    ]
    return Section(say("Quality"), tuple(blocks), in_terminal=True)


def iter_rounding_sentences(rounded_before: Mapping[str, str]) -> Iterator[Phrase]:
    """Yield the models whose unquantized weights had been rounded before.

    Their loss is measured against the rounded weights.
    """
    for model, rounded in rounded_before.items():
        yield say(
            "The linear layers of ",
            Name(model),
            f" had been rounded to {rounded} before they were written as bf16: its figures of "
            "quality show what a variant loses against those rounded weights, not against the "
            "original model.",
        )


def _format_limits(summary: StudySummary) -> str:
    limits = summary.study.quality
    assert limits is not None  # there is a section
    rise = format_percent(limits.max_perplexity_rise)
    return f"mean KL divergence {limits.max_divergence:g} nats, perplexity +{rise}"


def _iter_figures(summary: StudySummary) -> Iterator[Block]:
    yield _build_basis(summary)
    if summary.quality:
        labels = Labels.of(summary, MAX_NAME)
        yield _build_table(summary, labels)
        if labels.shared:
            yield small_print(labels.shared)
        yield Details("What the figures of quality mean", bullets(_iter_definitions(summary)))


def _build_basis(summary: StudySummary) -> Block:
    measured = [row for row in summary.quality if row.outcome is Outcome.OK]
    if not measured:
        return paragraph("No config has a result.")
    first = measured[0]
    baseline = "that of the study"
    if any(config.is_reference for config in summary.configs):
        baseline = "the unquantized variant on the same engine"
    return small_print(
        f"Text: {first.corpus or UNKNOWN}. {first.windows} windows, {first.tokens:,} scored "
        "tokens, the same for all variants of a model. The divergence is from the "
        f"{first.top_tokens} likeliest tokens of each side. The baseline is {baseline}. Each "
        "difference from it is paired, token by token, and its interval is Student's t over "
        "windows."
    )


def _build_table(summary: StudySummary, labels: Labels) -> Table:
    """Return a row per config, without the columns that were never measured."""
    return build_table(
        summary.quality,
        make_words_column("Config", lambda row: Name(labels[row.config])),
        *map(partial(_make_quality_column, summary), KEYS),
        make_words_column("Answers", _format_equal_answers, shown_from=WIDER),
        make_words_column("", _format_state),
        mark=lambda row: mark_if(row.flagged, Mark.ALARM),
        drop_empty=True,
    )


def _make_quality_column(summary: StudySummary, key: str) -> ColumnOf[ConfigQuality]:
    definition = summary.quality_definitions[key]

    def get_value(row: ConfigQuality) -> Quantity | None:
        value = to_quantity(row.estimates.get(key), definition)
        if value is None:
            return None
        # The interval of a perplexity comes from the text, which all configs share. Their
        # differences are finer.
        if key == "perplexity":
            return replace(value, digits=ROUGH + 1)
        # A variant compared with itself has an exact result.
        is_exact = value.low == value.high == value.value and value.value in (0.0, 1.0)
        digits = 1 if is_exact else None
        return replace(value, is_signed=key == "perplexity_rise", digits=digits)

    return make_number_column(
        definition.label,
        find_unit(definition),
        get_value,
        shown_from=SHOWN_FROM.get(key, 0),
        intervals_from=WIDEST,
    )


def _format_state(row: ConfigQuality) -> str:
    if row.outcome is not Outcome.OK:
        return row.outcome.value
    if row.baseline == row.config and not row.flagged:
        return "baseline"
    return STATES[row.state] if row.state else ""


def _format_equal_answers(row: ConfigQuality) -> str | None:
    if row.equal_answers is None:
        return None
    loops = f", {row.looping_answers} in a loop" if row.looping_answers else ""
    return f"{row.equal_answers} of {row.answers}{loops}"


def _iter_definitions(summary: StudySummary) -> Iterator[Phrase]:
    for definition in summary.quality_definitions.values():
        yield say(strong(definition.label), f": {definition.definition}")
    yield say(
        strong("flagged"),
        ": a log-probability is not a finite number, or the whole interval is beyond a limit of "
        f"the study ({_format_limits(summary)}). ",
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


def _iter_refusals(summary: StudySummary) -> Iterator[Block]:
    for reason, refusals in group_by(
        summary.quality_refusals, lambda refusal: refusal.reason
    ).items():
        names = format_names(refusal.config.name for refusal in refusals)
        yield paragraph("Not measured: ", names, f": {reason}")
