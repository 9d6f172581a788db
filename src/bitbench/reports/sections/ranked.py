"""Rankings: what every section asks of them, the one table of a study, and what it promises held against what was
measured."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import inf

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict
from bitbench.analysis.results.summary import (
    ConfigQuality,
    MetricDefinition,
    PointSummary,
    Ranking,
    RankingEntry,
    StudySummary,
)
from bitbench.records.trial import Outcome
from bitbench.reports.document.model import Mark, Name, Phrase, Quantity, Section, Table, Unit
from bitbench.reports.document.numbers import (
    MARKS,
    ROUGH,
    estimated,
    finding_quantity,
    percent,
    point_quantity,
    quantity_unit,
    spread_quantity,
    times,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    Shown,
    Words,
    bullets,
    counted,
    listing,
    name_phrases,
    number_column,
    paragraph,
    plural,
    ratio_column,
    say,
    small_print,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import CHOSEN, Labels
from bitbench.study.metrics import find_metric
from bitbench.study.objective import Objective
from bitbench.study.plan import Config, Point

NOT_RANKED = "one start, not ranked"
DEVICE_METRICS = ("device_peak_bytes", "device_bytes")  # shown where a device was used


def ranked_parts_by_model(summary: StudySummary) -> Iterator[tuple[StudySummary, Ranking]]:
    """Each with the part of the summary that it is of."""
    for part in summary.by_model:
        yield from ((part, ranking) for ranking in part.rankings)


def ranked_section_title(title: Words, summary: StudySummary) -> Phrase:
    """With the model that a part of a study is about, where that has several."""
    return say(title, ", ", Name(summary.model)) if summary.model else say(title)


def has_ranked_result(summary: StudySummary, point: PointSummary) -> bool:
    return summary.primary_metric in point.metrics


def ranked_point_outcomes(point: PointSummary) -> str:
    """`crashed (2), oom`: what a point has instead of figures."""
    return counted(group.failure.outcome.value for group in point.failures for _ in group.ids)


def ranked_estimate(summary: StudySummary, ranking: Ranking, entry: RankingEntry) -> Estimate:
    point = Point(config=entry.config, workload=ranking.workload)
    return next(measured for measured in summary.points if measured.point == point).metrics[
        ranking.metric
    ]


def ranked_points(summary: StudySummary, ranking: Ranking) -> list[PointSummary]:
    """Best first; those without a result last."""
    place = {entry.config: number for number, entry in enumerate(ranking.entries)}
    return sorted(
        summary.points_of(ranking.workload),
        key=lambda point: place.get(point.point.config, len(place)),
    )


def ranked_configs(summary: StudySummary) -> list[Config]:
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


def ranked_entry(ranking: Ranking, config: Config) -> RankingEntry | None:
    return next((entry for entry in ranking.entries if entry.config == config), None)


def ranked_possible_bests(ranking: Ranking) -> list[Config]:
    """Those that may be the best; without claims, those that share the first rank."""
    return list(ranking.possible_bests) or [
        entry.config for entry in ranking.entries if entry.rank_low == 1
    ]


def ranked_versus_baseline(ranking: Ranking, entry: RankingEntry | None) -> Words:
    if entry is None:
        return None
    return "baseline" if entry.config == ranking.baseline else times(entry.ratio_to_baseline)


def rank_text(entry: RankingEntry | None) -> str | None:
    """Return `1`, or `2–3` where that is undecided; of one that is not ranked, why."""
    if entry is None:
        return None
    if entry.rank_low is None:
        return NOT_RANKED
    return "–".join(str(place) for place in dict.fromkeys((entry.rank_low, entry.rank_high)))


def ranked_ratio_to_baseline(ranking: Ranking, config: Config) -> Quantity | None:
    entry = ranked_entry(ranking, config)
    return times(entry.ratio_to_baseline) if entry else None


def ranked_memory_metric(summary: StudySummary) -> str:
    """The memory that stands beside speed: that of the device where one was used."""
    return next(iter(ranked_device_metrics(summary)), "peak_bytes")


def ranked_device_metrics(summary: StudySummary) -> tuple[str, ...]:
    return tuple(
        metric
        for metric in DEVICE_METRICS
        if any(metric in point.metrics for point in summary.points)
    )


def ranked_metric_column(
    summary: StudySummary, metric: str, *, shown_from: int = 0, intervals_from: int = 130
) -> ColumnOf[PointSummary]:
    """It and its interval in each point."""
    definition, room = (
        ranked_metric_definition(summary, metric),
        {"shown_from": shown_from, "intervals_from": intervals_from},
    )
    return number_column(
        definition.label,
        quantity_unit(definition),
        lambda point: point_quantity(point, metric, definition),
        **room,
    )


def ranked_metric_definition(summary: StudySummary, metric: str) -> MetricDefinition:
    """Also of a percentile that only pooled requests have."""
    known = find_metric(metric)
    assert known is not None
    return summary.definitions.get(metric) or MetricDefinition.of(known)


FEW_WORKLOADS = 2  # with room for the figure itself beside its ratio


def results_section(summary: StudySummary, labels: Labels) -> Section | None:
    """None where nothing was measured. `labels`: marked with what the answer says of each."""
    if not any(ranking.entries for ranking in summary.rankings):
        return None
    return Section(
        ranked_section_title("Results", summary),
        (results_table(summary, labels), small_print(*_how_to_read(summary))),
    )


def results_table(summary: StudySummary, labels: Labels) -> Table:
    """Return a row per config: its speed on each workload, its memory and its quality."""
    qualities = {row.config: row for row in summary.quality}
    memory = {config.config: config.memory for config in summary.configs}

    return table(
        ranked_configs(summary),
        words_column(
            "Config",
            lambda config: say(
                f"{labels.mark(config)} " if labels.mark(config) else "", Name(labels.name(config))
            ),
        ),
        *(column for ranking in summary.rankings for column in _of_workload(summary, ranking)),
        number_column(
            "Peak memory",
            Unit.BYTES,
            lambda config: spread_quantity(memory[config].peak, Unit.BYTES),
        ),
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
        return (
            estimated(point.metrics.get(ranking.metric), definition)
            or ranked_point_outcomes(point)
            or None
        )

    title = say(Name(ranking.workload), f" {definition.label}")
    has_ratio = any(entry.ratio_to_baseline for entry in ranking.entries)
    figures = [number_column(title, quantity_unit(definition), figure)]
    if not has_ratio:
        return figures

    def versus(config: Config) -> Words:
        return (
            "baseline" if config == ranking.baseline else ranked_ratio_to_baseline(ranking, config)
        )

    compared = ratio_column(say(Name(ranking.workload), " vs. baseline"), versus)
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
        return estimated(row.estimates.get(key), definition) or (
            "baseline" if row.baseline == config else None
        )

    return number_column(definition.label, quantity_unit(definition), quality)


def _how_to_read(summary: StudySummary) -> list[Words]:
    confidence = percent(summary.study.measure.confidence)
    return [
        f"Mean ± standard deviation of trials [{confidence} confidence interval of the mean]; of memory (the range of ",
        "starts). Ranks, n and every other metric are in the details of each workload; the last section says how the "
        "figures are made.",
    ]


SYMBOLS = (
    "✓ the whole interval is within the limit, ✗ the whole interval is beyond it, ? inconclusive."
)


def objectives_section(summary: StudySummary) -> Section | None:
    """None of a study that promises nothing, or has no result yet. A search has its own answer in a terminal: rates
    beyond the highest miss their objectives by design."""
    objectives = summary.study.objectives
    points = summary.points
    if not objectives or not summary.is_measured:
        return None
    labels = Labels.of(summary, MAX_NAME)
    verdicts = table(
        points,
        words_column("Workload", lambda point: Name(point.point.workload)),
        words_column("Config", lambda point: Name(labels[point.point.config])),
        *(
            number_column(objective.name, Unit.SECONDS, partial(_judged, place), intervals_from=0)
            for place, objective in enumerate(objectives)
        ),
        words_column("Verdict", lambda point: point.verdict.value if point.verdict else None),
        mark=_mark,
    )
    asked = paragraph(
        "Promised: ",
        promised_objectives_in_words(summary),
        ", of all trials of a point together. ",
        SYMBOLS,
    )
    reasons = finding_reasons(
        (point.point.name, finding) for point in points for finding in point.objectives
    )
    return Section(
        say("Objectives"), (asked, verdicts, *bullets(reasons)), in_terminal=summary.search is None
    )


def objectives_sentence(summary: StudySummary) -> Phrase | None:
    """`Objectives (ttft_p99 ≤ 200 ms): 2 points met, 1 missed.`; None where nothing is promised, or of a search."""
    found = [point.verdict for point in summary.points]
    if summary.search is not None or not summary.is_measured or not any(found):
        return None
    counts = [f"{found.count(verdict)} {verdict.value}" for verdict in Verdict if verdict in found]
    return say(
        strong("Objectives"),
        " (",
        promised_objectives_in_words(summary),
        f"): of {plural(len(found), 'point')} ",
        listing(counts),
        ".",
    )


def promised_objectives_in_words(summary: StudySummary) -> Phrase:
    """`ttft_p99 ≤ 200 ms and tpot_p99 ≤ 20.0 ms`"""
    return objectives_in_words(summary.study.objectives)


def objectives_in_words(objectives: Sequence[Objective | Finding]) -> Phrase:
    return listing(
        [
            say(Name(objective.name), " ≤ ", Quantity(objective.limit, Unit.SECONDS, digits=ROUGH))
            for objective in objectives
        ]
    )


def _judged(place: int, point: PointSummary) -> Quantity:
    return finding_quantity(point.objectives[place], MARKS[point.objectives[place].verdict])


def _mark(point: PointSummary) -> Mark | None:
    return (
        Mark.ALARM
        if any(objective.verdict is Verdict.MISSED for objective in point.objectives)
        else None
    )


def finding_reasons(findings: Iterable[tuple[str, Finding]]) -> Iterator[Phrase]:
    """Say what is inconclusive, or missed without a value, once per reason. `findings`: each with whose it is."""
    reasons: dict[tuple[Verdict, str, str], list[str]] = {}
    for whose, finding in findings:
        if finding.reason:
            reasons.setdefault((finding.verdict, finding.name, finding.reason), []).append(whose)
    for (verdict, name, reason), found in reasons.items():
        where = listing(name_phrases(found), most=3)
        yield say(f"{verdict.value.capitalize()}: ", Name(name), " of ", where, f": {reason}.")
