"""Where a contender stops being faster than the baseline: a table for Markdown, sentences for both."""

from collections.abc import Iterator, Sequence
from math import floor

from rich.console import Console
from rich.text import Text

from bitbench.core.asked.workload import Workload
from bitbench.core.found.crossover import Axis, Crossing, Crossover, Point, Standing
from bitbench.core.found.summary import StudySummary
from bitbench.report.document.text import MAX_NAME, code, listing, plain, table
from bitbench.report.labels import Labels
from bitbench.report.sections.headline import Quote

UNITS = {Axis.CONCURRENCY: "requests at once", Axis.INPUT_TOKENS: "tokens of input"}
MOST_SURE = 0.999  # the few starts of a study cannot say more


def crossover_section(summary: StudySummary) -> str:
    """Empty where no two workloads differ in concurrency, or input length, alone."""
    if not summary.crossovers:
        return ""
    parts = [
        "## Where it stops being faster",
        f"By {summary.definitions[summary.headline].name}, along workloads that differ in nothing else. A ratio above "
        "1 is faster than the baseline. How the ratio bends between two points is not known, so that a crossing is "
        "known no better than the points around it show ([how](#how-the-figures-are-made)).",
    ]
    labels = Labels.of(summary, MAX_NAME)
    for title, group in _by_series(summary):
        places = [point.at for point in max((one.points for one in group), key=len)]
        rows = [[code(labels[one.contender]), *_cells(one, places), verdict(one)] for one in group]
        header = ["Contender", *(f"{place:,}" for place in places), "Crossing"]
        parts += [f"{title}:", table(header, rows, left=(0, len(places) + 1))]
    return "\n\n".join(parts)


def render_crossovers(summary: StudySummary, console: Console) -> None:
    if not summary.crossovers:
        return
    console.print()
    console.print(Text("Where it stops being faster", style="bold"))
    labels = Labels.of(summary, MAX_NAME)
    for title, group in _by_series(summary):
        console.print(Text(title, style="dim"))
        for one in group:
            console.print(Text(f"• {labels[one.contender]}: {verdict(one)}"))


def series_title(axis: Axis, workload: Workload, quote: Quote = plain) -> str:
    """What is the same in all workloads of a series."""
    if axis is Axis.CONCURRENCY:
        return f"Along concurrency, {quote(str(workload.input_tokens))} tokens in and {workload.output_tokens} out"
    return f"Along input length, concurrency {workload.concurrency} and {workload.output_tokens} tokens out"


def verdict(one: Crossover) -> str:
    """In a few words: where it changes sides, or that it does not in the range measured."""
    if one.crossings:
        return "; ".join(crossing(found, one.axis) for found in one.crossings)
    faster = one.points[0].speed > 1
    side = "faster" if faster else "slower"
    reached = f"{one.points[0].at:,} to {one.points[-1].at:,}"
    if all(stretch.standing is Standing.UNSURE for stretch in one.stretches):
        sure = [f"{_side(point)} at {point.at:,}" for point in one.points if _side(point)]
        but = f" but {listing(sure)}" if sure else ""
        return f"cannot tell: nowhere from {reached} surely faster or slower{but}"
    if one.none_confidence is None:
        return f"cannot tell: it changes sides within its error ({reached})"
    if all(stretch.standing is not Standing.UNSURE for stretch in one.stretches):
        return f"none in the range measured: {side} from {reached} ({_sure(one.none_confidence)} sure)"
    gaps = [stretch for stretch in one.stretches if stretch.standing is Standing.UNSURE]
    unsure = [f"{point.at:,}" for point in one.points if any(gap.low <= point.at <= gap.high for gap in gaps)]
    where = f"at {listing(unsure)}" if unsure else "between them"
    return f"none seen: {side} at every point from {reached}, but not surely {where}"


def _side(point: Point) -> str:
    """Empty where the point's own interval does not tell."""
    if point.low is None or point.high is None or point.low <= 1 <= point.high:
        return ""
    return "faster" if point.low > 1 else "slower"


def crossing(found: Crossing, axis: Axis) -> str:
    """`faster up to about 23 [20, 27] requests at once, then slower; measured at 16 and 32`"""
    side = "slower" if found.becomes is Standing.FASTER else "faster"
    about = f"about {_number(found.at)} [{_number(found.low)}, {_number(found.high)}] {UNITS[axis]}"
    points = f"measured at {found.after:,} and {found.before:,}"
    if not found.is_sure:
        return f"perhaps at {about}: {side} before, {found.becomes.value} after, neither is sure; {points}"
    return f"{side} up to {about}, then {found.becomes.value}; {points}"


def _by_series(summary: StudySummary) -> Iterator[tuple[str, list[Crossover]]]:
    groups: dict[str, list[Crossover]] = {}
    for one in summary.crossovers:
        workload = summary.study.workload(one.points[0].workload)
        groups.setdefault(series_title(one.axis, workload), []).append(one)
    yield from groups.items()


def _cells(one: Crossover, places: Sequence[int]) -> list[str]:
    points = {point.at: point for point in one.points}
    return [_ratio(points[place]) if place in points else "–" for place in places]


def _ratio(point: Point) -> str:
    if point.low is None or point.high is None:
        return f"{point.speed:.2f}×"
    return f"{point.speed:.2f}× [{point.low:.2f}, {point.high:.2f}]"


def _sure(confidence: float) -> str:
    """Rounded down: 99.97 % is not sure."""
    return f"{floor(1000 * min(confidence, MOST_SURE)) / 10:g} %"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")
