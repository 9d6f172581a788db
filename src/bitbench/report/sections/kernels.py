"""The kernel table: the columns that such tables have, and those that explain it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median as median_of
from typing import TYPE_CHECKING

from bitbench.core.asked.kernel_device import KernelDevice
from bitbench.core.recorded.kernel import KernelFigures, KernelMachine, KernelSummary, Median
from bitbench.ground.units import UNKNOWN
from bitbench.report.document.markdown import FIGURES, markdown
from bitbench.report.document.model import (
    Block,
    Chart,
    Column,
    Document,
    Name,
    Phrase,
    Quantity,
    Range,
    Row,
    Section,
    Table,
    TableCell,
    Unit,
)
from bitbench.report.document.words import bullets, number_column, paragraph, say, small_print, words_column
from bitbench.report.quantities import number, roof_quantities

if TYPE_CHECKING:
    from bitbench.report.charts.figure import Figure

TABLE_FILE = "kernels.md"
MILLISECONDS = "ms"  # in which such tables are published, whatever the size
TIME_DECIMALS, RATIO_DECIMALS = 4, 2
RANGES_FROM = 110  # characters of a terminal from which the least and the most fit beside a median
SHAPE = ("batch_size", "in_features", "out_features")
_CODEBOOKS = ("main_centroids", "residual_centroids")
_VECTOR = 8  # weights in a vector of the cases that have codebooks
_TORCH_NAMES = {"torch-linear": "torch", "torch-mv": "torch.mv"}  # as the columns of such tables are called


def write_kernels(summary: KernelSummary, folder: Path) -> Document:
    """kernels.md in `folder`, and the figure that it shows."""
    from bitbench.report.charts.kernels import WIDTH, roofline_figure  # drawing: a second to import
    from bitbench.report.charts.svg import svg

    figure = roofline_figure(summary)
    document = kernel_document(summary, figure)
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    if figure is not None:
        (folder / FIGURES / f"{figure.name}.svg").write_text(svg(figure, WIDTH), encoding="utf-8")
    (folder / TABLE_FILE).write_text(markdown(document), encoding="utf-8")
    return document


def kernel_document(summary: KernelSummary, figure: "Figure | None" = None) -> Document:
    """What it comes to, the table of vector-quantized kernels, then every other case, then what did not run."""
    timed = [row for row in summary.figures if row.seconds]
    quantized = [row for row in timed if _CODEBOOKS[0] in row.timing.labels]
    others = [row for row in timed if row not in quantized]
    sections = []
    if figure is not None:
        sections.append(Section(say("Under the roofline"), (Chart(figure),)))
    if quantized:
        sections.append(Section(say("Vector-quantized kernels"), (_quantized_table(quantized, summary),)))
    if others:
        sections.append(Section(say("Other kernels"), (_other_table(others, summary.baselines),)))
    if causes := tuple(bullets(_not_timed(summary.figures))):
        sections.append(Section(say("Not timed"), causes, in_terminal=True))
    overview = _overview(summary, timed) if timed else ()
    return Document(say("Kernel timings"), (*_conditions(summary.machine), *overview), tuple(sections))


def _conditions(machine: KernelMachine) -> Iterator[Block]:
    cold = f"cold: rotating over more than {machine.cold_bytes // 2**20} MiB of weights"
    state = "warm: one copy of the weights" if machine.warm else cold
    read, compute = roof_quantities(machine)
    yield paragraph(
        *_place(machine), f"; {state}. Roofline, measured here: ", read, " read, ", compute, " in bfloat16."
    )
    yield small_print(
        "Times are medians of interleaved rounds; a ratio is the median of the rounds' ratios, with its 95 % interval; "
        "below 1 the kernel is faster than the one it is compared with."
    )


def _place(machine: KernelMachine) -> Phrase:
    torch = f"torch {machine.torch}"
    if machine.device is KernelDevice.CUDA:
        cuda = f" for CUDA {machine.cuda}" if machine.cuda else ""
        return say(f"{machine.device_name or UNKNOWN} in a machine with {machine.cpu_model}, {torch}{cuda}")
    native = say(", native kernel on ", Name(machine.isa)) if machine.isa else ()
    return say(f"{machine.cpu_model}, {machine.threads} threads, {torch}", native)


def _quantized_table(rows: Sequence[KernelFigures], summary: KernelSummary) -> Table:
    several_bits = len({row.timing.labels["activation_bits"] for row in rows}) > 1
    labels = [*_CODEBOOKS, *(["activation_bits"] if several_bits else [])]
    medians = {_point(row): row.seconds for row in summary.figures}
    columns = [*map(number_column, (*SHAPE, *labels)), number_column("vptq", MILLISECONDS)]
    for name in summary.baselines:
        title = "ratio" if name == summary.baselines[0] else "ratio to it"
        columns += [number_column(_TORCH_NAMES.get(name, name), MILLISECONDS), _ratio_column(title)]
    lines = []
    for row in sorted(rows, key=_table_order):
        line = [*_shape_cells(row), *(size_text(row.timing.labels[name]) for name in labels), _time(row.seconds)]
        for name in summary.baselines:
            line += [_time(medians.get((name, *_point(row)[1:]))), _ratio(row.ratios.get(name))]
        lines.append(Row((*line, *_explaining_cells(row))))
    return Table((*columns, *_EXPLAINING), tuple(lines))


def _point(row: KernelFigures) -> tuple[str, int, int, int]:
    timing = row.timing
    return timing.case, timing.in_features, timing.out_features, timing.batch


def _other_table(rows: Sequence[KernelFigures], baselines: Sequence[str]) -> Table:
    ratios = [_ratio_column("ratio to ", Name(name)) for name in baselines]
    columns = (words_column("case"), *map(number_column, SHAPE), number_column("time", MILLISECONDS), *ratios)
    lines = [
        Row(
            (
                say(Name(row.timing.case)),
                *_shape_cells(row),
                _time(row.seconds),
                *(_ratio(row.ratios.get(name)) for name in baselines),
                *_explaining_cells(row),
            )
        )
        for row in sorted(rows, key=lambda row: (row.timing.case, *_table_order(row)))
    ]
    return Table((*columns, *_EXPLAINING), tuple(lines))


def _overview(summary: KernelSummary, timed: Sequence[KernelFigures]) -> Iterator[Block]:
    """Per case the middle, least and largest figures over shapes and batches: what one looks for in a long table."""
    on_gpu = summary.machine.device is KernelDevice.CUDA
    workers = 1 if on_gpu else summary.machine.threads
    text = "Median (least – most) over the shapes"
    if any(_CODEBOOKS[0] in row.timing.labels for row in timed):
        whose = "the whole device" if on_gpu else "one thread"
        text += f"; a vector is 8 weights, which cost one main and one residual lookup, and its time is that of {whose}"
    yield paragraph(f"{text}:")
    columns = (
        words_column("case"),
        *(_ratio_column("ratio to ", Name(name), intervals_from=RANGES_FROM) for name in summary.baselines),
        number_column("bandwidth", "GB/s", intervals_from=RANGES_FROM),
        number_column("of roofline", Unit.SHARE, intervals_from=RANGES_FROM),
        number_column("per vector", "ns", intervals_from=RANGES_FROM),
    )
    rows = []
    for case in dict.fromkeys(row.timing.case for row in timed):
        own = [row for row in timed if row.timing.case == case]
        ratios = ([row.ratios[name].value for row in own if name in row.ratios] for name in summary.baselines)
        rows.append(
            Row(
                (
                    say(Name(case)),
                    *(_spread(values, Unit.RATIO, RATIO_DECIMALS) for values in ratios),
                    _spread([row.bytes_per_s / 1e9 for row in own if row.bytes_per_s], "GB/s", 1),
                    _spread([row.roof_share for row in own if row.roof_share], Unit.SHARE, 0),
                    _spread([time for row in own if (time := _vector_ns(row, workers))], "ns", 2),
                )
            )
        )
    yield Table(columns, tuple(rows))


def _spread(values: Sequence[float], unit: str, decimals: int) -> Quantity | None:
    if not values:
        return None
    return Quantity(median_of(values), unit, min(values), max(values), Range.EXTREMES, decimals=decimals)


def _vector_ns(row: KernelFigures, workers: int) -> float | None:
    """Time of one worker for one vector of one activation row; None for a case without vectors."""
    timing = row.timing
    if row.seconds is None or _CODEBOOKS[0] not in timing.labels:
        return None
    vectors = timing.batch * timing.in_features * timing.out_features / _VECTOR
    return 1e9 * row.seconds.value * workers / vectors


def _not_timed(rows: Sequence[KernelFigures]) -> list[Phrase]:
    causes = dict.fromkeys((row.timing.case, row.timing.cause) for row in rows if row.timing.cause)
    return [say(Name(case), f" was not timed: {cause or UNKNOWN}.") for case, cause in causes]


def _table_order(row: KernelFigures) -> tuple[int, ...]:
    timing = row.timing
    return (timing.batch, *timing.labels.values(), timing.out_features, timing.in_features)


def _ratio_column(*title: str | Name, intervals_from: int = 0) -> Column:
    return number_column(say(*title), Unit.RATIO, intervals_from=intervals_from)


_EXPLAINING = (
    number_column("traffic", "MB"),
    number_column("bandwidth", "GB/s"),
    number_column("intensity", "flop/byte"),
    number_column("of roofline", Unit.SHARE),
    number_column("error"),
)


def _shape_cells(row: KernelFigures) -> list[TableCell]:
    return [size_text(value) for value in (row.timing.batch, row.timing.in_features, row.timing.out_features)]


def size_text(value: int) -> Phrase:
    """As such tables print them, and as they are read back: without separators."""
    return say(str(value))


def _explaining_cells(row: KernelFigures) -> list[TableCell]:
    speed = None if row.bytes_per_s is None else Quantity(row.bytes_per_s / 1e9, "GB/s", decimals=1)
    reached = None if row.roof_share is None else Quantity(row.roof_share, Unit.SHARE, decimals=0)
    return [
        Quantity(row.timing.size_bytes / 1e6, "MB", decimals=2),
        speed,
        Quantity(row.intensity, "flop/byte", decimals=2),
        reached,
        number(row.timing.error, digits=2),
    ]


def _time(seconds: Median | None) -> Quantity | None:
    return None if seconds is None else Quantity(1000 * seconds.value, MILLISECONDS, decimals=TIME_DECIMALS)


def _ratio(value: Median | None) -> Quantity | None:
    if value is None:
        return None
    return Quantity(value.value, Unit.RATIO, value.low, value.high, decimals=RATIO_DECIMALS)
