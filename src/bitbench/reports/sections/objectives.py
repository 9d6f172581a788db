"""What the study promises, held against everything that was measured of each point."""

from collections.abc import Iterator, Sequence
from functools import partial

from bitbench.analysis.results.estimate import Finding, Verdict
from bitbench.analysis.results.summary import PointSummary, StudySummary
from bitbench.reports.document.model import Mark, Name, Phrase, Quantity, Section, Unit
from bitbench.reports.document.tables import number_column, table, words_column
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import bullets, listing, paragraph, plural, say, strong
from bitbench.reports.labels import Labels
from bitbench.reports.quantities import MARKS, ROUGH, finding_quantity
from bitbench.study.objective import Objective

SYMBOLS = "✓ the whole interval is within the limit, ✗ the whole interval is beyond it, ? inconclusive."


def objectives_section(summary: StudySummary) -> Section | None:
    """None of a study that promises nothing, or has no result yet. A search has its own answer in a terminal: rates
    beyond the highest miss their objectives by design."""
    objectives = summary.study.objectives
    points = summary.points
    if not objectives or not summary.is_measured:
        return None
    labels = Labels.of(summary, MAX_NAME)
    verdicts = table(
        points,
        words_column("Workload", lambda point: Name(point.point.workload)),
        words_column("Config", lambda point: Name(labels[point.point.config])),
        *(
            number_column(objective.name, Unit.SECONDS, partial(_judged, place), intervals_from=0)
            for place, objective in enumerate(objectives)
        ),
        words_column("Verdict", lambda point: point.verdict.value if point.verdict else None),
        mark=_mark,
    )
    asked = paragraph("Promised: ", promise(summary), ", of all trials of a point together. ", SYMBOLS)
    return Section(say("Objectives"), (asked, verdicts, *bullets(_open(points))), in_terminal=summary.search is None)


def objectives_verdict(summary: StudySummary) -> Phrase | None:
    """`Objectives (ttft_p99 ≤ 200 ms): 2 points met, 1 missed.`; None where nothing is promised, or of a search."""
    found = [point.verdict for point in summary.points]
    if summary.search is not None or not summary.is_measured or not any(found):
        return None
    counts = [f"{found.count(verdict)} {verdict.value}" for verdict in Verdict if verdict in found]
    return say(
        strong("Objectives"), " (", promise(summary), f"): of {plural(len(found), 'point')} ", listing(counts), "."
    )


def promise(summary: StudySummary) -> Phrase:
    """`ttft_p99 ≤ 200 ms and tpot_p99 ≤ 20.0 ms`"""
    return in_words(summary.study.objectives)


def in_words(objectives: Sequence[Objective | Finding]) -> Phrase:
    return listing(
        [
            say(Name(objective.name), " ≤ ", Quantity(objective.limit, Unit.SECONDS, digits=ROUGH))
            for objective in objectives
        ]
    )


def _judged(place: int, point: PointSummary) -> Quantity:
    return finding_quantity(point.objectives[place], MARKS[point.objectives[place].verdict])


def _mark(point: PointSummary) -> Mark | None:
    return Mark.ALARM if any(objective.verdict is Verdict.MISSED for objective in point.objectives) else None


def _open(points: Sequence[PointSummary]) -> Iterator[Phrase]:
    """What is inconclusive, or missed without a value, once per reason."""
    reasons: dict[tuple[Verdict, str, str], list[str]] = {}
    for point in points:
        for objective in point.objectives:
            if objective.reason:
                reasons.setdefault((objective.verdict, objective.name, objective.reason), []).append(point.point.name)
    for (verdict, name, reason), found in reasons.items():
        where = listing([Name(point_name) for point_name in found], most=3)
        yield say(f"{verdict.value.capitalize()}: ", Name(name), " of ", where, f": {reason}.")
