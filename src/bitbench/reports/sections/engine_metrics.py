"""What each engine counted about itself while it was measured: where a figure of the client may come from."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from bitbench.analysis.results.summary import EngineSummary, PointSummary, StudySummary
from bitbench.reports.document.model import Block, Emphasis, Name, Section, Unit
from bitbench.reports.document.tables import ColumnOf, number_column, table, words_column
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import say, small_print
from bitbench.reports.labels import Labels

Item = TypeVar("Item")

TITLE = say("What the engines counted")


class _Figure(NamedTuple):
    title: str
    unit: str
    of: Callable[[EngineSummary], float | None]
    meaning: str


FIGURES = (
    _Figure(
        "Queue",
        Unit.SECONDS,
        lambda engine: engine.queue_s,
        "from the arrival of a request until it is taken up, mean.",
    ),
    _Figure(
        "Waiting", Unit.COUNT, lambda engine: engine.waiting, "requests in the queue at the end of a trial, at most."
    ),
    _Figure(
        "Preempted",
        Unit.COUNT,
        lambda engine: engine.preemptions,
        "requests computed again for lack of KV cache, in all.",
    ),
    _Figure(
        "Cached", Unit.COUNT, lambda engine: engine.cached_tokens, "tokens of prompts that came from a cache, in all."
    ),
    _Figure(
        "KV in use", Unit.SHARE, lambda engine: engine.kv_use, "share of the KV cache taken after a trial, at most."
    ),
    _Figure(
        "Accepted",
        Unit.NONE,
        lambda engine: engine.acceptance_length,
        "tokens of a step that begins with a draft, mean.",
    ),
    _Figure(
        "Acceptance", Unit.SHARE, lambda engine: engine.acceptance_rate, "share of drafted tokens that are accepted."
    ),
)


def engine_metrics_section(summary: StudySummary) -> Section | None:
    """None where no engine offers such figures."""
    labels = Labels.of(summary, MAX_NAME)
    workload: ColumnOf[PointSummary] = words_column("Workload", lambda point: Name(point.point.workload))
    config: ColumnOf[PointSummary] = words_column("Config", lambda point: Name(labels[point.point.config]))
    points = [point for point in summary.points if point.engine is not None]
    return Section(TITLE, engine_blocks(points, lambda point: point.engine, workload, config)) if points else None


def engine_blocks(
    items: Iterable[Item], engine: Callable[[Item], EngineSummary | None], *first: ColumnOf[Item]
) -> tuple[Block, ...]:
    """The figures that some engine has, and what they mean."""

    def column(figure: _Figure) -> ColumnOf[Item]:
        return number_column(
            figure.title, figure.unit, lambda item: figure.of(counted) if (counted := engine(item)) else None
        )

    figures = table(items, *first, *(column(figure) for figure in FIGURES), drop_empty=True)
    titles = {shown.title for shown in figures.columns}
    meanings = [
        say(" ", Emphasis((figure.title,)), f": {figure.meaning}") for figure in FIGURES if say(figure.title) in titles
    ]
    return (figures, small_print("By the engine's own counters, read before and after each trial.", *meanings))
