"""The kernel table: the columns that published tables have, and those that explain it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from bitbench.features.kernels.computing import KernelFigures, KernelMachine, KernelSummary
from bitbench.reports.document.model import (
    Block,
    Document,
    Name,
    Phrase,
    Quantity,
    Section,
    Table,
    Unit,
)
from bitbench.reports.document.numbers import median_quantity, number
from bitbench.reports.document.words import (
    ColumnOf,
    Words,
    bullets,
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
from bitbench.study.hardware import KernelDevice
from bitbench.util.units import UNKNOWN

TIME_DECIMALS, RATIO_DECIMALS = 4, 2
RANGES_FROM = 110  # characters of a terminal from which the least and the most fit beside a median


def kernel_document(summary: KernelSummary) -> Document:
    """Which kernel is the fastest, and each case in a row; then, folded, every shape and what did not run."""
    timed = [row for row in summary.figures if row.seconds]
    sections = []
    if timed:
        sections.append(Section(say("Results"), tuple(_overview(summary, timed)), in_terminal=True))
        sections.append(
            Section(say("Every shape"), (_shape_table(timed, summary.baselines),), is_folded=True)
        )
    if causes := tuple(bullets(_not_timed(summary.figures))):
        sections.append(Section(say("Not timed"), causes, in_terminal=True, is_folded=True))
    answer = (*_fastest(summary, timed), *_conditions(summary.machine))
    return Document(say("Kernel timings"), answer, tuple(sections))


def _speedup_quantities(summary: KernelSummary) -> dict[tuple[str, int], Quantity]:
    """Of each case at each batch against the first baseline: the middle, least and largest of its shapes."""
    timed = [row for row in summary.figures if row.seconds and summary.baselines[0] in row.speedups]
    groups = grouped(timed, lambda row: (row.timing.case, row.timing.batch))
    found = {
        key: median_quantity(
            [row.speedups[summary.baselines[0]].value for row in rows], Unit.RATIO, RATIO_DECIMALS
        )
        for key, rows in groups.items()
    }
    return {key: speedup for key, speedup in found.items() if speedup is not None}


def _fastest(summary: KernelSummary, timed: Sequence[KernelFigures]) -> Iterator[Block]:
    """One sentence, a batch at a time."""
    if not timed:
        yield paragraph(strong("No kernel was timed."))
        return
    speedups = _speedup_quantities(summary) if summary.baselines else {}
    others = {
        key: speedup for key, speedup in speedups.items() if key[0] not in summary.baselines
    } or speedups
    best: dict[int, Phrase] = {}
    for (case, batch), speedup in sorted(others.items(), key=lambda item: item[1].value or 0.0):
        best[batch] = say(Name(case), f" at batch {batch} is ", speedup)
    if best:
        first, *more = best.values()
        shapes = len({(row.timing.in_features, row.timing.out_features) for row in timed})
        compared = say(" as fast as ", Name(summary.baselines[0]))
        over = f", median (least – most) over {plural(shapes, 'shape')}."
        yield paragraph(strong(first, compared), *(say("; ", each) for each in more), over)


def _conditions(machine: KernelMachine) -> Iterator[Block]:
    read = Quantity(machine.read_bytes_per_s / 1e9, "GB/s", decimals=1)
    compute = Quantity(machine.flops_per_s / 1e9, "Gflop/s", decimals=0)
    cold = f"; cold: rotating over more than {machine.cold_bytes // 2**20} MiB of weights. Roofline, measured here: "
    yield paragraph(*_place(machine), cold, read, " read, ", compute, " in bfloat16.")
    yield small_print(
        "Times are medians of interleaved rounds; a speed-up is the median of the rounds' ratios, with its 95 % "
        "interval; above 1 the kernel is faster than the one it is compared with."
    )


def _place(machine: KernelMachine) -> Phrase:
    torch = f"torch {machine.torch}"
    if machine.device is KernelDevice.CUDA:
        cuda = f" for CUDA {machine.cuda}" if machine.cuda else ""
        return say(
            f"{machine.device_name or UNKNOWN} in a machine with {machine.cpu_model}, {torch}{cuda}"
        )
    native = say(", native kernel on ", Name(machine.isa)) if machine.isa else ()
    return say(f"{machine.cpu_model}, {machine.threads} threads, {torch}", native)


def _shape_table(rows: Sequence[KernelFigures], baselines: Sequence[str]) -> Table:
    """Every case at every shape, its time beside those of the baselines, as such tables are published."""
    labels = dict.fromkeys(name for row in rows for name in row.timing.labels)
    seconds = {_place_of(row): row.seconds.value for row in rows if row.seconds}

    def compared(name: str) -> Iterator[ColumnOf[KernelFigures]]:
        yield _time_column(name, lambda row: seconds.get((name, *_place_of(row)[1:])))
        yield _speedup_column(name)

    return table(
        sorted(rows, key=_place_of),
        words_column("case", lambda row: Name(row.timing.case)),
        *_shape_columns(labels),
        _time_column("time", lambda row: seconds.get(_place_of(row))),
        *(column for name in baselines for column in compared(name)),
        number_column("traffic", "MB", lambda row: row.timing.size_bytes / 1e6, decimals=2),
        number_column("bandwidth", "GB/s", _gigabytes_per_s, decimals=1),
        number_column("intensity", "flop/byte", lambda row: row.intensity, decimals=2),
        number_column("of roofline", Unit.SHARE, lambda row: row.roof_share, decimals=0),
        number_column("error", Unit.NONE, lambda row: number(row.timing.error, digits=2)),
    )


def _place_of(row: KernelFigures) -> tuple[str, int, int, int]:
    timing = row.timing
    return timing.case, timing.batch, timing.out_features, timing.in_features


def _overview(summary: KernelSummary, timed: Sequence[KernelFigures]) -> Iterator[Block]:
    """Per case the middle, least and largest figures over shapes and batches: what one looks for in a long table."""
    yield paragraph("Per case: median (least – most) over the shapes.")

    def spread(
        title: Words, unit: str, decimals: int, of: Callable[[KernelFigures], float | None]
    ) -> ColumnOf[list[KernelFigures]]:
        def figure(rows: list[KernelFigures]) -> Quantity | None:
            return median_quantity([value for row in rows if (value := of(row))], unit, decimals)

        return number_column(title, unit, figure, intervals_from=RANGES_FROM)

    def speedup(name: str) -> ColumnOf[list[KernelFigures]]:
        def value(row: KernelFigures) -> float | None:
            return row.speedups[name].value if name in row.speedups else None

        return spread(say("speed-up to ", Name(name)), Unit.RATIO, RATIO_DECIMALS, value)

    yield table(
        grouped(timed, lambda row: row.timing.case).values(),
        words_column("case", lambda rows: Name(rows[0].timing.case)),
        *map(speedup, summary.baselines),
        spread("bandwidth", "GB/s", 1, _gigabytes_per_s),
        spread("of roofline", Unit.SHARE, 0, lambda row: row.roof_share),
    )


def _gigabytes_per_s(row: KernelFigures) -> float | None:
    return None if row.bytes_per_s is None else row.bytes_per_s / 1e9


def _not_timed(rows: Sequence[KernelFigures]) -> list[Phrase]:
    causes = dict.fromkeys((row.timing.case, row.timing.cause) for row in rows if row.timing.cause)
    return [say(Name(case), f" was not timed: {cause}.") for case, cause in causes]


def _shape_columns(labels: Iterable[str]) -> Iterator[ColumnOf[KernelFigures]]:
    """Yield them as published tables print them: without separators."""
    yield number_column("batch_size", Unit.NONE, lambda row: str(row.timing.batch))
    yield number_column("in_features", Unit.NONE, lambda row: str(row.timing.in_features))
    yield number_column("out_features", Unit.NONE, lambda row: str(row.timing.out_features))
    for name in labels:
        yield number_column(name, Unit.NONE, partial(_label, name))


def _label(name: str, row: KernelFigures) -> str | None:
    label = row.timing.labels.get(name)
    return None if label is None else str(label)


def _time_column(
    title: str, seconds: Callable[[KernelFigures], float | None]
) -> ColumnOf[KernelFigures]:
    def milliseconds(row: KernelFigures) -> float | None:
        time = seconds(row)
        return None if time is None else 1000 * time

    return number_column(title, "ms", milliseconds, decimals=TIME_DECIMALS)


def _speedup_column(baseline: str) -> ColumnOf[KernelFigures]:
    def speedup(row: KernelFigures) -> Quantity | None:
        if (known := row.speedups.get(baseline)) is None:
            return None
        return Quantity(known.value, Unit.RATIO, known.low, known.high, decimals=RATIO_DECIMALS)

    return ratio_column(say("speed-up to ", Name(baseline)), speedup)
