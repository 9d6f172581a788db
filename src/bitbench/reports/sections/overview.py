"""All workloads at a glance: the rank of every config, ties as ranges, and its ratio to the baseline."""

from bitbench.analysis.results.summary import Ranking, StudySummary
from bitbench.reports.document.model import Name, Quantity, Section, Unit
from bitbench.reports.document.tables import ColumnOf, table, words_column
from bitbench.reports.document.text import MAX_NAME
from bitbench.reports.document.words import Words, paragraph, say, strong
from bitbench.reports.labels import Labels
from bitbench.reports.sections.ranked import SINGLE, entry_of, outcomes_of, places, titled
from bitbench.study.plan import Config


def overview_section(summary: StudySummary) -> Section | None:
    """None where there is nothing to compare: one config or one workload."""
    configs = [config.config for config in summary.configs]
    if len(configs) < 2 or len(summary.rankings) < 2:
        return None
    labels = Labels.of(summary, MAX_NAME)
    ranks = table(
        sorted(configs, key=lambda one: _mean_rank(summary, one)),
        words_column("Config", lambda one: Name(labels[one])),
        *(_column(summary, ranking) for ranking in summary.rankings),
    )
    primary_metric = summary.definitions[summary.primary_metric].name
    said = f"Rank by {primary_metric}, and the ratio to the baseline. A range of ranks is a tie."
    if any(entry.rank_low is None for ranking in summary.rankings for entry in ranking.entries):
        said = f"{said} {SINGLE}: a single trial has no rank."
    return Section(titled("Ranking at a glance", summary), (paragraph(said), ranks))


def _mean_rank(summary: StudySummary, config: Config) -> float:
    entries = [entry for ranking in summary.rankings if (entry := entry_of(ranking, config)) is not None]
    ranks = [
        (entry.rank_low + entry.rank_high) / 2
        for entry in entries
        if entry.rank_low is not None and entry.rank_high is not None
    ]
    return sum(ranks) / len(ranks) if ranks else float("inf")


def _column(summary: StudySummary, ranking: Ranking) -> ColumnOf[Config]:
    return words_column(Name(ranking.workload), lambda config: _point(summary, ranking, config))


def _point(summary: StudySummary, ranking: Ranking, config: Config) -> Words:
    entry = entry_of(ranking, config)
    if entry is None:
        failed = (one for one in summary.points_of(ranking.workload) if one.point.config == config)
        return next((outcomes_of(one) for one in failed if one.failures), None)
    rank = strong("1") if entry.rank_high == 1 else say(places(entry))
    if config == ranking.baseline:
        return say(rank, " · baseline")
    ratio = entry.ratio_to_baseline
    return rank if ratio is None else say(rank, " · ", Quantity(ratio.value, Unit.RATIO))
