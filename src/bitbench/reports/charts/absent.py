"""Which configs a figure does not show, and why: said below it."""

from collections.abc import Collection, Sequence

from bitbench.analysis.results.summary import StudySummary
from bitbench.reports.document.model import plain_text
from bitbench.reports.document.words import listing
from bitbench.reports.grouping import grouped
from bitbench.reports.labels import Labels
from bitbench.reports.sections.ranked import has_result, outcomes_of
from bitbench.study.plan import Config

MOST_NAMED = 6


def absent_from(
    summary: StudySummary, workloads: Collection[str], shown: Collection[Config], labels: Labels, *, lacks: str = ""
) -> str:
    """`Not shown: broken (unsupported).` `lacks`: what those have not that have a result, such as "quality unknown".

    Of what is not supported, engines of which nothing is shown; the others are listed once in the report.
    """
    missing: dict[Config, str] = {}
    for point in summary.points:
        config = point.point.config
        if point.point.workload in workloads and config not in shown:
            missing[config] = lacks if has_result(summary, point) else outcomes_of(point) or "not run"
    engines = {config.engine for config in shown}
    for refusal in summary.refusals:
        config = refusal.point.config
        is_seen = config in shown or (config.engine in engines and not refusal.was_tried)
        if refusal.point.workload in workloads and not is_seen:
            missing.setdefault(config, "not made" if refusal.was_tried else "refused")
    alike = grouped((config for config in missing if missing[config]), missing.__getitem__)
    parts = [f"{_named([labels[config] for config in same])} ({why})" for why, same in alike.items()]
    return f"Not shown: {'; '.join(parts)}." if parts else ""


def _named(names: Sequence[str]) -> str:
    return plain_text(listing(list(names), most=MOST_NAMED))
