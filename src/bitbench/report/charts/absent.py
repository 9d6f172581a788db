"""Which contenders a figure does not show, and why: said below it."""

from collections.abc import Collection, Sequence

from bitbench.core.cell import Contender
from bitbench.core.found.summary import StudySummary
from bitbench.report.document.model import plain_text
from bitbench.report.document.words import listing
from bitbench.report.grouping import grouped
from bitbench.report.labels import Labels
from bitbench.report.sections.ranked import has_result, outcomes_of

MOST_NAMED = 6


def absent_from(
    summary: StudySummary, workloads: Collection[str], shown: Collection[Contender], labels: Labels, *, lacks: str = ""
) -> str:
    """`Not shown: broken (unsupported).` `lacks`: what those have not that have a result, such as "no quality"."""
    missing: dict[Contender, str] = {}
    for cell in summary.cells:
        contender = cell.cell.contender
        if cell.cell.workload in workloads and contender not in shown:
            missing[contender] = lacks if has_result(summary, cell) else outcomes_of(cell) or "not run"
    for refusal in summary.refusals:
        if refusal.cell.workload in workloads and refusal.cell.contender not in shown:
            missing.setdefault(refusal.cell.contender, "not made" if refusal.was_tried else "refused")
    alike = grouped((one for one in missing if missing[one]), missing.__getitem__)
    parts = [f"{_named([labels[one] for one in same])} ({why})" for why, same in alike.items()]
    return f"Not shown: {'; '.join(parts)}." if parts else ""


def _named(names: Sequence[str]) -> str:
    return plain_text(listing(list(names), most=MOST_NAMED))
