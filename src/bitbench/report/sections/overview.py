"""All workloads at a glance: the rank of every contender, ties as ranges, and its ratio to the baseline."""

from bitbench.core.cell import Contender
from bitbench.core.found.summary import Ranking, RankingEntry, StudySummary
from bitbench.ground.units import UNKNOWN
from bitbench.report.document.text import MAX_NAME, code, table
from bitbench.report.labels import Labels
from bitbench.report.sections.answer import outcomes_of


def overview_section(summary: StudySummary) -> str:
    """Empty where there is nothing to compare: one contender or one workload."""
    contenders = [one.contender for one in summary.contenders]
    if len(contenders) < 2 or len(summary.rankings) < 2:
        return ""
    labels = Labels.of(summary, MAX_NAME)
    rows = [
        [code(labels[one]), *(_cell(summary, ranking, one) for ranking in summary.rankings)]
        for one in sorted(contenders, key=lambda one: _mean_rank(summary, one))
    ]
    headline = summary.definitions[summary.headline].name
    return "\n\n".join(
        [
            "## Ranking at a glance",
            f"Rank by {headline}, and the ratio to the baseline. A range of ranks is a tie: those that share it cannot "
            "be told apart.",
            table(["Contender", *(code(ranking.workload) for ranking in summary.rankings)], rows),
        ]
    )


def _entry(ranking: Ranking, contender: Contender) -> RankingEntry | None:
    return next((entry for entry in ranking.entries if entry.contender == contender), None)


def _mean_rank(summary: StudySummary, contender: Contender) -> float:
    entries = [entry for ranking in summary.rankings if (entry := _entry(ranking, contender)) is not None]
    return sum(entry.rank_low + entry.rank_high for entry in entries) / len(entries) if entries else float("inf")


def _cell(summary: StudySummary, ranking: Ranking, contender: Contender) -> str:
    entry = _entry(ranking, contender)
    if entry is None:
        failed = (one for one in summary.cells_of(ranking.workload) if one.cell.contender == contender)
        return next((outcomes_of(one) for one in failed if one.failures), UNKNOWN)
    rank = f"{entry.rank_low}–{entry.rank_high}"
    if entry.rank_low == entry.rank_high:
        rank = "**1**" if entry.rank_low == 1 else str(entry.rank_low)
    if contender == ranking.baseline:
        return f"{rank} · baseline"
    ratio = entry.ratio_to_baseline
    return rank if ratio is None else f"{rank} · {ratio.value:.2f}×"
