"""Which tensors bear compression (kinds × layers, the darker the more divergence a group causes by itself), and what
mixes of types cost in divergence and time."""

from math import sqrt

from bitbench.features.mix.types import GroupChoice, Mixture
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.layer import Layer, channel
from bitbench.reports.document.model import Quantity, Unit
from bitbench.reports.document.numbers import Scale, scale_for, shown

SENSITIVITY, MIXES = "sensitivity", "mixes"
HEIGHT = 300
BESIDE = 9  # pixels between a mark and its name
ROW_HEIGHT = 58
OUTSIDE = "outside"
FAINTEST, DARKEST = 0.05, 0.85  # opacity of no divergence, and of the most
LINE = 9  # pixels between a point's middle and each of its two lines


def sensitivity_figure(found: Mixture) -> fig.Figure:
    most = max(*(choice.options[0].divergence for choice in found.groups), 1e-12)
    rows = [_row(choice, most) for choice in found.groups]
    return fig.drawn(
        SENSITIVITY,
        "Divergence that a group of tensors causes alone in its smallest type, and the type that was chosen for it",
        (
            "Each group was compressed alone in the otherwise unquantized model, on the same text. In each point: the "
            "divergence in nats, and the chosen type.",
        ),
        _layers(found),
        rows,
        height={"step": ROW_HEIGHT},
    )


def _row(choice: GroupChoice, most: float) -> fig.Row:
    smallest = choice.options[0]
    low, high = smallest.interval or (None, None)
    return {
        "kind": choice.group.kind,
        "layers": choice.group.layers or OUTSIDE,
        "heat": sqrt(max(smallest.divergence, 0.0) / most),
        "divergence": f"{smallest.divergence:.2g}",
        "chosen": choice.chosen,
        "smallest": smallest.type,
        "shown": shown(Quantity(smallest.divergence, "nats", low, high)),
        "after": shown(Quantity(choice.choice.divergence, "nats", digits=2)),
        "size": shown(Quantity(choice.choice.size_bytes, Unit.BYTES, digits=3)),
    }


def _layers(found: Mixture) -> list[Layer]:
    bands = sorted(
        {(choice.group.first, choice.group.layers) for choice in found.groups if choice.group.first is not None}
    )
    places = [*dict.fromkeys(layers for _, layers in bands)]
    if any(choice.group.first is None for choice in found.groups):
        places.append(OUTSIDE)
    x = channel("layers:N", sort=places, title="layers", axis={"labelAngle": 0, "orient": "top"})
    y = channel("kind:N", sort=[*dict.fromkeys(choice.group.kind for choice in found.groups)], title=None)
    heat = channel("heat:Q", scale={"domain": [0, 1], "range": [FAINTEST, DARKEST], "clamp": True}, legend=None)
    about = fig.tooltips(
        kind="Tensors",
        layers="Layers",
        smallest="Smallest type",
        shown="Divergence in it",
        chosen="Chosen",
        after="Divergence in that",
        size="Size in that",
    )
    words = [
        text.encode(x=x, y=y, text=f"{field}:N")
        for field, style, dy in (("divergence", "bright", -LINE), ("chosen", "bright", LINE))
        for text in fig.halo(fig.EVERY_ROW, style, align="center", dy=dy)
    ]
    return [fig.EVERY_ROW.mark("rect", style="heat").encode(x=x, y=y, opacity=heat, tooltip=about), *words]


def mixes_figure(found: Mixture) -> fig.Figure:
    """What is predicted for mixes under other limits on speed; the mix and the reference as they were measured."""
    scale = scale_for(Unit.SECONDS, [point.step_s for point in found.front])
    rows = [_point("front", "", point.step_s, point.divergence, scale) for point in found.front]
    rows += [
        _point("type", type, predicted.step_s, predicted.divergence, scale) for type, predicted in found.uniform.items()
    ]
    confirmed = found.confirmed
    for kind, side in (("type", confirmed.reference), ("mix", confirmed.mix)) if confirmed else ():
        if side.step is not None and side.divergence is not None:
            rows.append(_point(kind, side.recipe, side.step.value, side.divergence.value, scale))
    x = fig.axis_for(f"decoding step ({scale.unit}), less is better", fig.numbers(rows, "x"))
    y = fig.axis_for("divergence (nats), less is better", fig.numbers(rows, "y"), zero=True)
    return fig.drawn(
        MIXES,
        "Divergence against time of a decoding step",
        (
            "Line: mixes that diverge least at each speed, and types wherever they fit, both predicted by adding up. "
            f"{found.reference} and the mix that was chosen: as measured in the fresh study.",
        ),
        _mixes_layers(x, y),
        rows,
        height=HEIGHT,
    )


def _point(kind: str, name: str, step_s: float, divergence: float, scale: Scale) -> fig.Row:
    return {
        "kind": kind,
        "name": name,
        "x": step_s / scale.factor,
        "y": divergence,
        "step": shown(Quantity(step_s, Unit.SECONDS, digits=3)),
        "shown": shown(Quantity(divergence, "nats", digits=3)),
    }


def _mixes_layers(x: fig.ChartAxis, y: fig.ChartAxis) -> list[Layer]:
    about = fig.tooltips(name="Type or mix", step="Step", shown="Divergence")
    line, types, best = (fig.where(f"datum.kind == '{kind}'") for kind in ("front", "type", "mix"))
    names = [
        text.encode(x=x.x(), y=y.y(), text="name:N")
        for layer, style in ((types, "dim"), (best, "bright"))
        for text in fig.halo(layer, style, align="left", dx=BESIDE, dy=-BESIDE)
    ]
    return [
        line.mark("line", style="front").encode(x=x.x(), y=y.y()),
        *names,
        types.mark("point", style="beaten", filled=False).encode(x=x.x(), y=y.y(), tooltip=about),
        best.mark("point", style="best", filled=True).encode(x=x.x(), y=y.y(), tooltip=about),
    ]
