"""A line plot as SVG, without a plotting package: axes, ticks, lines with error bars, labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 44, 56
LOG_FROM = 10.0  # largest / smallest value from which an axis is logarithmic
COLOURS = ("#1b6ca8", "#c0392b", "#2e7d32", "#8e44ad")


@dataclass(frozen=True)
class Mark:
    """A point with its intervals (None: not known) and a label."""

    x: float
    y: float
    x_range: tuple[float, float] | None
    y_range: tuple[float, float] | None
    label: str


@dataclass(frozen=True)
class Series:
    name: str
    marks: Sequence[Mark]


class _Axis:
    """Values to pixels, and the ticks in between."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        self._log = low > 0 and high / low >= LOG_FROM
        self._start, self._end = start, end
        if self._log:
            self._low, self._high = log10(low) - 0.05, log10(high) + 0.05
            self.ticks = _log_ticks(low, high)
        else:
            step = _nice_step(high)
            self._low, self._high = 0.0, step * ceil(high * 1.05 / step)
            self.ticks = [step * i for i in range(int(self._high / step + 1.5))]

    def at(self, value: float) -> float:
        scaled = log10(max(value, 10**self._low)) if self._log else value
        share = min(max((scaled - self._low) / (self._high - self._low), 0.0), 1.0)
        return self._start + share * (self._end - self._start)


def _nice_step(high: float) -> float:
    """1, 2 or 5 times a power of ten, for about five ticks."""
    rough = high / 5 if high > 0 else 1.0
    power = 10.0 ** floor(log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough)


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 3 else (1,)
    found = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in found if low / 1.12 <= tick <= high * 1.12]


def svg(title: str, x_title: str, y_title: str, series: Sequence[Series]) -> str:
    """A whole picture. At least one mark is needed."""
    marks = [mark for one in series for mark in one.marks]
    x_axis = _Axis([mark.x for mark in marks], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([mark.y for mark in marks], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 20, title, size=14, weight="bold"),
        *_frame(x_axis, y_axis, x_title, y_title),
    ]
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        parts += _line(one, x_axis, y_axis, colour, labelled=number == len(series) - 1)
        parts += [
            f'<rect x="{LEFT + 10}" y="{TOP + 6 + 18 * number}" width="10" height="10" fill="{colour}"/>',
            _text(LEFT + 26, TOP + 15 + 18 * number, one.name),
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _frame(x_axis: _Axis, y_axis: _Axis, x_title: str, y_title: str) -> list[str]:
    parts = []
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in x_axis.ticks:
        x = x_axis.at(tick)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#e5e5e5"/>')
        parts.append(_text(x, bottom + 18, f"{tick:,.10g}", anchor="middle"))
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#e5e5e5"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tick:,.10g}", anchor="end"))
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#555555"/>')
    parts.append(_text((LEFT + right) / 2, HEIGHT - 14, x_title, anchor="middle"))
    parts.append(
        f'<g transform="translate(18 {(TOP + bottom) / 2}) rotate(-90)">{_text(0, 0, y_title, anchor="middle")}</g>'
    )
    return parts


def _line(series: Series, x_axis: _Axis, y_axis: _Axis, colour: str, *, labelled: bool) -> list[str]:
    places = [(x_axis.at(mark.x), y_axis.at(mark.y)) for mark in series.marks]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    parts = [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
    for mark, (x, y) in zip(series.marks, places, strict=True):
        if mark.x_range is not None:
            low, high = (x_axis.at(end) for end in mark.x_range)
            parts.append(f'<path d="M{low:.1f} {y:.1f}H{high:.1f}" stroke="{colour}"/>')
        if mark.y_range is not None:
            low, high = (y_axis.at(end) for end in mark.y_range)
            parts.append(f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
        if labelled:
            parts.append(_text(x - 6, y - 8, mark.label, anchor="end"))
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="#222222">{escape(text)}</text>'
    )
