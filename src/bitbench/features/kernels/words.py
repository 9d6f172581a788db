"""The kernel table: the columns that such tables have and those that explain it, of our own records or as somebody
else printed it."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from bitbench.features.kernels.computing import KernelFigures, KernelMachine, KernelSummary, KernelTiming, Median
from bitbench.records.profile import PublishedKernel, PublishedKernels
from bitbench.reports.document.model import Block, Chart, Document, Name, Phrase, Quantity, Section, Table, Unit
from bitbench.reports.document.numbers import median_quantity, number
from bitbench.reports.document.words import (
    ColumnOf,
    Item,
    Words,
    bullets,
    listing,
    number_column,
    paragraph,
    plural,
    ratio_column,
    say,
    small_print,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import grouped
from bitbench.reports.sections.conditions import conditions_source_paragraph
from bitbench.study.hardware import KernelDevice
from bitbench.util.units import UNKNOWN

if TYPE_CHECKING:
    from bitbench.reports.document.model import Figure


TIME_DECIMALS, RATIO_DECIMALS = 4, 2
RANGES_FROM = 110  # characters of a terminal from which the least and the most fit beside a median
_CODEBOOKS = ("main_centroids", "residual_centroids")
_VECTOR = 8  # weights in a vector of the cases that have codebooks
_TORCH_NAMES = {
    "torch-linear": "torch",
    "torch-mv": "torch.mv",
    "torch-linear-f32": "torch float32",
}  # as the columns of such tables are called


def kernel_document(summary: KernelSummary, figures: "Sequence[Figure]" = ()) -> Document:
    """Which kernel is the fastest, its picture, each case in a row; then, folded, every shape and what did not run."""
    timed = [row for row in summary.figures if row.seconds]
    quantized = [row for row in timed if _CODEBOOKS[0] in row.timing.labels]
    others = [row for row in timed if row not in quantized]
    sections = []
    if timed:
        sections.append(Section(say("Results"), tuple(_overview(summary, timed)), in_terminal=True))
    if quantized:
        blocks = (_quantized_table(quantized, summary),)
        sections.append(Section(say("Vector-quantized kernels"), blocks, is_folded=True))
    if others:
        sections.append(Section(say("Other kernels"), (_other_table(others, summary.baselines),), is_folded=True))
    if causes := tuple(bullets(_not_timed(summary.figures))):
        sections.append(Section(say("Not timed"), causes, in_terminal=True, is_folded=True))
    charts = (Chart(figure) for figure in figures)
    answer = (*_fastest(summary, timed), *charts, *_conditions(summary.machine))
    return Document(say("Kernel timings"), answer, tuple(sections))


def kernel_speedup_quantities(summary: KernelSummary) -> dict[tuple[str, int], Quantity]:
    """Of each case at each batch against the first baseline: the middle, least and largest of its shapes."""
    timed = [row for row in summary.figures if row.seconds and summary.baselines[0] in row.speedups]
    groups = grouped(timed, lambda row: (row.timing.case, row.timing.batch))
    found = {
        key: median_quantity([row.speedups[summary.baselines[0]].value for row in rows], Unit.RATIO, RATIO_DECIMALS)
        for key, rows in groups.items()
    }
    return {key: speedup for key, speedup in found.items() if speedup is not None}


def _fastest(summary: KernelSummary, timed: Sequence[KernelFigures]) -> Iterator[Block]:
    """One sentence, a batch at a time."""
    if not timed:
        yield paragraph(strong("No kernel was timed."))
        return
    speedups = kernel_speedup_quantities(summary) if summary.baselines else {}
    others = {key: speedup for key, speedup in speedups.items() if key[0] not in summary.baselines} or speedups
    best: dict[int, tuple[str, Quantity]] = {}
    for (case, batch), speedup in sorted(others.items(), key=lambda item: item[1].value or 0.0):
        best[batch] = case, speedup
    found = [say(Name(case), f" at batch {batch} is ", best_speedup) for batch, (case, best_speedup) in best.items()]
    first, *more = found or [()]
    if first:
        shapes = len({(row.timing.in_features, row.timing.out_features) for row in timed})
        compared = say(" as fast as ", Name(summary.baselines[0]))
        over = f", median (least – most) over {plural(shapes, 'shape')}."
        yield paragraph(strong(first, compared), *(say("; ", each) for each in more), over)


def _conditions(machine: KernelMachine) -> Iterator[Block]:
    cold = f"cold: rotating over more than {machine.cold_bytes // 2**20} MiB of weights"
    state = "warm: one copy of the weights" if machine.warm else cold
    read, compute = roof_quantities(machine)
    yield paragraph(
        *_place(machine), f"; {state}. Roofline, measured here: ", read, " read, ", compute, " in bfloat16."
    )
    yield small_print(
        "Times are medians of interleaved rounds; a speed-up is the median of the rounds' ratios, with its 95 % "
        "interval; above 1 the kernel is faster than the one it is compared with."
    )


def roof_quantities(machine: KernelMachine) -> tuple[Quantity, Quantity]:
    """What memory and arithmetic can do at most."""
    read = Quantity(machine.read_bytes_per_s / 1e9, "GB/s", decimals=1)
    return read, Quantity(machine.flops_per_s / 1e9, "Gflop/s", decimals=0)


def _place(machine: KernelMachine) -> Phrase:
    torch = f"torch {machine.torch}"
    if machine.device is KernelDevice.CUDA:
        cuda = f" for CUDA {machine.cuda}" if machine.cuda else ""
        return say(f"{machine.device_name or UNKNOWN} in a machine with {machine.cpu_model}, {torch}{cuda}")
    native = say(", native kernel on ", Name(machine.isa)) if machine.isa else ()
    return say(f"{machine.cpu_model}, {machine.threads} threads, {torch}", native)


def _quantized_table(rows: Sequence[KernelFigures], summary: KernelSummary) -> Table:
    """The columns that such tables are published with."""
    several_isas = len({row.timing.isa for row in rows}) > 1
    several_bits = len({row.timing.labels["activation_bits"] for row in rows}) > 1
    medians = {_point(row): row.seconds for row in summary.figures}

    def other(name: str) -> Iterator[ColumnOf[KernelFigures]]:
        yield _time_column(_TORCH_NAMES.get(name, name), lambda row: _value(medians.get((name, *_point(row)[1:]))))
        yield _speedup_column("speed-up" if name == summary.baselines[0] else "speed-up to it", name)

    return table(
        sorted(rows, key=_table_order),
        *_shape_columns(_timing),
        *(_label_column(name, _timing) for name in (*_CODEBOOKS, *(["activation_bits"] if several_bits else []))),
        *([words_column("isa", lambda row: Name(row.timing.isa) if row.timing.isa else None)] if several_isas else []),
        _time_column("vptq", lambda row: _value(row.seconds)),
        *(column for name in summary.baselines for column in other(name)),
        *_EXPLAINING,
    )


def _point(row: KernelFigures) -> tuple[str, int, int, int]:
    timing = row.timing
    return timing.case, timing.in_features, timing.out_features, timing.batch


def _other_table(rows: Sequence[KernelFigures], baselines: Sequence[str]) -> Table:
    return table(
        sorted(rows, key=lambda row: (row.timing.case, *_table_order(row))),
        words_column("case", lambda row: Name(row.timing.case)),
        *_shape_columns(_timing),
        _time_column("time", lambda row: _value(row.seconds)),
        *(_speedup_column(say("speed-up to ", Name(name)), name) for name in baselines),
        *_EXPLAINING,
    )


def _table_order(row: KernelFigures) -> tuple[int, ...]:
    timing = row.timing
    return (timing.batch, *timing.labels.values(), timing.out_features, timing.in_features)


def _overview(summary: KernelSummary, timed: Sequence[KernelFigures]) -> Iterator[Block]:
    """Per case the middle, least and largest figures over shapes and batches: what one looks for in a long table."""
    on_gpu = summary.machine.device is KernelDevice.CUDA
    workers = 1 if on_gpu else summary.machine.threads
    text = "Per case: median (least – most) over the shapes"
    if any(_CODEBOOKS[0] in row.timing.labels for row in timed):
        whose = "the whole device" if on_gpu else "one thread"
        text += f"; a vector is 8 weights, which cost one main and one residual lookup, and its time is that of {whose}"
    yield paragraph(f"{text}.")

    def spread(
        title: Words, unit: str, decimals: int, of: Callable[[KernelFigures], float | None]
    ) -> ColumnOf[list[KernelFigures]]:
        def figure(rows: list[KernelFigures]) -> Quantity | None:
            return median_quantity([value for row in rows if (value := of(row))], unit, decimals)

        return number_column(title, unit, figure, intervals_from=RANGES_FROM)

    def speedup(name: str) -> ColumnOf[list[KernelFigures]]:
        title = say("speed-up to ", Name(name))
        return spread(title, Unit.RATIO, RATIO_DECIMALS, lambda row: _value(row.speedups.get(name)))

    yield table(
        grouped(timed, lambda row: row.timing.case).values(),
        words_column("case", lambda rows: Name(rows[0].timing.case)),
        *map(speedup, summary.baselines),
        spread("bandwidth", "GB/s", 1, _gigabytes_per_s),
        spread("of roofline", Unit.SHARE, 0, lambda row: row.roof_share),
        spread("per vector", "ns", 2, lambda row: _vector_ns(row, workers)),
    )


def _vector_ns(row: KernelFigures, workers: int) -> float | None:
    """Time of one worker for one vector of one activation row; None for a case without vectors."""
    timing = row.timing
    if row.seconds is None or _CODEBOOKS[0] not in timing.labels:
        return None
    vectors = timing.batch * timing.in_features * timing.out_features / _VECTOR
    return 1e9 * row.seconds.value * workers / vectors


def _gigabytes_per_s(row: KernelFigures) -> float | None:
    return None if row.bytes_per_s is None else row.bytes_per_s / 1e9


def _not_timed(rows: Sequence[KernelFigures]) -> list[Phrase]:
    causes = dict.fromkeys((row.timing.case, row.timing.cause) for row in rows if row.timing.cause)
    return [say(Name(case), f" was not timed: {cause}.") for case, cause in causes]


def _shape_columns(of: Callable[[Item], KernelTiming | PublishedKernel]) -> Iterator[ColumnOf[Item]]:
    """As such tables print them, and as they are read back: without separators."""
    yield number_column("batch_size", Unit.NONE, lambda row: str(of(row).batch))
    yield number_column("in_features", Unit.NONE, lambda row: str(of(row).in_features))
    yield number_column("out_features", Unit.NONE, lambda row: str(of(row).out_features))


def _label_column(name: str, of: Callable[[Item], KernelTiming | PublishedKernel]) -> ColumnOf[Item]:
    return number_column(name, Unit.NONE, lambda row: str(of(row).labels[name]) if name in of(row).labels else None)


def _time_column(title: str, seconds: Callable[[Item], float | None]) -> ColumnOf[Item]:
    def milliseconds(row: Item) -> float | None:
        time = seconds(row)
        return None if time is None else 1000 * time

    return number_column(title, "ms", milliseconds, decimals=TIME_DECIMALS)


def _timing(row: KernelFigures) -> KernelTiming:
    return row.timing


def _value(found: Median | None) -> float | None:
    return found.value if found else None


def _speedup_column(title: Words, baseline: str) -> ColumnOf[KernelFigures]:
    def speedup(row: KernelFigures) -> Quantity | None:
        if (found := row.speedups.get(baseline)) is None:
            return None
        return Quantity(found.value, Unit.RATIO, found.low, found.high, decimals=RATIO_DECIMALS)

    return ratio_column(title, speedup)


_EXPLAINING: tuple[ColumnOf[KernelFigures], ...] = (
    number_column("traffic", "MB", lambda row: row.timing.size_bytes / 1e6, decimals=2),
    number_column("bandwidth", "GB/s", _gigabytes_per_s, decimals=1),
    number_column("intensity", "flop/byte", lambda row: row.intensity, decimals=2),
    number_column("of roofline", Unit.SHARE, lambda row: row.roof_share, decimals=0),
    number_column("error", Unit.NONE, lambda row: number(row.timing.error, digits=2)),
)


ROUNDING = 0.02  # of a ratio that is printed with two decimals, from times with four


def kernel_document_as_published(kernels: PublishedKernels) -> Document:
    """The columns of the original; ratios are computed again from the times."""
    labels = dict.fromkeys(name for row in kernels.rows for name in row.labels)
    names = list(dict.fromkeys(name for row in kernels.rows for name in row.seconds))

    def row_itself(row: PublishedKernel) -> PublishedKernel:
        return row

    def time(name: str) -> ColumnOf[PublishedKernel]:
        return _time_column(name, lambda row: row.seconds.get(name))

    rows = table(
        kernels.rows,
        *_shape_columns(row_itself),
        *(_label_column(name, row_itself) for name in labels),
        *map(time, names),
        number_column("ratio", Unit.RATIO, lambda row: _ratio(row, names)),
    )
    findings = bullets([*_findings(kernels.rows, names), *kernels.source.notes])
    sections = (Section(say("The table"), (rows,)),)
    return Document(say("Kernel timings"), (conditions_source_paragraph(kernels.source), *findings), sections)


def _ratio(row: PublishedKernel, names: Sequence[str]) -> float | None:
    if len(names) < 2 or names[0] not in row.seconds or names[1] not in row.seconds:
        return row.ratio
    return row.seconds[names[0]] / row.seconds[names[1]]


def _findings(rows: Sequence[PublishedKernel], names: Sequence[str]) -> list[Phrase]:
    ratios = [(ratio, row) for row in rows if (ratio := _ratio(row, names)) is not None]
    if len(names) < 2 or not ratios:
        return []
    slower = sum(ratio > 1 for ratio, _ in ratios)
    values = sorted(ratio for ratio, _ in ratios)
    least, middle, most = (Quantity(values[place], Unit.RATIO) for place in (0, len(values) // 2, -1))
    where = f"{slower} of {plural(len(ratios), 'point')}"
    spread = say(least, ", ", middle, " and ", most, " the other's (least, median, most).")
    found = [say(Name(names[0]), " is slower than ", Name(names[1]), f" at {where}; its time is ", spread)]
    wrong = [row for ratio, row in ratios if row.ratio is not None and abs(ratio / row.ratio - 1) > ROUNDING]
    if wrong:
        shapes = listing([f"{row.in_features} × {row.out_features}" for row in wrong[:3]])
        verb = "does" if len(wrong) == 1 else "do"
        said = f"{plural(len(wrong), 'printed ratio')} {verb} not follow from the times, such as at "
        found.append(say(said, shapes, "."))
    return found
