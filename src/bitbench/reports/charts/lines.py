"""Lines over an axis, drawn: names beside them, one pair that stands out, guides that say where a limit is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.layer import Layer, Spec, channel, legend, value

HEIGHT = 320
LABEL_ROOM = 170  # pixels at the right, for the names of the lines
FROM_WHICH_TO_HIGHLIGHT = 3  # lines: of two, both are the pair
THICK, THIN, FAINT = 3.0, 1.2, 0.6


@dataclass(frozen=True)
class Guide:
    """A line across the figure, at a place of the y axis (a limit) or of the x axis (an answer with its interval)."""

    label: str
    x: float | None = None
    y: float | None = None
    x_low: float | None = None
    x_high: float | None = None

    @property
    def row(self) -> fig.Row:
        ends: fig.Row = {"guide_low": self.x_low, "guide_high": self.x_high}
        return {"guide": self.label, "guide_x": self.x, "guide_y": self.y, **ends}


def lines_figure(
    name: str,
    title: str,
    caption: Sequence[str],
    rows: Sequence[fig.Row],
    *,
    x: fig.ChartAxis,
    y: fig.ChartAxis,
    at: str,
    marked: bool,
    pair: Sequence[str] = (),
    guides: Sequence[Guide] = (),
) -> fig.Figure:
    """A line per series, with error bars. `marked`: the points of the first say their load. `pair`: the series that
    stand out where there are many."""
    series = list(dict.fromkeys(str(row["series"]) for row in rows))
    is_single = len(series) == 1
    shown = pair if len(series) >= FROM_WHICH_TO_HIGHLIGHT else series
    drawn_rows = [{**row, "stands_out": row["series"] in shown} for row in _with_ends(rows, y)]

    def figure(*, direct: bool) -> fig.Figure:
        layers = [*_guides(x, y, guides), *_layers(x, y, at, series, direct=direct, marked=marked)]
        return fig.drawn(name, title, caption, layers, [*drawn_rows, *(guide.row for guide in guides)], height=HEIGHT)

    return replace(figure(direct=not is_single), narrow=None if is_single else figure(direct=False).spec)


def _layers(
    x: fig.ChartAxis, y: fig.ChartAxis, at: str, names: Sequence[str], *, direct: bool, marked: bool
) -> list[Layer]:
    base = fig.where("isValid(datum.series)")
    colour = channel("series:N", sort=list(names), legend=None if direct or len(names) == 1 else legend())
    shape = channel("series:N", sort=list(names), legend=None)
    width, opacity = (
        {"condition": {"test": "datum.stands_out", "value": much}, "value": little}
        for much, little in ((THICK, THIN), (1.0, FAINT))
    )
    about = fig.tooltips(
        series="Config",
        workload="Workload",
        at=at.capitalize(),
        shown="Mean [interval]",
        counts="Starts / trials",
    )
    return [
        base.mark("line").encode(x=x.x(), y=y.y(), color=colour, order="order:Q", strokeWidth=width, opacity=opacity),
        *fig.error_bars(x, y, colour=colour, opacity=0.45),
        base.mark("point", filled=True, size=60).encode(
            x=x.x(), y=y.y(), color=colour, shape=shape, tooltip=about, opacity=opacity
        ),
        *(_loads(base, x, y, names[0]) if marked else []),
        *(_names(x, y, colour) if direct else []),
    ]


def _loads(base: Layer, x: fig.ChartAxis, y: fig.ChartAxis, series: str) -> list[Layer]:
    first = base.where({"field": "series", "equal": series})
    return [text.encode(x=x.x(), y=y.y(), text="at:N") for text in fig.halo(first, "dim", align="center", dy=-12)]


def _names(x: fig.ChartAxis, y: fig.ChartAxis, colour: Spec) -> list[Layer]:
    """Right of the figure, with a thin line to where their own line ends."""
    leader = fig.where("datum.is_end").mark("rule", style="leader")
    named = [leader.encode(x=x.x(), x2=value("width"), y=y.y(), y2="label_y", color=colour)]
    for condition, style in (("datum.stands_out", "pair-name"), ("!datum.stands_out", "line-name")):
        name = fig.where(f"datum.is_end && {condition}").mark("text", style=style, dx=6, limit=LABEL_ROOM)
        named.append(name.encode(x=value("width"), y=y.y("label_y"), text="series:N", color=colour))
    return named


def _guides(x: fig.ChartAxis, y: fig.ChartAxis, guides: Sequence[Guide]) -> list[Layer]:
    """Behind the lines. A label stands where its guide meets the edge."""
    layers: list[Layer] = []
    if any(guide.x_low is not None for guide in guides):
        band = fig.where("isValid(datum.guide_low)").mark("rect", style="answer")
        layers.append(band.encode(x=x.x("guide_low"), x2="guide_high"))
    if any(guide.x is not None for guide in guides):
        upright = fig.where("isValid(datum.guide_x)")
        layers.append(upright.mark("rule", style="baseline").encode(x=x.x("guide_x")))
        texts = fig.halo(upright, "dim", align="right", dx=-6, dy=10)
        layers += [text.encode(x=x.x("guide_x"), y=value(0), text="guide:N") for text in texts]
    if any(guide.y is not None for guide in guides):
        lying = fig.where("isValid(datum.guide_y)")
        layers.append(lying.mark("rule", style="limit").encode(y=y.y("guide_y")))
        texts = fig.halo(lying, "change", align="left", dx=4, dy=-8)
        layers += [text.encode(x=value(0), y=y.y("guide_y"), text="guide:N") for text in texts]
    return layers


def _with_ends(rows: Sequence[fig.Row], axis: fig.ChartAxis) -> list[fig.Row]:
    """The last point of each line carries its name, as high as it lies and where no other name is."""
    places = {row["series"]: number for number, row in enumerate(rows)}.values()
    of_row = dict(zip(places, axis.apart(fig.numbers((rows[place] for place in places), "y")), strict=True))
    return [{**row, "is_end": number in of_row, "label_y": of_row.get(number)} for number, row in enumerate(rows)]
