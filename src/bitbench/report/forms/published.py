"""Kernel tables and operator profiles of others, as they are printed, with what stands out in them."""

import re
from collections.abc import Sequence

from bitbench.core.recorded.published import PublishedKernel, PublishedKernels, PublishedProfile
from bitbench.ground.units import UNKNOWN, show_percent, show_seconds
from bitbench.report.document.text import code, escape, listing, table
from bitbench.report.sections.imported import source
from bitbench.report.sections.profile import GROUP_NAMES

ROUNDING = 0.02  # of a ratio that is printed with two decimals, from times with four


def published_kernel_markdown(kernels: PublishedKernels) -> str:
    """The columns of the original; ratios are computed again from the times."""
    labels = list(dict.fromkeys(name for row in kernels.rows for name in row.labels))
    names = list(dict.fromkeys(name for row in kernels.rows for name in row.seconds))
    header = ["batch_size", "in_features", "out_features", *(_title(name) for name in labels)]
    header += [*(f"{_title(name)} (ms)" for name in names), "ratio"]
    rows = [
        [
            *(str(value) for value in (row.batch, row.in_features, row.out_features)),
            *(str(row.labels.get(name, UNKNOWN)) for name in labels),
            *(f"{1000 * row.seconds[name]:.4f}" if name in row.seconds else UNKNOWN for name in names),
            _shown(_ratio(row, names)),
        ]
        for row in kernels.rows
    ]
    parts = [
        f"**Imported**, not measured by bitbench: {source(kernels.source)}.",
        "\n".join(
            f"- {sentence}" for sentence in [*_findings(kernels.rows, names), *map(escape, kernels.source.notes)]
        ),
        table(header, rows, left=()),
    ]
    return "\n\n".join(parts) + "\n"


def _title(name: str) -> str:
    return name if re.fullmatch(r"[\w.-]+", name) else escape(name)


def _ratio(row: PublishedKernel, names: Sequence[str]) -> float | None:
    if len(names) < 2 or names[0] not in row.seconds or names[1] not in row.seconds:
        return row.ratio
    return row.seconds[names[0]] / row.seconds[names[1]]


def _shown(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio:.2f}"


def _findings(rows: Sequence[PublishedKernel], names: Sequence[str]) -> list[str]:
    ratios = [(ratio, row) for row in rows if (ratio := _ratio(row, names)) is not None]
    if len(names) < 2 or not ratios:
        return []
    slower = sum(ratio > 1 for ratio, _ in ratios)
    values = sorted(ratio for ratio, _ in ratios)
    found = [
        f"{code(names[0])} is slower than {code(names[1])} at {slower} of {len(ratios)} points; its time is "
        f"{values[0]:.2f} – {values[len(values) // 2]:.2f} – {values[-1]:.2f} times the other's (least, median, most).",
    ]
    wrong = [row for ratio, row in ratios if row.ratio is not None and abs(ratio / row.ratio - 1) > ROUNDING]
    if wrong:
        shapes = listing([f"{row.in_features} × {row.out_features}" for row in wrong[:3]])
        found.append(f"{len(wrong)} printed ratios do not follow from their times, such as at {shapes}.")
    return found


def published_profile_markdown(profile: PublishedProfile) -> str:
    header = ["Name", "Group", "Self CPU %", "Self CPU", "CPU total", "Self device", "# of Calls", "CPU per call"]
    rows = [
        [
            code(one.name),
            GROUP_NAMES[one.group],
            show_percent(one.self_cpu_share),
            show_seconds(one.self_cpu_s),
            show_seconds(one.cpu_total_s),
            show_seconds(one.self_device_s),
            f"{one.calls:,}",
            show_seconds(one.cpu_total_s / one.calls if one.calls else None),
        ]
        for one in profile.operators
    ]
    totals = f"Self CPU {show_seconds(profile.self_cpu_s)}, self device {show_seconds(profile.self_device_s)} in all"
    parts = [
        f"**Imported**, not measured by bitbench: {source(profile.source)}.",
        f"{escape(profile.device or UNKNOWN)}. {totals}.",
        "\n".join(f"- {sentence}" for sentence in _doubts(profile)),
        table(header, rows, left=(0, 1)),
    ]
    return "\n\n".join(parts) + "\n"


def _doubts(profile: PublishedProfile) -> list[str]:
    found = [
        "It does not say how many steps it covers, which phase, nor whether the first call was left out: compilation "
        "may be in these figures."
    ]
    whole = profile.self_device_s
    beyond = [one for one in profile.operators if whole and one.self_device_s and one.self_device_s > whole]
    if beyond and whole:
        names = listing([f"{code(one.name)} ({show_seconds(one.self_device_s)})" for one in beyond])
        found.append(f"{names} alone exceeds the printed total of {show_seconds(whole)}: it is counted twice or apart.")
    return found
