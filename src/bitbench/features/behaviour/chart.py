"""How much is left after so long, a falling stair per config: texts that are still the baseline's, conversations
without a fault."""

from collections.abc import Sequence
from dataclasses import dataclass

from bitbench.features.behaviour.types import Behaviour, Conversations, Survival
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.layer import Layer, channel, legend
from bitbench.reports.charts.style import MOST_SERIES
from bitbench.reports.document.numbers import percent
from bitbench.reports.labels import Labels

HEIGHT = 280


@dataclass(frozen=True)
class _Words:
    name: str
    title: str
    along: str  # the axis of time
    left: str  # what has not ended
    counted: str  # in a tooltip


TEXTS = _Words(
    "survival",
    "Greedy texts that are still the baseline's",
    "tokens written",
    "still the baseline's, more is better",
    "Tokens",
)
CONVERSATIONS = _Words(
    "turns",
    "Conversations without invalid JSON or tool call",
    "turns",
    "still valid, more is better",
    "Turns",
)


def survival_figure(found: Behaviour, labels: Labels) -> fig.Figure | None:
    return _figure(found.survival, labels, TEXTS)


def turns_figure(found: Conversations, labels: Labels) -> fig.Figure | None:
    return _figure([row.survival for row in found.rows], labels, CONVERSATIONS)


def _figure(every: Sequence[Survival], labels: Labels, words: _Words) -> fig.Figure | None:
    curves = every[:MOST_SERIES]
    if not curves:
        return None
    rows = [row for curve in curves for row in _stair(curve, labels[curve.config])]
    left_out = len(every) - len(curves)
    return fig.drawn(
        words.name,
        words.title,
        (
            "A band is the interval of its curve.",
            f"Without {left_out} further configs, which are in the table." if left_out else "",
            labels.shared,
        ),
        _layers([labels[curve.config] for curve in curves], max(fig.numbers(rows, "x")), words),
        rows,
        height=HEIGHT,
    )


def _stair(curve: Survival, label: str) -> list[fig.Row]:
    rows: list[fig.Row] = [{"series": label, "x": 0, "y": 1.0, "y_low": 1.0, "y_high": 1.0, "shown": percent(1.0)}]
    rows += [
        {
            "series": label,
            "x": step.at,
            "y": step.share,
            "y_low": step.low,
            "y_high": step.high,
            "shown": percent(step.share),
        }
        for step in curve.steps
    ]
    return rows


def _layers(names: list[str], longest: float, words: _Words) -> list[Layer]:
    colour = channel("series:N", sort=names, legend=None if len(names) == 1 else legend())
    x = channel("x:Q", title=words.along, scale={"domain": [0, max(longest, 1.0)], "nice": False})
    y = channel(
        "y:Q",
        title=words.left,
        scale={"domain": [0, 1], "nice": False},
        axis={"format": "%"},
    )
    base = fig.where("isValid(datum.series)")
    return [
        base.mark("area", interpolate="step-after", opacity=0.12).encode(
            x=x, y=channel("y_low:Q", title=words.left), y2="y_high", color=colour
        ),
        base.mark("line", interpolate="step-after", strokeWidth=2).encode(
            x=x, y=y, color=colour, tooltip=fig.tooltips(series="Config", x=words.counted, shown="Left")
        ),
    ]
