"""The kernel table of every processor level, and the published kernel records. See `published_tables`."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from gallery_pages import GALLERY
from published_records import COPIES
from published_studies import MOST_ROWS

from bitbench.features.interop.forms import DECIMALS
from bitbench.features.kernels.bench import RECORDS_FILE
from bitbench.features.kernels.computing import (
    KernelMachine,
    KernelRun,
    KernelTiming,
    Median,
    compute_speedup,
    summarize_kernels,
)
from bitbench.reports.document.markdown import render_markdown_table
from bitbench.reports.document.model import Name, Phrase, Quantity, Unit
from bitbench.reports.document.words import (
    ColumnOf,
    build_table,
    make_number_column,
    make_ratio_column,
    make_words_column,
    say,
)
from bitbench.reports.labels import group_by

SHOWN_SHAPES = (
    (1024, 1024),
    (4096, 4096),
    (4096, 14336),
    (8192, 8192),
    (8192, 28672),
    (16384, 53248),
)
SHOWN_CODEBOOKS = "4096-256"
TORCH = "torch-linear"
ALL_OF_TORCH = {  # what torch offers for the same product, in the words of the page
    TORCH: "`F.linear` in bfloat16",
    "torch-linear-f32": "`F.linear` in float32",
    "torch-mv": "`torch.mv` in bfloat16",
}


@dataclass(frozen=True)
class KernelRow:
    """One of our kernels at one shape on one level of a processor, beside torch's."""

    folder: str
    level: str
    codebooks: str  # `4096-256`
    own: KernelTiming
    machine: KernelMachine
    seconds: Median
    torch_seconds: Median
    speedup: Median
    shares: Mapping[str, Median]  # vptq time / torch time, as the record has it, by torch's kernel

    @property
    def shape(self) -> tuple[int, int]:
        return self.own.in_features, self.own.out_features


KERNEL_CASE = re.compile(r"vptq-(\d+-\d+)(?:-(\w+))?")


@cache
def kernel_rows() -> tuple[KernelRow, ...]:
    """Return all timings of our kernel, in every folder of the gallery that has some."""
    rows: list[KernelRow] = []
    for records in sorted(GALLERY.glob(f"kernels*/{RECORDS_FILE}")):
        rows += sorted(
            rows_of_kernel_run(records), key=lambda row: (row.level, row.codebooks, row.shape)
        )
    return tuple(rows)


def rows_of_kernel_run(records: Path) -> Iterator[KernelRow]:
    """Yield the timings of one folder that have a torch time of the same rounds."""
    run = KernelRun.model_validate_json(records.read_bytes())
    figures = {
        (*timing_shape(row.timing), row.timing.case): row
        for row in summarize_kernels(run, [TORCH]).figures
    }
    for own in run.timings:
        case = KERNEL_CASE.fullmatch(own.case)
        if case is None:
            continue
        of_own, of_torch = (
            figures[*timing_shape(own), own.case],
            figures.get((*timing_shape(own), TORCH)),
        )
        speedup = of_own.speedups.get(TORCH)
        if (
            of_torch is None
            or of_own.seconds is None
            or of_torch.seconds is None
            or speedup is None
        ):
            continue
        baselines = [row.timing for place, row in figures.items() if place[:2] == timing_shape(own)]
        yield KernelRow(
            folder=records.parent.name,
            level=case[2] or run.machine.isa or "unknown",
            codebooks=case[1],
            own=own,
            machine=run.machine,
            seconds=of_own.seconds,
            torch_seconds=of_torch.seconds,
            speedup=speedup,
            shares=shares_of(own, baselines),
        )


def timing_shape(timing: KernelTiming) -> tuple[int, int]:
    """Return inputs and outputs: the records have batch 1 alone."""
    return timing.in_features, timing.out_features


def shares_of(own: KernelTiming, baselines: Iterable[KernelTiming]) -> dict[str, Median]:
    """Return the time of a kernel / the time of each of torch's."""
    shares: dict[str, Median] = {}
    for baseline in baselines:
        share = compute_speedup(baseline, own)  # how many times as fast torch is
        if baseline.case in ALL_OF_TORCH and share is not None:
            shares[baseline.case] = share
    return shares


def write_kernels_table() -> Iterator[str]:
    """Yield one table for all processor levels, in the columns of the record."""
    rows = [
        row
        for row in kernel_rows()
        if row.codebooks == SHOWN_CODEBOOKS and row.shape in SHOWN_SHAPES
    ]
    main, residual = SHOWN_CODEBOOKS.split("-")
    yield f"Every row: batch\\_size 1, main\\_centroids {main}, residual\\_centroids {residual}."
    yield render_markdown_table(
        build_table(
            rows[:MOST_ROWS],
            make_words_column("Level", level_of),
            make_number_column("in_features", Unit.NONE, lambda row: str(row.own.in_features)),
            make_number_column("out_features", Unit.NONE, lambda row: str(row.own.out_features)),
            milliseconds_column("vptq (ms)", lambda row: row.seconds),
            milliseconds_column("torch (ms)", lambda row: row.torch_seconds),
            make_number_column("n", Unit.NONE, lambda row: str(len(row.own.seconds))),
            make_number_column(
                "ratio", Unit.NONE, lambda row: median_quantity(row.shares[TORCH], Unit.NONE)
            ),
            make_ratio_column("speed-up", lambda row: median_quantity(row.speedup, Unit.RATIO)),
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
    return make_number_column(
        title, Unit.NONE, lambda row: Quantity(1000 * seconds(row).value, decimals=4)
    )


def median_quantity(known: Median, unit: Unit) -> Quantity:
    """Return a median with its interval."""
    return Quantity(known.value, unit, known.low, known.high, decimals=DECIMALS)


@dataclass(frozen=True)
class KernelGroup:
    """The ratios of one of our kernels to one of torch's, over all shapes."""

    rows: Sequence[KernelRow]
    torch: str

    @property
    def shares(self) -> list[Median]:
        return [row.shares[self.torch] for row in self.rows]

    @property
    def faster(self) -> int:
        """Where the whole interval is below 1."""
        return sum(share.high is not None and share.high < 1 for share in self.shares)

    @property
    def slower(self) -> int:
        """Where the whole interval is above 1."""
        return sum(share.low is not None and share.low > 1 for share in self.shares)


def kernel_groups() -> list[KernelGroup]:
    """Return a group for each level, size of codebooks and kernel of torch."""
    found: list[KernelGroup] = []
    for rows in group_by(
        kernel_rows(), lambda row: (row.level, row.folder, row.codebooks)
    ).values():
        found += [KernelGroup(rows, torch) for torch in ALL_OF_TORCH if torch in rows[0].shares]
    return found


def write_kernels_beside() -> Iterator[str]:
    """Yield how many ratios are significant, by level, codebooks and kernel of torch."""
    yield "\n".join(significant_ratios(torch) for torch in ALL_OF_TORCH)
    yield render_markdown_table(
        build_table(
            kernel_groups(),
            make_words_column("Level", lambda group: level_of(group.rows[0])),
            make_words_column(
                "Codebooks", lambda group: group.rows[0].codebooks.replace("-", " + ")
            ),
            make_words_column("Compared with", lambda group: Name(group.torch)),
            make_words_column(
                "Faster than torch", lambda group: f"{group.faster} of {len(group.rows)}"
            ),
            make_words_column("Slower", lambda group: str(group.slower)),
            make_words_column(
                "Ratio: least, median, most", lambda group: ratio_range(group.shares)
            ),
            make_words_column("Largest error", lambda group: f"{largest_error(group.rows):.3f}"),
        )
    )


def significant_ratios(torch: str) -> str:
    """Say how many ratios to one of torch's kernels have an interval that excludes 1."""
    groups = [group for group in kernel_groups() if group.torch == torch]
    ratios = sum(len(group.rows) for group in groups)
    faster, slower = sum(group.faster for group in groups), sum(group.slower for group in groups)
    return (
        f"- **{faster} of {ratios} ratios to {ALL_OF_TORCH[torch]} are significantly below 1**, and {slower} "
        "significantly above 1."
    )


def ratio_range(shares: Sequence[Median]) -> str:
    """Return the least, the median and the largest of some ratios."""
    return least_median_most([share.value for share in shares])


def largest_error(rows: Sequence[KernelRow]) -> float:
    """Return the largest relative error against double precision."""
    return max(row.own.error or 0 for row in rows)


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
    cells = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    titles, rows = cells[0], cells[2:]
    known = [dict(zip(titles, row, strict=True)) for row in rows]
    return [
        PublishedKernel(
            (int(row["in_features"]), int(row["out_features"])),
            float(row["torch (ms)"]),
            float(row["ratio"]),
        )
        for row in known
    ]


def write_kernels_record() -> Iterator[str]:
    """Yield what the two records say, and how often one of them timed the same product."""
    first = read_published_kernels("published-kernels.md")
    second = read_published_kernels("published-kernels-codebooks.md")
    by_shape = group_by(second, lambda row: row.shape)
    spreads = [
        max(row.torch for row in rows) / min(row.torch for row in rows)
        for rows in by_shape.values()
    ]
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
