"""What each contender keeps of its baseline's quality, beside its speed and memory."""

from collections.abc import Iterator
from dataclasses import replace

from bitbench.core.found.summary import (
    AnswerComparison,
    ContenderQuality,
    MetricDefinition,
    QualityEstimate,
    StudySummary,
    TaskEstimate,
)
from bitbench.core.recorded.trial import Outcome
from bitbench.ground.units import UNKNOWN
from bitbench.report.document.model import (
    Block,
    Column,
    Details,
    Emphasis,
    Heading,
    Mark,
    Name,
    Phrase,
    Quantity,
    Row,
    Section,
    Table,
    TableCell,
    Unit,
)
from bitbench.report.document.numbers import percent
from bitbench.report.document.text import MAX_NAME, plain
from bitbench.report.document.words import (
    bullets,
    listing,
    names,
    number_column,
    paragraph,
    say,
    small_print,
    strong,
    words_column,
)
from bitbench.report.labels import Labels
from bitbench.report.quantities import ROUGH, count, estimated, plus_minus, quality_of, size, unit_of

MAX_WORKLOADS = 3  # beside quality; all of them have tables of their own
MAX_ANSWER = 240  # characters of an answer in the table
KEYS = ("perplexity", "perplexity_rise", "kl_mean", "kl_p99", "top1_agreement")
TASK_DECIMALS = 4
# Characters of a terminal from which there is room for memory and the tail, for speed, and for intervals of quality.
WIDE, WIDER, WIDEST = 110, 150, 200


def quality_sentences(summary: StudySummary) -> list[Phrase]:
    """For the answer above all tables: what lost too much, and what could not be measured."""
    sentences = [
        say("Quality: ", Name(row.name), f" is flagged: {row.reason}.") for row in summary.quality if row.flagged
    ]
    sentences += [
        say("Quality: ", Name(row.name), f" has no result ({row.outcome.value}): {row.cause}")
        for row in summary.quality
        if row.outcome is not Outcome.OK
    ]
    fine = [row.name for row in summary.quality if row.baseline not in (None, row.contender) and not _mark(row)]
    if fine:
        verb = "does" if len(fine) == 1 else "do"
        sentences.append(
            say("Quality: ", listing(names(fine)), f" {verb} not significantly exceed the limits ({_limits(summary)}).")
        )
    return sentences


def quality_section(summary: StudySummary) -> Section | None:
    if summary.study.quality is None:
        return None
    blocks = [*_table(summary), *_tasks(summary), *_refused(summary), *_answers(summary)]
    return Section(say("Quality"), tuple(blocks), in_terminal=True)


def _limits(summary: StudySummary) -> str:
    limits = summary.study.quality
    assert limits is not None  # there is a section
    rise = percent(limits.max_perplexity_rise)
    return f"mean KL divergence {limits.max_divergence:g} nats, perplexity +{rise}"


def _table(summary: StudySummary) -> Iterator[Block]:
    yield _basis(summary)
    if not summary.quality:
        return
    labels = Labels.of(summary, MAX_NAME)
    with_answers = any(row.answers for row in summary.quality)
    columns = [
        words_column("Contender"),
        *_speed_columns(summary),
        number_column("Weights", Unit.BYTES, shown_from=WIDE),
        number_column("Peak", Unit.BYTES, shown_from=WIDE),
        *(_quality_column(key, summary.quality_definitions[key]) for key in KEYS),
        *([words_column("Answers", shown_from=WIDER)] if with_answers else []),
        words_column(""),
    ]
    rows = [
        Row(
            (
                say(Name(labels[row.contender])),
                *_speeds(summary, row),
                *_sizes(summary, row),
                *(_figure(key, row.estimates.get(key), summary.quality_definitions[key]) for key in KEYS),
                *([_equal(row)] if with_answers else []),
                say(_mark(row)),
            ),
            Mark.ALARM if row.flagged else None,
        )
        for row in summary.quality
    ]
    yield _without_unknown_columns(Table(tuple(columns), tuple(rows)))
    if labels.shared:
        yield small_print(labels.shared)
    yield Details("What the figures of quality mean", bullets(_definitions(summary)))


def _without_unknown_columns(table: Table) -> Table:
    """Speed and memory were perhaps never measured: a study may ask for quality alone."""
    known = [place for place in range(len(table.columns)) if any(row.cells[place] is not None for row in table.rows)]
    rows = tuple(replace(row, cells=tuple(row.cells[place] for place in known)) for row in table.rows)
    return Table(tuple(table.columns[place] for place in known), rows)


def _basis(summary: StudySummary) -> Block:
    known = next((row for row in summary.quality if row.outcome is Outcome.OK), None)
    if known is None:
        return paragraph("No contender has a result.")
    return small_print(
        f"Text: {known.corpus or UNKNOWN}. {known.windows} windows, {known.tokens:,} scored tokens, the same for all "
        f"variants of a model. The divergence is from the {known.top_tokens} likeliest tokens of each side. The "
        "baseline is the unquantized variant on the same engine; each difference to it is paired, token by token, and "
        "its interval is from a bootstrap over windows."
    )


def _speed_columns(summary: StudySummary) -> Iterator[Column]:
    speed = summary.definitions[summary.headline]
    for workload in summary.study.workloads[:MAX_WORKLOADS]:
        yield number_column(f"{speed.label}, {workload.name}", unit_of(speed), shown_from=WIDER, intervals_from=WIDEST)


def _speeds(summary: StudySummary, row: ContenderQuality) -> Iterator[TableCell]:
    cells = {cell.cell.workload: cell for cell in summary.cells if cell.cell.contender == row.contender}
    for workload in summary.study.workloads[:MAX_WORKLOADS]:
        cell = cells.get(workload.name)
        estimate = cell.metrics.get(summary.headline) if cell else None
        yield estimated(estimate, summary.definitions[summary.headline])


def _sizes(summary: StudySummary, row: ContenderQuality) -> tuple[TableCell, TableCell]:
    memory = next((one.memory for one in summary.contenders if one.contender == row.contender), None)
    if memory is None:
        return None, None
    return size(memory.weight_bytes_stored), size(memory.peak_bytes.high if memory.peak_bytes else None)


def _quality_column(key: str, definition: MetricDefinition) -> Column:
    shown_from = WIDE if key == "kl_p99" else 0
    return number_column(definition.label, unit_of(definition), shown_from=shown_from, intervals_from=WIDEST)


def _figure(key: str, estimate: QualityEstimate | None, definition: MetricDefinition) -> Quantity | None:
    found = quality_of(estimate, definition)
    if found is None or found.value is None:
        return None
    if key == "perplexity":  # its interval is that of the text, which all share: their differences are finer
        return replace(found, digits=ROUGH + 1)
    is_exact = found.low == found.high == found.value and found.value in (0.0, 1.0)  # of a variant against itself
    return replace(found, is_signed=key == "perplexity_rise", digits=1 if is_exact else None)


def _mark(row: ContenderQuality) -> str:
    if row.outcome is not Outcome.OK:
        return row.outcome.value
    if row.flagged:
        return "flagged"
    return "baseline" if row.baseline == row.contender else ""


def _equal(row: ContenderQuality) -> Phrase | None:
    if row.equal_answers is None:
        return None
    loops = sum(answer.repeats for answer in row.answers)
    return say(f"{row.equal_answers} of {len(row.answers)}" + (f", {loops} in a loop" if loops else ""))


def _definitions(summary: StudySummary) -> Iterator[Phrase]:
    for definition in summary.quality_definitions.values():
        yield say(strong(definition.label), f": {definition.definition}")
    yield say(
        strong("flagged"),
        ": a log-probability is not a finite number, or the whole interval lies beyond a limit of the study "
        f"({_limits(summary)}).",
    )
    if any(row.answers for row in summary.quality):
        yield say(
            strong("Answers"),
            ": greedy answers to fixed questions that equal the baseline's, token for token. ",
            Emphasis(say("In a loop")),
            ": it ends in one piece, repeated four times or more, 16 tokens or more.",
        )


def _tasks(summary: StudySummary) -> Iterator[Block]:
    rows = [Row(_task(row, task)) for row in summary.quality for task in row.tasks]
    failures = [
        say(Name(row.name), ", ", Name(failure.task), f": {failure.cause}")
        for row in summary.quality
        for failure in row.task_failures
    ]
    if rows or failures:
        yield Heading(say("Tasks"))
    if rows:
        yield small_print("lm-eval; ± is one standard error, for a difference as if the two results were independent.")
        titles = (number_column(title) for title in ("Value", "To the baseline", "Questions"))
        yield Table((*map(words_column, ("Contender", "Task", "Metric")), *titles), tuple(rows))
    if failures:
        yield paragraph("Without a result:")
        yield from bullets(failures)


def _task(row: ContenderQuality, task: TaskEstimate) -> tuple[TableCell, ...]:
    def with_error(value: float, error: float | None, *, is_signed: bool = False) -> Phrase:
        known = None if error is None else Quantity(error, decimals=TASK_DECIMALS)
        return plus_minus(Quantity(value, decimals=TASK_DECIMALS, is_signed=is_signed), known)

    return (
        say(Name(row.name)),
        say(Name(task.task)),
        say(task.metric),
        with_error(task.value, task.standard_error),
        None if task.difference is None else with_error(task.difference, task.difference_error, is_signed=True),
        count(task.samples),
    )


def _refused(summary: StudySummary) -> Iterator[Block]:
    reasons: dict[str, list[str]] = {}
    for refusal in summary.quality_refusals:
        reasons.setdefault(refusal.reason, []).append(refusal.contender.name)
    for reason, contenders in reasons.items():
        yield paragraph("Not measured: ", listing(names(contenders)), f": {reason}")


def _answers(summary: StudySummary) -> Iterator[Block]:
    prompts = dict.fromkeys(answer.prompt for row in summary.quality for answer in row.answers)
    rows = [
        Row(_answer(row, answer))
        for prompt in prompts
        for row in summary.quality
        for answer in row.answers
        if answer.prompt == prompt
    ]
    if rows:
        table = Table(tuple(map(words_column, ("Question", "Contender", "Answer", "Differs"))), tuple(rows))
        yield Details("All answers", (Heading(say("Answers side by side")), table))


def _answer(row: ContenderQuality, answer: AnswerComparison) -> tuple[Phrase, ...]:
    is_other = row.baseline != row.contender and answer.baseline_text is not None
    same = is_other and answer.first_difference is None
    differs = [f"from token {answer.first_difference}"] if answer.first_difference is not None else []
    remarks = [*differs, *(["in a loop"] if answer.repeats else [])]
    text = Emphasis(say("as the baseline")) if same else plain(answer.text, MAX_ANSWER)
    return say(answer.prompt), say(Name(row.name)), say(text), say(", ".join(remarks))
