"""A kernel table of somebody else, as it is printed, with what stands out in it."""

from collections.abc import Sequence

from bitbench.features.kernels.words import label_column, shape_columns, time_column
from bitbench.records.published import PublishedKernel, PublishedKernels
from bitbench.reports.document.model import Document, Name, Phrase, Quantity, Section, Unit
from bitbench.reports.document.tables import ColumnOf, number_column, table
from bitbench.reports.document.words import bullets, listing, plural, say
from bitbench.reports.sections.conditions import imported

ROUNDING = 0.02  # of a ratio that is printed with two decimals, from times with four


def published_kernel_document(kernels: PublishedKernels) -> Document:
    """The columns of the original; ratios are computed again from the times."""
    labels = dict.fromkeys(name for row in kernels.rows for name in row.labels)
    names = list(dict.fromkeys(name for row in kernels.rows for name in row.seconds))

    def row_itself(row: PublishedKernel) -> PublishedKernel:
        return row

    def time(name: str) -> ColumnOf[PublishedKernel]:
        return time_column(name, lambda row: row.seconds.get(name))

    rows = table(
        kernels.rows,
        *shape_columns(row_itself),
        *(label_column(name, row_itself) for name in labels),
        *map(time, names),
        number_column("ratio", Unit.RATIO, lambda row: _ratio(row, names)),
    )
    findings = bullets([*_findings(kernels.rows, names), *kernels.source.notes])
    sections = (Section(say("The table"), (rows,)),)
    return Document(say("Kernel timings"), (imported(kernels.source), *findings), sections)


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
