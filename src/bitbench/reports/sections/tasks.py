"""What a config answers right, question by question beside its baseline, and where in a long text it loses."""

from collections.abc import Iterator
from dataclasses import replace

from bitbench.analysis.results.summary import ConfigQuality, NeedleDepth, StudySummary, TaskEstimate, TaskFlips
from bitbench.reports.document.model import Block, Heading, Name, Phrase, Quantity, Unit
from bitbench.reports.document.tables import ColumnOf, number_column, table, words_column
from bitbench.reports.document.words import bullets, paragraph, say, small_print
from bitbench.reports.labels import Labels
from bitbench.reports.quantities import plus_minus, quantity
from bitbench.study.quality import BUILT_IN

TASK_DECIMALS = 4
SIGNIFICANT = 0.05
NEEDLE = f"{BUILT_IN}/needle-"
POSITIONS = "Mean KL divergence from the baseline over tokens at these places of a window; intervals over windows."

TaskRow = tuple[ConfigQuality, TaskEstimate]


def task_sentences(summary: StudySummary, labels: Labels) -> Iterator[Phrase]:
    """Of each variant that was asked the same questions as its baseline: whether it answers fewer right."""
    for row, task in _rows(summary):
        if task.flips is not None and not task.task.startswith(f"{BUILT_IN}/"):
            yield _sentence(labels[row.config], task, task.flips)
    for row in summary.quality:
        lost = [task for task in row.tasks if task.task.startswith(NEEDLE) and _verdict(task.flips) == "fewer"]
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
        f"; {_points(flips.difference.value)} [{_points(points.low)}, {_points(points.high)}] points" if points else ""
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
    return [(row, task) for row in summary.quality if row.measured_as is None for task in row.tasks]


def task_blocks(summary: StudySummary) -> Iterator[Block]:
    results = _rows(summary)
    failures = [
        say(Name(row.name), ", ", Name(failure.task), f": {failure.cause}")
        for row in summary.quality
        if row.measured_as is None
        for failure in row.task_failures
    ]
    if results or failures:
        yield Heading(say("Tasks"))
    if results:
        yield small_print(_meaning(results))
        yield _table(results)
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


def _table(results: list[TaskRow]) -> Block:
    return table(
        results,
        words_column("Config", lambda row: Name(row[0].name)),
        words_column("Task", lambda row: Name(row[1].task)),
        words_column("Metric", lambda row: row[1].metric),
        number_column("Value", Unit.NONE, lambda row: _with_error(row[1].value, row[1].standard_error)),
        number_column("To the baseline", Unit.NONE, lambda row: _difference(row[1])),
        number_column("Lost", Unit.COUNT, lambda row: row[1].flips.lost if row[1].flips else None),
        number_column("Gained", Unit.COUNT, lambda row: row[1].flips.gained if row[1].flips else None),
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
        (row.name, cell.length): {other.depth: other for other in row.needles if other.length == cell.length}
        for row in summary.quality
        if row.measured_as is None
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


def position_blocks(summary: StudySummary, labels: Labels) -> Iterator[Block]:
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
