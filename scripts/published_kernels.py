"""The kernel table of every processor level, and the published kernel records. See `published_tables`."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from bitbench.features.interop.forms import DECIMALS
from bitbench.features.kernels.bench import RECORDS_FILE
from bitbench.features.kernels.computing import (
    KernelMachine,
    KernelRun,
    KernelTiming,
    Median,
    kernel_speedup,
    summarize_kernels,
)
from bitbench.reports.document.markdown import markdown_table
from bitbench.reports.document.model import Name, Phrase, Quantity, Unit
from bitbench.reports.document.words import (
    ColumnOf,
    number_column,
    ratio_column,
    say,
    table,
    words_column,
)
from bitbench.reports.labels import grouped

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "examples" / "gallery"
COPIES = ROOT / "tests" / "unit" / "data" / "imports"

MOST_ROWS = 25
SHOWN_SHAPES = ((1024, 1024), (4096, 4096), (4096, 14336), (8192, 8192), (8192, 28672), (16384, 53248))
SHOWN_CODEBOOKS = "4096-256"
TORCH = "torch-linear"


@dataclass(frozen=True)
class KernelRow:
    """One of our kernels at one shape on one level of a processor, beside torch's."""

    folder: str
    level: str
    codebooks: str  # `4096-256`
    own: KernelTiming
    torch: KernelTiming
    seconds: Median
    torch_seconds: Median
    speedup: Median
    machine: KernelMachine
    share: Median  # vptq time / torch time, as the record has it

    @property
    def shape(self) -> tuple[int, int]:
        return self.own.in_features, self.own.out_features


KERNEL_CASE = re.compile(r"vptq-(\d+-\d+)(?:-(\w+))?")


@cache
def kernel_rows() -> tuple[KernelRow, ...]:
    """Return all timings of our kernel, in every folder of the gallery that has some."""
    rows: list[KernelRow] = []
    for records in sorted(GALLERY.glob(f"kernels*/{RECORDS_FILE}")):
        rows += sorted(rows_of_kernel_run(records), key=lambda row: (row.level, row.codebooks, row.shape))
    return tuple(rows)


def rows_of_kernel_run(records: Path) -> Iterator[KernelRow]:
    """Yield the timings of one folder that have a torch time of the same rounds."""
    run = KernelRun.model_validate_json(records.read_bytes())
    medians = {
        (row.timing.case, row.timing.in_features, row.timing.out_features, row.timing.batch): row
        for row in summarize_kernels(run, [TORCH]).figures
    }
    for own in run.timings:
        case = KERNEL_CASE.fullmatch(own.case)
        torch = medians.get((TORCH, own.in_features, own.out_features, own.batch))
        if case is None or torch is None:
            continue
        figures = medians[own.case, own.in_features, own.out_features, own.batch]
        speedup, share = figures.speedups.get(TORCH), kernel_speedup(torch.timing, own)
        if figures.seconds is None or torch.seconds is None or speedup is None or share is None:
            continue
        yield KernelRow(
            folder=records.parent.name,
            level=case[2] or run.machine.isa or "unknown",
            codebooks=case[1],
            own=own,
            torch=torch.timing,
            seconds=figures.seconds,
            torch_seconds=torch.seconds,
            speedup=speedup,
            machine=run.machine,
            share=share,
        )


def write_kernels_table() -> Iterator[str]:
    """Yield one table for all processor levels, in the columns of the record."""
    rows = [row for row in kernel_rows() if row.codebooks == SHOWN_CODEBOOKS and row.shape in SHOWN_SHAPES]
    main, residual = SHOWN_CODEBOOKS.split("-")
    yield f"Every row: batch\\_size 1, main\\_centroids {main}, residual\\_centroids {residual}."
    yield markdown_table(
        table(
            rows[:MOST_ROWS],
            words_column("Level", level_of),
            number_column("in_features", Unit.NONE, lambda row: str(row.own.in_features)),
            number_column("out_features", Unit.NONE, lambda row: str(row.own.out_features)),
            milliseconds_column("vptq (ms)", lambda row: row.seconds),
            milliseconds_column("torch (ms)", lambda row: row.torch_seconds),
            number_column("n", Unit.NONE, lambda row: str(len(row.own.seconds))),
            number_column("ratio", Unit.NONE, lambda row: median_quantity(row.share, Unit.NONE)),
            ratio_column("speed-up", lambda row: median_quantity(row.speedup, Unit.RATIO)),
        )
    )
    folders = dict.fromkeys(row.folder for row in kernel_rows())
    links = [f"[`{folder}`](../examples/gallery/{folder}/kernels.md)" for folder in folders]
    yield (
        f"{len(rows[:MOST_ROWS])} of {len(kernel_rows())} rows; all are in {', '.join(links)}. Times are medians of n "
        "rounds. A ratio is the median over rounds of vptq time / torch time, with its 95 % interval, as the record "
        "has it: below 1 our kernel is faster. The speed-up is the same turned round: above 1 our kernel is faster. "
        "torch is `F.linear` in bfloat16."
    )
    yield f"*Test machines: {'; '.join(machines_of(kernel_rows()))}.*"


def machines_of(rows: Iterable[KernelRow]) -> list[str]:
    """Return each folder with the machine that its records are from."""
    machines = {row.folder: row.machine for row in rows}
    return [
        f"{folder}: {machine.cpu_model}, {machine.threads} threads, torch {machine.torch}"
        for folder, machine in machines.items()
    ]


def level_of(row: KernelRow) -> Phrase:
    """Return the level of the processor and the folder of its records."""
    return say(Name(row.level), f", {row.folder}")


def milliseconds_column(title: str, seconds: Callable[[KernelRow], Median]) -> ColumnOf[KernelRow]:
    """Return a column of medians with the four decimals of the record."""
    return number_column(title, Unit.NONE, lambda row: Quantity(1000 * seconds(row).value, decimals=4))


def median_quantity(known: Median, unit: Unit) -> Quantity:
    """Return a median with its interval."""
    return Quantity(known.value, unit, known.low, known.high, decimals=DECIMALS)


def write_kernels_beside() -> Iterator[str]:
    """Yield how many ratios are significant, by level and codebook."""
    groups = grouped(kernel_rows(), lambda row: (row.level, row.folder, row.codebooks))
    faster = sum(is_faster(row) for row in kernel_rows())
    slower = sum(is_slower(row) for row in kernel_rows())
    yield (
        f"**Of {len(kernel_rows())} ratios, {faster} are significantly below 1 and {slower} significantly above.** The "
        "interval of such a ratio excludes 1."
    )
    yield markdown_table(
        table(
            groups.values(),
            words_column("Level", lambda rows: level_of(rows[0])),
            words_column("Codebooks", lambda rows: rows[0].codebooks.replace("-", " + ")),
            words_column("Faster than torch", lambda rows: f"{sum(map(is_faster, rows))} of {len(rows)}"),
            words_column("Slower", lambda rows: str(sum(map(is_slower, rows)))),
            words_column(
                "Ratio: least, median, most", lambda rows: least_median_most([row.share.value for row in rows])
            ),
            words_column("Largest error", lambda rows: f"{max(row.own.error or 0 for row in rows):.3f}"),
        )
    )


def is_faster(row: KernelRow) -> bool:
    """Return True if the whole interval of the ratio is below 1."""
    return row.share.high is not None and row.share.high < 1


def is_slower(row: KernelRow) -> bool:
    """Return True if the whole interval of the ratio is above 1."""
    return row.share.low is not None and row.share.low > 1


def least_median_most(values: Sequence[float]) -> str:
    """Return three numbers of a list of ratios."""
    return f"{min(values):.2f}, {median(values):.2f}, {max(values):.2f}"


@dataclass(frozen=True)
class PublishedKernel:
    """A row of a published kernel table."""

    shape: tuple[int, int]
    torch: float  # milliseconds
    ratio: float


def read_published_kernels(name: str) -> list[PublishedKernel]:
    """Return the rows of a copy: columns are found by their titles."""
    lines = (COPIES / name).read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")]
    titles, rows = cells[0], cells[2:]
    known = [dict(zip(titles, row, strict=True)) for row in rows]
    return [
        PublishedKernel(
            (int(row["in_features"]), int(row["out_features"])), float(row["torch (ms)"]), float(row["ratio"])
        )
        for row in known
    ]


def write_kernels_record() -> Iterator[str]:
    """Yield what the two records say, and how often one of them timed the same product."""
    first = read_published_kernels("published-kernels.md")
    second = read_published_kernels("published-kernels-codebooks.md")
    by_shape = grouped(second, lambda row: row.shape)
    spreads = [max(row.torch for row in rows) / min(row.torch for row in rows) for rows in by_shape.values()]
    repeats = listed({len(rows) for rows in by_shape.values()})
    near = sum(1 / max(spreads) < row.ratio < max(spreads) for row in second)
    yield f"**Of {len(first) + len(second)} ratios, 0 have an interval.** Each cell of the records is one number."
    yield "\n".join(
        [
            published_range("The first record", first),
            published_range("The record by codebook", second),
            f"- The second record timed the same torch product {repeats} times at each of {len(by_shape)} shapes. Its "
            f"times differ by a factor of {median(spreads):.2f} (median) to {max(spreads):.2f} (most). {near} of its "
            f"{len(second)} ratios are closer to 1 than that.",
        ]
    )


def published_range(title: str, rows: Sequence[PublishedKernel]) -> str:
    """Say how the ratios of a record are distributed."""
    ratios = [row.ratio for row in rows]
    slower = sum(ratio > 1 for ratio in ratios)
    return (
        f"- {title}: {len(rows)} ratios. Least, median and most are {least_median_most(ratios)}. {slower} are above 1: "
        "there the published kernel is slower than torch."
    )


def listed(numbers: Iterable[int]) -> str:
    """Return `4`, or `3 to 4`."""
    ordered = sorted(numbers)
    return " to ".join(str(number) for number in dict.fromkeys((ordered[0], ordered[-1])))
