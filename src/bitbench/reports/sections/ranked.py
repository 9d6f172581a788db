"""What every section asks of a workload's ranking."""

from collections.abc import Iterator
from math import inf

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import MetricDefinition, PointSummary, Ranking, RankingEntry, StudySummary
from bitbench.reports.document.model import Name, Phrase, Quantity
from bitbench.reports.document.tables import ColumnOf, number_column
from bitbench.reports.document.words import Words, counted, say
from bitbench.reports.quantities import figure_of, times, unit_of
from bitbench.study.metrics import find
from bitbench.study.plan import Config, Point

SINGLE = "n = 1"
NOT_RANKED = f"{SINGLE}, not ranked"
LESS_MEMORY = 0.05  # a smaller difference is no reason to choose among ties
DEVICE_METRICS = ("device_peak_bytes", "device_bytes")  # shown where a device was used


def rankings_by_model(summary: StudySummary) -> Iterator[tuple[StudySummary, Ranking]]:
    """Each with the part of the summary that it is of."""
    for part in summary.by_model:
        yield from ((part, ranking) for ranking in part.rankings)


def titled(title: Words, summary: StudySummary) -> Phrase:
    """With the model that a part of a study is about, where that has several."""
    return say(title, ", ", Name(summary.model)) if summary.model else say(title)


def has_result(summary: StudySummary, point: PointSummary) -> bool:
    return summary.primary_metric in point.metrics


def outcomes_of(point: PointSummary) -> str:
    """`crashed (2), oom`: what a point has instead of figures."""
    return counted(group.failure.outcome.value for group in point.failures for _ in group.ids)


def estimate_of(summary: StudySummary, ranking: Ranking, entry: RankingEntry) -> Estimate:
    point = Point(config=entry.config, workload=ranking.workload)
    return next(measured for measured in summary.points if measured.point == point).metrics[ranking.metric]


def in_order(summary: StudySummary, ranking: Ranking) -> list[PointSummary]:
    """Best first; those without a result last."""
    place = {entry.config: number for number, entry in enumerate(ranking.entries)}
    return sorted(summary.points_of(ranking.workload), key=lambda point: place.get(point.point.config, len(place)))


def by_speed(summary: StudySummary) -> list[Config]:
    """Every config, the best place on all its workloads first, one without a result last."""

    def place(config: Config) -> float:
        places = [
            number
            for ranking in summary.rankings
            for number, entry in enumerate(ranking.entries)
            if entry.config == config
        ]
        return sum(places) / len(places) if places else inf

    return sorted((config.config for config in summary.configs), key=place)


def entry_of(ranking: Ranking, config: Config) -> RankingEntry | None:
    return next((entry for entry in ranking.entries if entry.config == config), None)


def may_be_best(ranking: Ranking) -> list[Config]:
    """Those that may be the best; without claims, those that share the first rank."""
    return list(ranking.possible_bests) or [entry.config for entry in ranking.entries if entry.rank_low == 1]


def versus_baseline(ranking: Ranking, entry: RankingEntry | None) -> Words:
    if entry is None:
        return None
    return "baseline" if entry.config == ranking.baseline else times(entry.ratio_to_baseline)


def rank(entry: RankingEntry | None) -> str | None:
    """`1`, or a range for a tie."""
    if entry is None:
        return None
    if entry.rank_low is None:
        return NOT_RANKED
    return places(entry) if entry.rank_low == entry.rank_high else f"{places(entry)} (tie)"


def places(entry: RankingEntry) -> str:
    """`1` or `2–3`; of one that is not ranked, why."""
    if entry.rank_low is None:
        return SINGLE
    return "–".join(str(place) for place in dict.fromkeys((entry.rank_low, entry.rank_high)))


def quoted_ratio(ranking: Ranking, config: Config) -> Estimate | None:
    """To the baseline: the confirmed one where there is one, since the choice itself made the other look better."""
    if (confirmed := confirmed_ratio(ranking, config)) is not None:
        return confirmed
    entry = entry_of(ranking, config)
    return entry.ratio_to_baseline if entry else None


def confirmed_ratio(ranking: Ranking, config: Config) -> Estimate | None:
    found = ranking.confirmed
    return found.ratio if found is not None and found.config == config else None


def ratio_to_baseline(ranking: Ranking, config: Config) -> Quantity | None:
    return times(quoted_ratio(ranking, config))


def memory_metric(summary: StudySummary) -> str:
    """The memory that stands beside speed: that of the device where one was used."""
    return next(iter(device_metrics(summary)), "peak_bytes")


def device_metrics(summary: StudySummary) -> tuple[str, ...]:
    return tuple(metric for metric in DEVICE_METRICS if any(metric in point.metrics for point in summary.points))


def metric_column(
    summary: StudySummary, metric: str, *, shown_from: int = 0, intervals_from: int = 130
) -> ColumnOf[PointSummary]:
    """It and its interval in each point."""
    definition, room = definition_of(summary, metric), {"shown_from": shown_from, "intervals_from": intervals_from}
    return number_column(
        definition.label, unit_of(definition), lambda point: figure_of(point, metric, definition), **room
    )


def definition_of(summary: StudySummary, metric: str) -> MetricDefinition:
    """Also of a percentile that only pooled requests have."""
    known = find(metric)
    assert known is not None
    return summary.definitions.get(metric) or MetricDefinition.of(known)
