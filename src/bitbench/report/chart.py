"""What every figure has: a specification without colours, its rows, and names that fit into it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log10

import altair as alt

from bitbench.core.base import Json
from bitbench.core.cell import Contender
from bitbench.core.summary import Estimate, MetricDefinition
from bitbench.report.figures import Scale
from bitbench.report.text import plain

ROWS = "rows"  # the name of a figure's data in its specification
MAX_LABEL = 48
LOG_FROM = 10.0  # largest / smallest value from which an axis is logarithmic
MOST_LABELS = 12  # of marks in one figure; more would cover each other
LABEL_GAP = 0.045  # of an axis: labels that are nearer to each other overlap at 300 pixels

Row = dict[str, str | float | int | bool | None]


@dataclass(frozen=True)
class Figure:
    """A picture and the rows it is drawn from. `narrow` is the form for a phone, where it differs."""

    name: str  # of its file, and its place in a page
    title: str
    caption: str
    spec: dict[str, Json]
    rows: list[Row]
    narrow: dict[str, Json] | None = None


class Labels:
    """Short names for figures: what all contenders share is said once, in `shared`. No two are alike."""

    def __init__(self, contenders: Iterable[Contender]) -> None:
        known = list(dict.fromkeys(contenders))
        names = [one.name for one in known]
        model = _same(one.variant.partition("/")[0] for one in known if "/" in one.variant)
        engine = _same(one.engine for one in known)
        several = len(known) > 1
        prefix = f"{model}/" if several and model and all(name.startswith(f"{model}/") for name in names) else ""
        suffix = f" @ {engine}" if several and engine and all(name.endswith(f" @ {engine}") for name in names) else ""
        self._of: dict[Contender, str] = {}
        for one in known:
            short = plain(one.name.removeprefix(prefix).removesuffix(suffix), MAX_LABEL) or "?"
            taken = set(self._of.values())
            numbered = (f"{short} ({number})" for number in range(2, len(known) + 2))
            self._of[one] = short if short not in taken else next(name for name in numbered if name not in taken)
        parts = [prefix.removesuffix("/"), f"on {engine}" if suffix else ""]
        self.shared = plain(" ".join(part for part in parts if part))

    def __getitem__(self, contender: Contender) -> str:
        return self._of[contender]

    def in_words(self) -> str:
        return f" All are of {self.shared}." if self.shared else ""


def _same(words: Iterable[str]) -> str | None:
    found = set(words)
    return found.pop() if len(found) == 1 else None


def ends(estimate: Estimate, scale: Scale) -> tuple[float | None, float | None]:
    interval = estimate.interval
    return (None, None) if interval is None else (interval.low / scale.factor, interval.high / scale.factor)


def numbers(rows: Iterable[Row], *fields: str) -> list[float]:
    """Every value of these fields that is known."""
    known = (row.get(field) for row in rows for field in fields)
    return [float(value) for value in known if isinstance(value, (int, float))]


def axis_title(definition: MetricDefinition, scale: Scale) -> str:
    """`output throughput (tok/s), more is better`"""
    better = "more" if definition.higher_is_better else "less"
    unit = f" ({scale.unit})" if scale.unit else ""
    return f"{definition.name}{unit}, {better} is better"


def axis_scale(values: Sequence[float], *, zero: bool = False) -> alt.Scale:
    """Logarithmic where the values ask for it; else with room on both sides, so that no mark is cut."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= LOG_FROM:
        return alt.Scale(type="log", domain=[low / 1.15, high * 1.15])
    room = (high - low or abs(high) or 1.0) * 0.06
    return alt.Scale(domain=[0.0 if zero else max(low - room, 0.0), high + room], nice=True)


def apart(values: Sequence[float], axis: Sequence[float]) -> list[float]:
    """Places for labels beside `values`, moved so far along the axis that they do not cover each other."""
    low, high = min(axis), max(axis)
    logarithmic = low > 0 and high / low >= LOG_FROM
    if high == low:
        return list(values)

    def there(value: float) -> float:
        return log10(value / low) / log10(high / low) if logarithmic else (value - low) / (high - low)

    def back(place: float) -> float:
        return float(low * (high / low) ** place) if logarithmic else low + place * (high - low)

    places = sorted(((there(value), number) for number, value in enumerate(values)), reverse=True)
    moved = [0.0] * len(values)
    limit = 1.0
    for place, number in places:
        limit = min(place, limit)
        moved[number] = limit
        limit -= LABEL_GAP
    lowest = min(moved)
    lift = -lowest if lowest < 0 else 0.0
    return [back(place + lift) for place in moved]


@dataclass(frozen=True)
class Axis:
    """One direction of a figure: every layer shares its title and scale."""

    title: str
    scale: alt.Scale
    ticks: Sequence[float] = ()  # those that are labelled; empty: chosen when it is drawn

    def x(self, field: str = "x") -> alt.X:
        if self.ticks:
            return alt.X(
                f"{field}:Q", title=self.title, scale=self.scale, axis=alt.Axis(values=list(self.ticks), format=",d")
            )
        return alt.X(f"{field}:Q", title=self.title, scale=self.scale)

    def y(self, field: str = "y") -> alt.Y:
        return alt.Y(f"{field}:Q", title=self.title, scale=self.scale)


def specification(layers: Sequence[alt.Chart], *, height: int | alt.Step, title: str) -> dict[str, Json]:
    """As wide as what it stands in; its rows are named, not held."""
    made = alt.LayerChart(layer=list(layers), width="container", height=height, description=plain(title))
    spec: dict[str, Json] = made.to_dict()
    spec.pop("config", None)
    spec["data"] = {"name": ROWS}
    return spec
