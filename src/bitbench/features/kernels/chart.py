"""The roofline figure: what each kernel reaches, under what this machine can do."""

from collections.abc import Sequence

from bitbench.features.kernels.computing import KernelFigures, KernelMachine, KernelSummary
from bitbench.features.kernels.words import kernel_speedup_quantities, roof_quantities
from bitbench.reports.charts import figure as fig
from bitbench.reports.charts.figure import Layer, figure_channel, figure_constant, legend
from bitbench.reports.charts.rows import ratio_row, ratio_rows
from bitbench.reports.document.model import Figure, Unit
from bitbench.reports.document.numbers import median_quantity, shown
from bitbench.reports.labels import distinct_labels
from bitbench.util.units import UNKNOWN

HEIGHT = 340
WIDTH = 440  # pixels, with its axis hardly more than a phone has: nothing shrinks beyond reading there
MARGIN = 1.4  # a factor beyond the outermost marks, as both axes are logarithmic
# One fewer than there are colours, so that a colour that comes again has another shape.
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right")


def roofline_figure(summary: KernelSummary) -> Figure | None:
    """flop/s over flop/byte, one mark per shape and batch; the line is the roof. None where nothing was timed."""
    timed = [row for row in summary.figures if row.seconds]
    if not timed:
        return None
    cases = list(dict.fromkeys(row.timing.case for row in timed))
    labels = dict(zip(cases, distinct_labels(cases), strict=True))
    series = {case: f"{labels[case]}: {_shares(timed, case)}" for case in cases}
    points = [_point(row, labels[row.timing.case], series[row.timing.case]) for row in timed]
    x, y = _axes(summary.machine, points)
    title = "What each kernel reaches of this machine's roofline"
    caption = "A mark per shape and batch; the line is what the machine can do, measured in the same run."
    layers = _layers(x, y, list(series.values()))
    return fig.layered_figure(
        "roofline", title, [caption], layers, [*points, *_roof(summary.machine, x)], height=HEIGHT
    )


def speedup_figure(summary: KernelSummary) -> Figure | None:
    """Each case against the first baseline, a colour per batch. None where nothing was compared."""
    found = kernel_speedup_quantities(summary) if summary.baselines else {}
    if not found:
        return None
    cases = list(dict.fromkeys(case for case, _ in found))
    labels = dict(zip(cases, distinct_labels(cases), strict=True))
    fastest = sorted(cases, key=lambda case: -max(each.value or 0.0 for (of, _), each in found.items() if of == case))
    rows = [
        ratio_row(labels[case], f"batch {batch}", speedup)
        for case in fastest
        for (of, batch), speedup in found.items()
        if of == case
    ]
    baseline = summary.baselines[0]
    caption = "Dot: median over the shapes; line: the slowest and the fastest of them."
    words = f"times as fast as {baseline}, more is better"
    return ratio_rows("answer-speedups", f"Speed-up over {baseline}", [caption], rows, words)


def _shares(rows: Sequence[KernelFigures], case: str) -> str:
    """`92 (80 – 105) %`: of marks that lie above each other, the reader wants the middle and the ends."""
    shares = [row.roof_share for row in rows if row.timing.case == case and row.roof_share is not None]
    found = median_quantity(shares, Unit.SHARE, 0)
    return shown(found) if found else UNKNOWN


def _point(row: KernelFigures, label: str, series: str) -> fig.Row:
    assert row.seconds is not None
    timing = row.timing
    return {
        "kind": "kernel",
        "series": series,
        "case": label,
        "in_features": timing.in_features,
        "out_features": timing.out_features,
        "batch": timing.batch,
        "x": row.intensity,
        "y": timing.flops / row.seconds.value / 1e9,
        "ms": 1000 * row.seconds.value,
        "roof_share": row.roof_share,
    }


def _axes(machine: KernelMachine, points: Sequence[fig.Row]) -> tuple[fig.ChartAxis, fig.ChartAxis]:
    intensities, speeds = fig.figure_field_values(points, "x"), fig.figure_field_values(points, "y")
    x = fig.ChartAxis(
        "arithmetic intensity (flop per byte)", min(intensities) / MARGIN, max(intensities) * MARGIN, True
    )
    top = max(_roof_at(machine, x.high), *speeds)
    return x, fig.ChartAxis("Gflop/s, more is better", min(speeds) / MARGIN, top * MARGIN, True)


def _roof_at(machine: KernelMachine, intensity: float) -> float:
    return min(machine.flops_per_s, intensity * machine.read_bytes_per_s) / 1e9


def _roof(machine: KernelMachine, x: fig.ChartAxis) -> list[fig.Row]:
    ridge = machine.flops_per_s / machine.read_bytes_per_s
    corners = [x.low, *([ridge] if x.low < ridge < x.high else []), x.high]
    read, compute = roof_quantities(machine)
    said = f"roof: {shown(read)} read, {shown(compute)} bfloat16"
    return [{"kind": "roof", "series": said, "x": value, "y": _roof_at(machine, value)} for value in corners]


def _layers(x: fig.ChartAxis, y: fig.ChartAxis, series: Sequence[str]) -> list[Layer]:
    roof, kernels = fig.figure_layer_where("datum.kind == 'roof'"), fig.figure_layer_where("datum.kind == 'kernel'")
    beside = legend("Share of the roof: median (range)")
    shapes = [SHAPES[place % len(SHAPES)] for place in range(len(series))]
    about = [
        figure_channel("case:N", title="Kernel"),
        figure_channel("in_features:Q", title="Inputs"),
        figure_channel("out_features:Q", title="Outputs"),
        figure_channel("batch:Q", title="Batch"),
        figure_channel("ms:Q", title="Median (ms)", format=",.4~r"),
        figure_channel("roof_share:Q", title="Of the roof", format=".0%"),
    ]
    marks = kernels.mark("point", filled=True, size=34, opacity=0.75).encode(
        x=x.x(),
        y=y.y(),
        color=figure_channel("series:N", legend=beside, scale={"domain": list(series)}),
        shape=figure_channel("series:N", legend=beside, scale={"domain": list(series), "range": shapes}),
        tooltip=about,
    )
    said = roof.first()
    return [
        roof.mark("line", style="roof").encode(x=x.x(), y=y.y()),
        marks,
        *(
            layer.encode(x=figure_constant(6), y=figure_constant(9), text="series:N")
            for layer in fig.halo(said, "dim", align="left")
        ),
    ]
