"""One metric of one point over time: a line of blocks, a chart, and a table with what else changed."""

from collections.abc import Iterator, Sequence

from bitbench.analysis.results.facts import Fact
from bitbench.features.history.chart import history_figure, when
from bitbench.features.history.types import History, HistoryPoint
from bitbench.reports.document.model import Chart, Document, Name, Phrase, Section, Table
from bitbench.reports.document.numbers import percent
from bitbench.reports.document.tables import number_column, ratio_column, table, words_column
from bitbench.reports.document.words import Words, bullets, listing, names, paragraph, say
from bitbench.reports.quantities import estimated, number, times, unit_of
from bitbench.util.units import UNKNOWN

BLOCKS = "▁▂▃▄▅▆▇█"
MAX_CHANGES = 3  # in words; the rest is counted
NAMED_SUBJECTS = (Fact.HOST, Fact.ENVIRONMENT)  # those of a config are clear from the point


def history_document(found: History) -> Document:
    title = say(Name(found.point.name), f": {found.definition.name}")
    if not found.points:
        return Document(title, (paragraph("No study has this figure for this point."), *bullets(_absent(found))))
    means = [point.estimate.value for point in found.points]
    first, last, lowest, highest = (
        number(mean, unit_of(found.definition)) for mean in (means[0], means[-1], min(means), max(means))
    )
    between = say(" (between ", lowest, " and ", highest, ")") if len(means) > 2 else ()
    changes = bullets(
        say("* ", Name(point.folder), ": ", _changes(point), ".") for point in found.points if point.changes
    )
    return Document(
        title,
        (paragraph(sparkline(means), " ", first, " → ", last, between), Chart(history_figure(found))),
        (
            Section(say("Studies"), (_table(found), *changes)),
            Section(say("What to know"), bullets(_notes(found))),
        ),
    )


def sparkline(values: Sequence[float]) -> str:
    """One block per value between the smallest and the largest; all in the middle where they are equal."""
    low, high = min(values), max(values)
    if high == low:
        return BLOCKS[len(BLOCKS) // 2] * len(values)
    return "".join(BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] for value in values)


def _table(found: History) -> Table:
    unit = unit_of(found.definition)
    return table(
        found.points,
        words_column("Begun (UTC)", when),
        words_column("Study", lambda point: Name(point.folder)),
        number_column(
            found.definition.label, unit, lambda point: estimated(point.estimate, found.definition), intervals_from=0
        ),
        ratio_column("vs. the one before", lambda point: times(point.ratio)),
        words_column("Verdict", _verdict),
    )


def _verdict(point: HistoryPoint) -> str:
    return f"{point.verdict.value if point.verdict else UNKNOWN}{' *' if point.changes else ''}"


def _changes(point: HistoryPoint) -> Phrase:
    said: list[Words] = []
    for change in point.changes:
        subject = say(" (", Name(change.subject), ")") if change.fact in NAMED_SUBJECTS else ()
        said.append(say(change.fact.value, subject, ": ", Name(change.before), " → ", Name(change.after)))
    return listing(said, most=MAX_CHANGES)


def _notes(found: History) -> Iterator[Words]:
    yield f"Intervals are at {percent(found.confidence)}; a verdict compares with the study in the line above only."
    if any(point.changes for point in found.points):
        yield "*: a fact changed, which may explain the difference; bitbench compare refuses such a pair."
    yield from _absent(found)


def _absent(found: History) -> Iterator[Words]:
    if found.other_shape:
        yield say(
            "Not applicable, as the workload of this name has another shape: ", listing(names(found.other_shape)), "."
        )
    if found.without_result:
        yield say("Without a result: ", listing(names(found.without_result)), ".")
