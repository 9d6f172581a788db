"""The kernel table: the columns that such tables have, and those that explain it."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median as median_of

from bitbench.core.asked.kernel_device import KernelDevice
from bitbench.core.recorded.kernel import KernelFigures, KernelMachine, KernelSummary, Median
from bitbench.ground.units import UNKNOWN
from bitbench.report.document.text import code, escape, table

FIGURE_FILE = "roofline.svg"
_SHAPE = ("batch_size", "in_features", "out_features")
_CODEBOOKS = ("main_centroids", "residual_centroids")
_VECTOR = 8  # weights in a vector of the cases that have codebooks
_TORCH_NAMES = {"torch-linear": "torch", "torch-mv": "torch.mv"}  # as the columns of such tables are called


def write_kernels(summary: KernelSummary, folder: Path) -> str:
    """kernels.md and the figure that it shows; the text is returned."""
    from bitbench.report.charts.kernels import WIDTH, roofline_figure  # drawing: a second to import
    from bitbench.report.charts.svg import svg

    folder.mkdir(parents=True, exist_ok=True)
    figure = roofline_figure(summary)
    if figure is not None:
        (folder / FIGURE_FILE).write_text(svg(figure, WIDTH), encoding="utf-8")
    text = kernel_markdown(summary, with_figure=figure is not None)
    (folder / "kernels.md").write_text(text, encoding="utf-8")
    return text


def kernel_markdown(summary: KernelSummary, *, with_figure: bool = False) -> str:
    """What it comes to, the table of vector-quantized kernels, then every other case, then what did not run."""
    timed = [row for row in summary.figures if row.seconds]
    quantized = [row for row in timed if _CODEBOOKS[0] in row.timing.labels]
    parts = [_conditions(summary.machine)]
    if with_figure:
        parts.append(f"![What each kernel reaches of this machine's roofline]({FIGURE_FILE})")
    if timed:
        parts.append(kernel_overview(summary))
    if quantized:
        parts.append(_quantized_table(quantized, summary))
    if others := [row for row in timed if row not in quantized]:
        parts.append(_other_table(others, summary.baselines))
    if causes := _not_timed(summary.figures):
        parts.append(causes)
    return "\n\n".join(parts) + "\n"


def _conditions(machine: KernelMachine) -> str:
    cold = f"cold: rotating over more than {machine.cold_bytes // 2**20} MiB of weights"
    state = "warm: one copy of the weights" if machine.warm else cold
    return (
        f"{_place(machine)}; {state}. Roofline, measured here: {machine.read_bytes_per_s / 1e9:.1f} GB/s read, "
        f"{machine.flops_per_s / 1e9:,.0f} Gflop/s bfloat16. Times are medians of interleaved rounds; a ratio is the "
        "median of the rounds' ratios, with its 95 % interval; below 1 the kernel is faster than the one compared with."
    )


def _place(machine: KernelMachine) -> str:
    torch = f"torch {escape(machine.torch)}"
    if machine.device is KernelDevice.CUDA:
        cuda = f" for CUDA {escape(machine.cuda)}" if machine.cuda else ""
        return f"{escape(machine.device_name or UNKNOWN)} in a machine with {escape(machine.cpu_model)}, {torch}{cuda}"
    native = f", native kernel on {code(machine.isa)}" if machine.isa else ""
    return f"{escape(machine.cpu_model)}, {machine.threads} threads, {torch}{native}"


def _quantized_table(rows: Sequence[KernelFigures], summary: KernelSummary) -> str:
    bits = sorted({row.timing.labels["activation_bits"] for row in rows})
    medians = {
        (row.timing.case, row.timing.in_features, row.timing.out_features, row.timing.batch): row.seconds
        for row in summary.figures
    }
    header = [*_SHAPE, *_CODEBOOKS, *(["activation_bits"] if len(bits) > 1 else []), "vptq (ms)"]
    for name in summary.baselines:
        header += [f"{_TORCH_NAMES.get(name, name)} (ms)", "ratio" if name == summary.baselines[0] else "ratio to it"]
    header += ["MB", "GB/s", "flop/byte", "of roofline", "error"]
    lines = []
    for row in sorted(rows, key=_table_order):
        timing = row.timing
        line = [*_shape_cells(row), *(str(timing.labels[name]) for name in _CODEBOOKS)]
        line += [str(timing.labels["activation_bits"])] if len(bits) > 1 else []
        line.append(_milliseconds(row.seconds))
        for name in summary.baselines:
            baseline = medians.get((name, timing.in_features, timing.out_features, timing.batch))
            line += [_milliseconds(baseline), _ratio(row.ratios.get(name))]
        lines.append(line + _explaining_cells(row))
    return table(header, lines, left=())


def _other_table(rows: Sequence[KernelFigures], baselines: Sequence[str]) -> str:
    header = ["case", *_SHAPE, "ms", *(f"ratio to {code(name)}" for name in baselines)]
    header += ["MB", "GB/s", "flop/byte", "of roofline", "error"]
    lines = [
        [
            code(row.timing.case),
            *_shape_cells(row),
            _milliseconds(row.seconds),
            *(_ratio(row.ratios.get(name)) for name in baselines),
            *_explaining_cells(row),
        ]
        for row in sorted(rows, key=lambda row: (row.timing.case, *_table_order(row)))
    ]
    return table(header, lines)


def kernel_overview(summary: KernelSummary) -> str:
    """Per case the least, middle and largest figures over shapes and batches: what one looks for in a long table."""
    timed = [row for row in summary.figures if row.seconds]
    on_gpu = summary.machine.device is KernelDevice.CUDA
    workers = 1 if on_gpu else summary.machine.threads
    header = ["case", *(f"ratio to {code(name)}" for name in summary.baselines), "GB/s", "of roofline", "ns per vector"]
    lines = []
    for case in dict.fromkeys(row.timing.case for row in timed):
        rows = [row for row in timed if row.timing.case == case]
        cells = [code(case)]
        cells += [_spread([row.ratios[name].value for row in rows if name in row.ratios]) for name in summary.baselines]
        cells.append(_spread([row.bytes_per_s / 1e9 for row in rows if row.bytes_per_s], digits=1))
        cells.append(_spread([100 * row.roof_share for row in rows if row.roof_share], digits=0))
        cells.append(_spread([time for row in rows if (time := _vector_ns(row, workers))]))
        lines.append(cells)
    text = "Least – median – most over the shapes; of roofline in %"
    if any(_CODEBOOKS[0] in row.timing.labels for row in timed):
        whose = "the whole device" if on_gpu else "one thread"
        text += f"; a vector is 8 weights, which cost one main and one residual lookup, and its time is that of {whose}"
    return f"{text}:\n\n{table(header, lines)}"


def _spread(values: Sequence[float], digits: int = 2) -> str:
    if not values:
        return UNKNOWN
    ordered = sorted(values)
    picked: Sequence[float] = (ordered[0], median_of(ordered), ordered[-1]) if len(ordered) > 1 else ordered
    return " – ".join(f"{value:.{digits}f}" for value in picked)


def _vector_ns(row: KernelFigures, workers: int) -> float | None:
    """Time of one worker for one vector of one activation row; None for a case without vectors."""
    timing = row.timing
    if row.seconds is None or _CODEBOOKS[0] not in timing.labels:
        return None
    vectors = timing.batch * timing.in_features * timing.out_features / _VECTOR
    return 1e9 * row.seconds.value * workers / vectors


def _not_timed(rows: Sequence[KernelFigures]) -> str:
    causes = dict.fromkeys((row.timing.case, row.timing.cause) for row in rows if row.timing.cause)
    return "\n".join(f"- {code(case)} was not timed: {escape(cause or UNKNOWN)}." for case, cause in causes)


def _table_order(row: KernelFigures) -> tuple[int, ...]:
    timing = row.timing
    return (timing.batch, *timing.labels.values(), timing.out_features, timing.in_features)


def _shape_cells(row: KernelFigures) -> list[str]:
    return [str(row.timing.batch), str(row.timing.in_features), str(row.timing.out_features)]


def _explaining_cells(row: KernelFigures) -> list[str]:
    error = UNKNOWN if row.timing.error is None else f"{row.timing.error:.1e}"
    speed = UNKNOWN if row.bytes_per_s is None else f"{row.bytes_per_s / 1e9:.1f}"
    share = UNKNOWN if row.roof_share is None else f"{row.roof_share:.0%}".replace("%", " %")
    return [f"{row.timing.size_bytes / 1e6:.2f}", speed, f"{row.intensity:.2f}", share, error]


def _milliseconds(seconds: Median | None) -> str:
    return UNKNOWN if seconds is None else f"{1000 * seconds.value:.4f}"


def _ratio(value: Median | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value.value:.2f}" if value.low is None else f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"
