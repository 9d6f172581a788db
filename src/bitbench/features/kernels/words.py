"""The page of kernel timings. Its table has the columns of published tables, and more."""

import itertools
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
from bitbench.reports.document.numbers import compute_median, make_number
from bitbench.reports.document.words import (
    ColumnOf,
    Words,
    build_table,
    bullets,
    format_count,
    make_number_column,
    make_ratio_column,
    make_words_column,
    paragraph,
    say,
    small_print,
    strong,
)
from bitbench.reports.labels import group_by
from bitbench.study.hardware import KernelDevice
from bitbench.util.units import UNKNOWN

TIME_DECIMALS = 4
RATIO_DECIMALS = 2
RANGES_FROM = 110  # columns of a terminal from which a range fits next to its median


def build_kernel_document(summary: KernelSummary) -> Document:
    """Build the page: the fastest kernel, a row per case, and, folded, all shapes and failures."""
    timed = [row for row in summary.figures if row.seconds]
    sections = []
    if timed:
        sections.append(
            Section(say("Results"), tuple(_iter_overview(summary, timed)), in_terminal=True)
        )
        sections.append(
            Section(
                say("Every shape"), (_build_shape_table(timed, summary.baselines),), is_folded=True
            )
        )
    causes = bullets(_list_failures(summary.figures))
    if causes:
        sections.append(Section(say("Not timed"), causes, in_terminal=True, is_folded=True))
    answer = (*_iter_fastest(summary, timed), *_iter_conditions(summary.machine))
    return Document(say("Kernel timings"), answer, tuple(sections))


def _compute_speedups(summary: KernelSummary) -> dict[tuple[str, int], Quantity]:
    """Return the speed-up over the first baseline by case and batch: median and range of shapes."""
    baseline = summary.baselines[0]
    timed = [row for row in summary.figures if row.seconds and baseline in row.speedups]
    groups = group_by(timed, lambda row: (row.timing.case, row.timing.batch))
    speedups = {}
    for key, rows in groups.items():
        values = [row.speedups[baseline].value for row in rows]
        speedup = compute_median(values, Unit.RATIO, RATIO_DECIMALS)
        if speedup is not None:
            speedups[key] = speedup
    return speedups


def _iter_fastest(summary: KernelSummary, timed: Sequence[KernelFigures]) -> Iterator[Block]:
    """Yield one sentence with the fastest case at each batch, or that no kernel was timed."""
    if not timed:
        yield paragraph(strong("No kernel was timed."))
        return
    speedups = _compute_speedups(summary) if summary.baselines else {}
    others = {key: speedup for key, speedup in speedups.items() if key[0] not in summary.baselines}
    ascending = sorted((others or speedups).items(), key=lambda item: item[1].value or 0.0)
    best: dict[int, Phrase] = {}
    for (case, batch), speedup in ascending:
        best[batch] = say(Name(case), f" at batch {batch} is ", speedup)
    if best:
        first, *more = best.values()
        shapes = {(row.timing.in_features, row.timing.out_features) for row in timed}
        compared = say(" as fast as ", Name(summary.baselines[0]))
        other_batches = [say("; ", phrase) for phrase in more]
        over = f", median (least – most) over {format_count(len(shapes), 'shape')}."
        yield paragraph(strong(first, compared), *other_batches, over)


def _iter_conditions(machine: KernelMachine) -> Iterator[Block]:
    read = Quantity(machine.read_bytes_per_s / 1e9, "GB/s", decimals=1)
    compute = Quantity(machine.flops_per_s / 1e9, "Gflop/s", decimals=0)
    cold = (
        f"; cold: rotating over more than {machine.cold_bytes // 2**20} MiB of weights. Roofline, "
        "measured here: "
    )
    yield paragraph(*_describe_machine(machine), cold, read, " read, ", compute, " in bfloat16.")
    yield small_print(
        "Times are medians of interleaved rounds; a speed-up is the median of the rounds' ratios, "
        "with its 95 % interval; above 1 the kernel is faster than the one it is compared with."
    )


def _describe_machine(machine: KernelMachine) -> Phrase:
    torch = f"torch {machine.torch}"
    if machine.device is KernelDevice.CUDA:
        cuda = f" for CUDA {machine.cuda}" if machine.cuda else ""
        return say(
            f"{machine.device_name or UNKNOWN} in a machine with {machine.cpu_model}, {torch}{cuda}"
        )
    native = say(", native kernel on ", Name(machine.isa)) if machine.isa else ()
    return say(f"{machine.cpu_model}, {machine.threads} threads, {torch}", native)


def _build_shape_table(rows: Sequence[KernelFigures], baselines: Sequence[str]) -> Table:
    """Return a row per case and shape, with the times of the baselines, as in published tables."""
    labels = dict.fromkeys(itertools.chain.from_iterable(row.timing.labels for row in rows))
    seconds = {_get_position(row): row.seconds.value for row in rows if row.seconds}

    def baseline_columns(name: str) -> Iterator[ColumnOf[KernelFigures]]:
        yield _build_time_column(name, lambda row: seconds.get((name, *_get_position(row)[1:])))
        yield _build_speedup_column(name)

    return build_table(
        sorted(rows, key=_get_position),
        make_words_column("case", lambda row: Name(row.timing.case)),
        *_iter_shape_columns(labels),
        _build_time_column("time", lambda row: seconds.get(_get_position(row))),
        *itertools.chain.from_iterable(map(baseline_columns, baselines)),
        make_number_column("traffic", "MB", lambda row: row.timing.size_bytes / 1e6, decimals=2),
        make_number_column("bandwidth", "GB/s", _compute_gigabytes_per_s, decimals=1),
        make_number_column("intensity", "flop/byte", lambda row: row.intensity, decimals=2),
        make_number_column("of roofline", Unit.SHARE, lambda row: row.roof_share, decimals=0),
        make_number_column("error", Unit.NONE, lambda row: make_number(row.timing.error, digits=2)),
    )


def _get_position(row: KernelFigures) -> tuple[str, int, int, int]:
    timing = row.timing
    return timing.case, timing.batch, timing.out_features, timing.in_features


def _iter_overview(summary: KernelSummary, timed: Sequence[KernelFigures]) -> Iterator[Block]:
    """Yield a table with a row per case: medians and ranges over shapes and batches."""
    yield paragraph("Per case: median (least – most) over the shapes.")

    def spread(
        title: Words, unit: str, decimals: int, metric: Callable[[KernelFigures], float | None]
    ) -> ColumnOf[list[KernelFigures]]:
        def median(rows: list[KernelFigures]) -> Quantity | None:
            return compute_median(list(filter(None, map(metric, rows))), unit, decimals)

        return make_number_column(title, unit, median, intervals_from=RANGES_FROM)

    def speedup(name: str) -> ColumnOf[list[KernelFigures]]:
        def value(row: KernelFigures) -> float | None:
            return row.speedups[name].value if name in row.speedups else None

        return spread(say("speed-up to ", Name(name)), Unit.RATIO, RATIO_DECIMALS, value)

    yield build_table(
        group_by(timed, lambda row: row.timing.case).values(),
        make_words_column("case", lambda rows: Name(rows[0].timing.case)),
        *map(speedup, summary.baselines),
        spread("bandwidth", "GB/s", 1, _compute_gigabytes_per_s),
        spread("of roofline", Unit.SHARE, 0, lambda row: row.roof_share),
    )


def _compute_gigabytes_per_s(row: KernelFigures) -> float | None:
    return None if row.bytes_per_s is None else row.bytes_per_s / 1e9


def _list_failures(rows: Sequence[KernelFigures]) -> list[Phrase]:
    causes = dict.fromkeys((row.timing.case, row.timing.cause) for row in rows if row.timing.cause)
    return [say(Name(case), f" was not timed: {cause}.") for case, cause in causes]


def _iter_shape_columns(labels: Iterable[str]) -> Iterator[ColumnOf[KernelFigures]]:
    """Yield the columns of published tables, with numbers without separators."""
    yield make_number_column("batch_size", Unit.NONE, lambda row: str(row.timing.batch))
    yield make_number_column("in_features", Unit.NONE, lambda row: str(row.timing.in_features))
    yield make_number_column("out_features", Unit.NONE, lambda row: str(row.timing.out_features))
    for name in labels:
        yield make_number_column(name, Unit.NONE, partial(_find_label, name))


def _find_label(name: str, row: KernelFigures) -> str | None:
    label = row.timing.labels.get(name)
    return None if label is None else str(label)


def _build_time_column(
    title: str, seconds: Callable[[KernelFigures], float | None]
) -> ColumnOf[KernelFigures]:
    def milliseconds(row: KernelFigures) -> float | None:
        time = seconds(row)
        return None if time is None else 1000 * time

    return make_number_column(title, "ms", milliseconds, decimals=TIME_DECIMALS)


def _build_speedup_column(baseline: str) -> ColumnOf[KernelFigures]:
    def speedup(row: KernelFigures) -> Quantity | None:
        ratio = row.speedups.get(baseline)
        if ratio is None:
            return None
        return Quantity(ratio.value, Unit.RATIO, ratio.low, ratio.high, decimals=RATIO_DECIMALS)

    return make_ratio_column(say("speed-up to ", Name(baseline)), speedup)
