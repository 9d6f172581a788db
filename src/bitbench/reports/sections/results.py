"""The one table of a study: a row per config with its ratio on each workload, its memory and its quality."""

from bitbench.analysis.results.summary import ConfigQuality, PointSummary, Ranking, StudySummary
from bitbench.records.trial import Outcome
from bitbench.reports.document.model import Link, Mark, Name, Quantity, Section, Table, Unit
from bitbench.reports.document.numbers import percent
from bitbench.reports.document.tables import ColumnOf, Shown, number_column, ratio_column, table, words_column
from bitbench.reports.document.words import Words, say, small_print
from bitbench.reports.labels import CHOSEN, Labels
from bitbench.reports.quantities import estimated, over_instances, unit_of
from bitbench.reports.sections.ranked import SINGLE, by_speed, entry_of, outcomes_of, titled, versus_baseline
from bitbench.study.plan import Config

FEW_WORKLOADS = 2  # with room for the figure itself beside its ratio


def results_section(summary: StudySummary, labels: Labels) -> Section | None:
    """None where nothing was measured. `labels`: marked with what the answer says of each."""
    if not any(ranking.entries for ranking in summary.rankings):
        return None
    return Section(titled("Results", summary), (_table(summary, labels), small_print(*_how_to_read(summary))))


def _table(summary: StudySummary, labels: Labels) -> Table:
    qualities = {row.config: row for row in summary.quality}
    memory = {config.config: config.memory for config in summary.configs}

    def peak(config: Config) -> Quantity | None:
        known = memory[config].device_peak_bytes or memory[config].peak_bytes
        return over_instances(known, Unit.BYTES)

    return table(
        by_speed(summary),
        words_column(
            "Config",
            lambda config: say(f"{labels.mark(config)} " if labels.mark(config) else "", Name(labels.name(config))),
        ),
        *(column for ranking in summary.rankings for column in _of_workload(summary, ranking)),
        number_column("Peak memory", Unit.BYTES, peak),
        *([_quality_column(summary, qualities)] if summary.quality else []),
        mark=lambda config: Mark.BEST if labels.mark(config) == CHOSEN else None,
        drop_empty=True,
    )


def _of_workload(summary: StudySummary, ranking: Ranking) -> list[ColumnOf[Config]]:
    """The figure where there is room for it or nothing to compare with, and the ratio."""
    definition, points = summary.definitions[ranking.metric], summary.points_of(ranking.workload)
    of: dict[Config, PointSummary] = {point.point.config: point for point in points}

    def figure(config: Config) -> Shown:
        point = of.get(config)
        if point is None:
            return None
        return estimated(point.metrics.get(ranking.metric), definition) or outcomes_of(point) or None

    def ratio(config: Config) -> Words:
        return versus_baseline(ranking, entry_of(ranking, config))

    title = say(Name(ranking.workload), f" {definition.label}")
    has_ratio = any(entry.ratio_to_baseline for entry in ranking.entries)
    figures = [number_column(title, unit_of(definition), figure)]
    if not has_ratio:
        return figures
    compared = ratio_column(say(Name(ranking.workload), " vs. baseline"), ratio)
    return [*(figures if len(summary.rankings) <= FEW_WORKLOADS else []), compared]


def _quality_column(summary: StudySummary, rows: dict[Config, ConfigQuality]) -> ColumnOf[Config]:
    """How far its outputs are from the baseline's; perplexity where that is unknown."""
    key = "kl_mean" if any("kl_mean" in row.estimates for row in rows.values()) else "perplexity"
    definition = summary.quality_definitions[key]

    def quality(config: Config) -> Shown:
        row = rows.get(config)
        if row is None:
            return None
        if row.outcome is not Outcome.OK:
            return row.outcome.value
        return estimated(row.estimates.get(key), definition) or ("baseline" if row.baseline == config else None)

    return number_column(definition.label, unit_of(definition), quality)


def _how_to_read(summary: StudySummary) -> list[Words]:
    confidence = percent(summary.study.measure.confidence)
    singles = any(entry.rank_low is None for ranking in summary.rankings for entry in ranking.entries)
    return [
        f"Mean [low, high] with a {confidence} confidence interval; ranks, ties and every other metric are in the ",
        f"details of each workload{f'; {SINGLE}: a single trial has no interval' if singles else ''} (",
        Link("how the figures are made", "how-the-figures-are-made"),
        ").",
    ]
