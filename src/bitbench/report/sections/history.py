"""A metric over time: a line of blocks and a table for a terminal, a figure as SVG."""

from collections.abc import Sequence
from datetime import datetime
from html import escape as escape_xml

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bitbench.core.found.facts import Fact
from bitbench.core.found.history import History, HistoryPoint
from bitbench.core.found.summary import Estimate
from bitbench.ground.units import UNKNOWN, significant
from bitbench.report.document.numbers import Scale, mean_and_interval, percent, scale_for, times
from bitbench.report.document.text import MAX_NAME, counted, listing, plain

BLOCKS = "▁▂▃▄▅▆▇█"
MAX_CHANGES = 3  # in words; the rest is counted
NAMED_SUBJECTS = (Fact.HOST, Fact.ENVIRONMENT)  # those of a contender are clear from the cell
WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 48, 64


def sparkline(values: Sequence[float]) -> str:
    """One block per value between the smallest and the largest; all in the middle where they are equal."""
    low, high = min(values), max(values)
    if high == low:
        return BLOCKS[len(BLOCKS) // 2] * len(values)
    return "".join(BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] for value in values)


def render_history(found: History, console: Console) -> None:
    definition = found.definition
    console.print(Text(f"{plain(found.cell.name, MAX_NAME)}: {definition.name}", style="bold"))
    if not found.points:
        console.print("No study has this figure for this cell.")
        return
    means = [point.estimate.mean for point in found.points]
    scale = scale_for(definition, means)
    low, high = (significant(one / scale.factor) for one in (min(means), max(means)))
    console.print(Text(f"{sparkline(means)}  {low} to {high} {scale.unit}"))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("Begun (UTC)", no_wrap=True)
    table.add_column("Study", overflow="fold")
    table.add_column(f"{definition.label} ({scale.unit})", justify="right", no_wrap=True)
    table.add_column("vs. the one before", justify="right", no_wrap=True)
    table.add_column("Verdict", no_wrap=True)
    for point in found.points:
        table.add_row(
            _when(point.started_at),
            Text(plain(point.folder, MAX_NAME)),
            mean_and_interval(point.estimate, scale),
            times(point.ratio),
            f"{point.verdict.value if point.verdict else UNKNOWN}{' *' if point.changes else ''}",
        )
    console.print(table)
    for point in found.points:
        if point.changes:
            console.print(Text(f"* {plain(point.folder, MAX_NAME)}: {_changes(point)}."))
    for sentence in _notes(found):
        console.print(Text(f"• {sentence}"))


def _when(started_at: str | None) -> str:
    try:
        return f"{datetime.fromisoformat(started_at):%Y-%m-%d %H:%M}" if started_at else UNKNOWN
    except ValueError:
        return UNKNOWN


def _changes(point: HistoryPoint) -> str:
    said = [
        f"{one.fact.value}{f' ({plain(one.subject, MAX_NAME)})' if one.fact in NAMED_SUBJECTS else ''}: "
        f"{plain(one.before, MAX_NAME)} → {plain(one.after, MAX_NAME)}"
        for one in point.changes[:MAX_CHANGES]
    ]
    more = len(point.changes) - MAX_CHANGES
    return "; ".join([*said, *([f"{more} more"] if more > 0 else [])])


def _notes(found: History) -> list[str]:
    confidence = percent(found.confidence)
    notes = [f"Intervals are at {confidence}; a verdict compares with the study in the line above, and no more."]
    if any(point.changes for point in found.points):
        notes.append(
            "*: a fact changed, and the difference may be of that fact. `bitbench compare` refuses such a pair."
        )
    if found.other_shape:
        names = listing([plain(name, MAX_NAME) for name in found.other_shape])
        notes.append(f"Left out, as its workload of this name has another shape: {names}.")
    if found.without_result:
        names = listing([plain(name, MAX_NAME) for name in found.without_result])
        notes.append(f"Without a result: {names}.")
    return notes


def history_svg(found: History) -> str:
    """Means with their intervals, evenly spaced, oldest left; a dashed line where a fact changed. Needs a point."""
    scale = scale_for(found.definition, [point.estimate.mean for point in found.points])
    top = max(_high(point.estimate) for point in found.points) / scale.factor * 1.05
    places = _places(len(found.points))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape_xml(plain(found.cell.name))}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 22, f"{plain(found.cell.name, MAX_NAME)}: {found.definition.name} ({scale.unit})", bold=True),
        *_axis(top),
    ]
    line = "L".join(
        f"{x:.1f} {_y(point.estimate.mean / scale.factor, top):.1f}"
        for x, point in zip(places, found.points, strict=True)
    )
    parts.append(f'<path d="M{line}" fill="none" stroke="#1b6ca8" stroke-width="1.5"/>')
    for x, point in zip(places, found.points, strict=True):
        parts += _mark(x, point, scale, top)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _places(count: int) -> list[float]:
    step = (WIDTH - LEFT - RIGHT) / max(count, 1)
    return [LEFT + step * (number + 0.5) for number in range(count)]


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(max(value / top, 0.0), 1.0)


def _high(estimate: Estimate) -> float:
    return estimate.interval.high if estimate.interval else estimate.mean


def _axis(top: float) -> list[str]:
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(top * share, top)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e5e5e5"/>')
        parts.append(_text(LEFT - 8, y + 4, significant(top * share), anchor="end"))
    return parts


def _mark(x: float, point: HistoryPoint, scale: Scale, top: float) -> list[str]:
    y = _y(point.estimate.mean / scale.factor, top)
    parts = []
    if point.changes:
        facts = counted({one.fact.value for one in point.changes})
        parts.append(
            f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#c0392b" stroke-dasharray="4 3">'
            f"<title>{escape_xml(_changes(point))}</title></path>"
        )
        beside, anchor = (x + 4, "start") if x < WIDTH / 2 else (x - 4, "end")
        parts.append(_text(beside, TOP + 10, facts, anchor=anchor, colour="#c0392b"))
    if point.estimate.interval is not None:
        low, high = (_y(end / scale.factor, top) for end in (point.estimate.interval.low, point.estimate.interval.high))
        parts.append(f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="#1b6ca8"/>')
    label = f"{plain(point.folder, MAX_NAME)}: {mean_and_interval(point.estimate, scale)} {scale.unit}"
    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#1b6ca8"><title>{escape_xml(label)}</title></circle>')
    parts.append(_text(x, HEIGHT - BOTTOM + 18, _when(point.started_at)[:10], anchor="middle"))
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False, colour: str = "#222222") -> str:
    weight = ' font-weight="bold" font-size="14"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight} fill="{colour}">{escape_xml(text)}</text>'
