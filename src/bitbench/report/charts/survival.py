"""How many greedy texts are still the baseline's after so many tokens, a falling stair per contender."""

import altair as alt

from bitbench.core.found.summary import StudySummary, Survival
from bitbench.report.charts import figure as fig
from bitbench.report.charts.style import MOST_SERIES
from bitbench.report.document.numbers import percent
from bitbench.report.labels import Labels

HEIGHT = 280
NAME = "survival"
TITLE = "still the baseline's, more is better"


def survival_figure(summary: StudySummary, labels: Labels) -> fig.Figure | None:
    curves = summary.behaviour.survival[:MOST_SERIES]
    if not curves:
        return None
    rows = [row for curve in curves for row in _stair(curve, labels[curve.contender])]
    left_out = len(summary.behaviour.survival) - len(curves)
    return fig.drawn(
        NAME,
        "Greedy texts that are still the baseline's",
        (
            "A band is the interval of its curve.",
            f"Without {left_out} further contenders, which are in the table." if left_out else "",
            labels.shared,
        ),
        _layers([labels[curve.contender] for curve in curves], max(fig.numbers(rows, "x"))),
        rows,
        height=HEIGHT,
    )


def _stair(curve: Survival, label: str) -> list[fig.Row]:
    rows: list[fig.Row] = [{"series": label, "x": 0, "y": 1.0, "y_low": 1.0, "y_high": 1.0, "shown": percent(1.0)}]
    rows += [
        {
            "series": label,
            "x": step.tokens,
            "y": step.share,
            "y_low": step.low,
            "y_high": step.high,
            "shown": percent(step.share),
        }
        for step in curve.steps
    ]
    return rows


def _layers(names: list[str], longest: float) -> list[alt.Chart]:
    beside = alt.Legend(title=None, orient="top", direction="vertical", columns=1)
    colour = alt.Color("series:N", sort=names, legend=None if len(names) == 1 else beside)
    x = alt.X("x:Q", title="tokens written", scale=alt.Scale(domain=[0, max(longest, 1.0)], nice=False))
    y = alt.Y(
        "y:Q",
        title=TITLE,
        scale=alt.Scale(domain=[0, 1], nice=False),
        axis=alt.Axis(format="%"),
    )
    base = fig.where("isValid(datum.series)")
    return [
        base.mark_area(interpolate="step-after", opacity=0.12).encode(
            x=x, y=alt.Y("y_low:Q", title=TITLE), y2="y_high:Q", color=colour
        ),
        base.mark_line(interpolate="step-after", strokeWidth=2).encode(
            x=x, y=y, color=colour, tooltip=fig.tooltips(series="Contender", x="Tokens", shown="Still the same")
        ),
    ]
