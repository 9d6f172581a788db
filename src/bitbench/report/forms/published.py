"""Kernel tables and operator profiles of others, as they are printed, with what stands out in them."""

from collections.abc import Sequence

from bitbench.core.recorded.imported import ImportSource
from bitbench.core.recorded.published import PublishedKernel, PublishedKernels, PublishedProfile
from bitbench.ground.units import UNKNOWN
from bitbench.report.document.model import Document, Name, Paragraph, Phrase, Quantity, Row, Section, Table, Unit
from bitbench.report.document.words import (
    bullets,
    listing,
    number_column,
    paragraph,
    plural,
    say,
    strong,
    words_column,
)
from bitbench.report.quantities import count, seconds, share
from bitbench.report.sections.imported import source
from bitbench.report.sections.kernels import MILLISECONDS, RATIO_DECIMALS, SHAPE, TIME_DECIMALS, size_text
from bitbench.report.sections.profile import GROUP_NAMES

ROUNDING = 0.02  # of a ratio that is printed with two decimals, from times with four


def published_kernel_document(kernels: PublishedKernels) -> Document:
    """The columns of the original; ratios are computed again from the times."""
    labels = list(dict.fromkeys(name for row in kernels.rows for name in row.labels))
    names = list(dict.fromkeys(name for row in kernels.rows for name in row.seconds))
    columns = [*map(number_column, (*SHAPE, *labels)), *(number_column(name, MILLISECONDS) for name in names)]
    rows = [
        Row(
            (
                *map(size_text, (row.batch, row.in_features, row.out_features)),
                *(size_text(row.labels[name]) if name in row.labels else None for name in labels),
                *(_milliseconds(row.seconds.get(name)) for name in names),
                _times(_ratio(row, names)),
            )
        )
        for row in kernels.rows
    ]
    table = Table((*columns, number_column("ratio", Unit.RATIO)), tuple(rows))
    findings = bullets([*_findings(kernels.rows, names), *map(say, kernels.source.notes)])
    return Document(
        say("Kernel timings"), (_imported(kernels.source), *findings), (Section(say("The table"), (table,)),)
    )


def _imported(origin: ImportSource) -> Paragraph:
    return paragraph(strong("Imported"), ", not measured by bitbench: ", source(origin), ".")


def _milliseconds(time: float | None) -> Quantity | None:
    return None if time is None else Quantity(1000 * time, MILLISECONDS, decimals=TIME_DECIMALS)


def _times(ratio: float | None) -> Quantity | None:
    return None if ratio is None else Quantity(ratio, Unit.RATIO, decimals=RATIO_DECIMALS)


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


def published_profile_document(profile: PublishedProfile) -> Document:
    columns = (
        words_column("Name"),
        words_column("Group"),
        *map(number_column, ("Self CPU %", "Self CPU", "CPU total", "Self device")),
        number_column("# of Calls", Unit.COUNT),
        number_column("CPU per call"),
    )
    rows = [
        Row(
            (
                say(Name(operator.name)),
                say(GROUP_NAMES[operator.group]),
                share(operator.self_cpu_share),
                seconds(operator.self_cpu_s),
                seconds(operator.cpu_total_s),
                seconds(operator.self_device_s),
                count(operator.calls),
                seconds(operator.cpu_total_s / operator.calls if operator.calls else None),
            )
        )
        for operator in profile.operators
    ]
    on_cpu, on_device = (seconds(total) or UNKNOWN for total in (profile.self_cpu_s, profile.self_device_s))
    totals = paragraph(f"{profile.device or UNKNOWN}. Self CPU ", on_cpu, ", self device ", on_device, " in all.")
    return Document(
        say("Operator profile"),
        (_imported(profile.source), totals, *bullets(_doubts(profile))),
        (Section(say("The operators"), (Table(columns, tuple(rows)),)),),
    )


def _doubts(profile: PublishedProfile) -> list[Phrase]:
    found = [
        say(
            "It does not say how many steps it covers, which phase, nor whether the first call was excluded: "
            "compilation may be in these figures."
        )
    ]
    whole = profile.self_device_s
    beyond = [
        say(Name(operator.name), " (", Quantity(operator.self_device_s, Unit.SECONDS, digits=3), ")")
        for operator in profile.operators
        if whole and operator.self_device_s and operator.self_device_s > whole
    ]
    if beyond and whole:
        total = Quantity(whole, Unit.SECONDS, digits=3)
        found.append(
            say(listing(beyond), " alone exceeds the printed total of ", total, ": it is counted twice or apart.")
        )
    return found
