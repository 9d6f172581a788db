"""Rankings: helpers for every section, the results table of a study, and its objectives."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import inf
from statistics import fmean

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict
from bitbench.analysis.results.summary import (
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
    format_verdict_counts,
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
    format_names,
    listing,
    mark_if,
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
DEVICE_METRICS = ("device_peak_bytes", "device_bytes")  # shown if a device was used


def ranked_parts_by_model(summary: StudySummary) -> Iterator[tuple[StudySummary, Ranking]]:
    """Yield every ranking, with the part of the summary that it belongs to."""
    for part in summary.by_model:
        for ranking in part.rankings:
            yield part, ranking


def ranked_section_title(title: Words, summary: StudySummary) -> Phrase:
    """Return the title with the model of the summary, if the study has several models."""
    if not summary.model:
        return say(title)
    return say(title, ", ", Name(summary.model))


def has_ranked_result(summary: StudySummary, point: PointSummary) -> bool:
    """Return whether the primary metric of a point is known."""
    return summary.primary_metric in point.metrics


def has_ranked_ratio(ranking: Ranking) -> bool:
    """Return whether any config of a workload has a ratio to the baseline."""
    return any(entry.ratio_to_baseline for entry in ranking.entries)


def ranked_point_outcomes(point: PointSummary) -> str:
    """Return the outcomes of failed trials: `crashed (2), oom`. Empty if none failed."""
    outcomes: list[str] = []
    for group in point.failures:
        outcomes += [group.failure.outcome.value] * len(group.ids)
    return counted(outcomes)


def ranked_estimate(summary: StudySummary, ranking: Ranking, entry: RankingEntry) -> Estimate:
    """Return the ranked metric of an entry."""
    point = Point(config=entry.config, workload=ranking.workload)
    measured = next(measured for measured in summary.points if measured.point == point)
    return measured.metrics[ranking.metric]


def ranked_points(summary: StudySummary, ranking: Ranking) -> list[PointSummary]:
    """Return the points of a workload, best first. Points without a result are last."""
    ranks = {entry.config: rank for rank, entry in enumerate(ranking.entries)}
    return sorted(
        summary.points_of(ranking.workload),
        key=lambda point: ranks.get(point.point.config, len(ranks)),
    )


def ranked_configs(summary: StudySummary) -> list[Config]:
    """Return every config by its mean rank over all workloads. One without a result is last."""
    ranks: dict[Config, list[int]] = {}
    for ranking in summary.rankings:
        for rank, entry in enumerate(ranking.entries):
            ranks.setdefault(entry.config, []).append(rank)

    def compute_mean_rank(config: Config) -> float:
        return fmean(ranks[config]) if config in ranks else inf

    return sorted((config.config for config in summary.configs), key=compute_mean_rank)


def ranked_entry(ranking: Ranking, config: Config) -> RankingEntry | None:
    """Return the entry of a config in a ranking, or None if it has no result."""
    return next((entry for entry in ranking.entries if entry.config == config), None)


def ranked_possible_bests(ranking: Ranking) -> list[Config]:
    """Return the configs that may be the best, or those of the first rank without claims."""
    if ranking.possible_bests:
        return list(ranking.possible_bests)
    return [entry.config for entry in ranking.entries if entry.rank_low == 1]


def ranked_versus_baseline(ranking: Ranking, entry: RankingEntry | None) -> Words:
    """Return the ratio to the baseline, `baseline` for the baseline itself, or None."""
    if entry is None:
        return None
    if entry.config == ranking.baseline:
        return "baseline"
    return times(entry.ratio_to_baseline)


def rank_text(entry: RankingEntry | None) -> str | None:
    """Return `1`, or `2–3` if undecided. An entry without a rank gets the reason instead."""
    if entry is None:
        return None
    if entry.rank_low is None:
        return NOT_RANKED
    return "–".join(map(str, dict.fromkeys((entry.rank_low, entry.rank_high))))


def ranked_ratio_to_baseline(ranking: Ranking, config: Config) -> Quantity | None:
    """Return the ratio of a config to the baseline of a workload, or None if unknown."""
    entry = ranked_entry(ranking, config)
    return times(entry.ratio_to_baseline) if entry else None


def ranked_memory_metric(summary: StudySummary) -> str:
    """Return the memory metric to show with speed: the device's, if a device was used."""
    return next(iter(ranked_device_metrics(summary)), "peak_bytes")


def ranked_device_metrics(summary: StudySummary) -> tuple[str, ...]:
    """Return the device metrics that at least one point has."""
    measured = {metric for point in summary.points for metric in point.metrics}
    return tuple(metric for metric in DEVICE_METRICS if metric in measured)


def ranked_metric_column(
    summary: StudySummary, metric: str, *, shown_from: int = 0, intervals_from: int = 130
) -> ColumnOf[PointSummary]:
    """Return a column with a metric of each point and its interval."""
    definition = ranked_metric_definition(summary, metric)
    return number_column(
        definition.label,
        quantity_unit(definition),
        lambda point: point_quantity(point, metric, definition),
        shown_from=shown_from,
        intervals_from=intervals_from,
    )


def ranked_metric_definition(summary: StudySummary, metric: str) -> MetricDefinition:
    """Return the definition of a metric, even of a percentile that only pooled requests have."""
    defined = find_metric(metric)
    assert defined is not None
    return summary.definitions.get(metric) or MetricDefinition.of(defined)


FEW_WORKLOADS = 2  # up to here, a table has room for the metric itself next to its ratio


def results_section(summary: StudySummary, labels: Labels) -> Section | None:
    """Return the results, or None if nothing was measured.

    `labels` carry the marks of the answer.
    """
    if not any(ranking.entries for ranking in summary.rankings):
        return None
    return Section(
        ranked_section_title("Results", summary),
        (results_table(summary, labels), small_print(*_how_to_read(summary))),
    )


def results_table(summary: StudySummary, labels: Labels) -> Table:
    """Return a row per config: its speed on each workload, its memory and its quality."""
    memory = {config.config: config.memory for config in summary.configs}
    columns: list[ColumnOf[Config]] = []
    for ranking in summary.rankings:
        columns += _of_workload(summary, ranking)

    def format_config(config: Config) -> Phrase:
        mark = labels.mark(config)
        space = " " if mark else ""
        return say(f"{mark}{space}", Name(labels.name(config)))

    columns.append(
        number_column(
            "Peak memory",
            Unit.BYTES,
            lambda config: spread_quantity(memory[config].peak, Unit.BYTES),
        )
    )
    if summary.quality:
        columns.append(_quality_column(summary))
    return table(
        ranked_configs(summary),
        words_column("Config", format_config),
        *columns,
        mark=lambda config: mark_if(labels.mark(config) == CHOSEN, Mark.BEST),
        drop_empty=True,
    )


def _of_workload(summary: StudySummary, ranking: Ranking) -> list[ColumnOf[Config]]:
    """Return the columns of a workload: the metric and the ratio to the baseline.

    The metric is left out if there are many workloads, the ratio if no config has one.
    """
    workload = Name(ranking.workload)
    definition = summary.definitions[ranking.metric]
    points = {point.point.config: point for point in summary.points_of(ranking.workload)}

    def get_value(config: Config) -> Shown:
        point = points.get(config)
        if point is None:
            return None
        value = estimated(point.metrics.get(ranking.metric), definition)
        return value or ranked_point_outcomes(point) or None

    def get_ratio(config: Config) -> Words:
        if config == ranking.baseline:
            return "baseline"
        return ranked_ratio_to_baseline(ranking, config)

    title = say(workload, f" {definition.label}")
    values = number_column(title, quantity_unit(definition), get_value)
    if not has_ranked_ratio(ranking):
        return [values]
    ratios = ratio_column(say(workload, " vs. baseline"), get_ratio)
    return [values, ratios] if len(summary.rankings) <= FEW_WORKLOADS else [ratios]


def _quality_column(summary: StudySummary) -> ColumnOf[Config]:
    """Return a column of the divergence from the baseline, else of the perplexity."""
    rows = {row.config: row for row in summary.quality}
    has_divergence = any("kl_mean" in row.estimates for row in rows.values())
    key = "kl_mean" if has_divergence else "perplexity"
    definition = summary.quality_definitions[key]

    def get_quality(config: Config) -> Shown:
        row = rows.get(config)
        if row is None:
            return None
        if row.outcome is not Outcome.OK:
            return row.outcome.value
        value = estimated(row.estimates.get(key), definition)
        if value is None and row.baseline == config:
            return "baseline"
        return value

    return number_column(definition.label, quantity_unit(definition), get_quality)


def _how_to_read(summary: StudySummary) -> list[Words]:
    confidence = percent(summary.study.measure.confidence)
    return [
        f"Mean ± standard deviation of trials [{confidence} confidence interval of the mean]; of "
        "memory (the range of ",
        "starts). Ranks, n and every other metric are in the details of each workload; the last "
        "section says how the figures are made.",
    ]


SYMBOLS = (
    "✓ the whole interval is within the limit, ✗ the whole interval is beyond it, ? inconclusive."
)


def objectives_section(summary: StudySummary) -> Section | None:
    """Return the verdict on each objective, or None without an objective or a result.

    A terminal leaves it out for a rate search, which answers for itself: rates beyond the highest
    miss their objectives by design.
    """
    objectives = summary.study.objectives
    if not objectives or not summary.is_measured:
        return None
    labels = Labels.of(summary, MAX_NAME)
    columns: list[ColumnOf[PointSummary]] = []
    for index, objective in enumerate(objectives):
        get_value = partial(_judged, index)
        columns.append(number_column(objective.name, Unit.SECONDS, get_value, intervals_from=0))
    verdicts = table(
        summary.points,
        words_column("Workload", lambda point: Name(point.point.workload)),
        words_column("Config", lambda point: Name(labels[point.point.config])),
        *columns,
        words_column("Verdict", _find_verdict),
        mark=_mark,
    )
    about = paragraph(
        "Promised: ",
        promised_objectives_in_words(summary),
        ", of all trials of a point together. ",
        SYMBOLS,
    )
    findings: list[tuple[str, Finding]] = []
    for point in summary.points:
        findings += [(point.point.name, finding) for finding in point.objectives]
    blocks = (about, verdicts, *bullets(finding_reasons(findings)))
    return Section(say("Objectives"), blocks, in_terminal=summary.search is None)


def objectives_sentence(summary: StudySummary) -> Phrase | None:
    """Return `Objectives (ttft_p99 ≤ 200 ms): of 3 points 2 met and 1 missed.`

    The result is None without objectives, without a result, or for a rate search.
    """
    verdicts = [point.verdict for point in summary.points]
    if summary.search is not None or not summary.is_measured or not any(verdicts):
        return None
    return say(
        strong("Objectives"),
        " (",
        promised_objectives_in_words(summary),
        f"): of {plural(len(verdicts), 'point')} ",
        listing(format_verdict_counts(verdicts)),
        ".",
    )


def promised_objectives_in_words(summary: StudySummary) -> Phrase:
    """Return the objectives of a study: `ttft_p99 ≤ 200 ms and tpot_p99 ≤ 20.0 ms`."""
    return objectives_in_words(summary.study.objectives)


def objectives_in_words(objectives: Sequence[Objective | Finding]) -> Phrase:
    """Return objectives with their limits: `ttft_p99 ≤ 200 ms and tpot_p99 ≤ 20.0 ms`."""
    parts = []
    for objective in objectives:
        limit = Quantity(objective.limit, Unit.SECONDS, digits=ROUGH)
        parts.append(say(Name(objective.name), " ≤ ", limit))
    return listing(parts)


def _judged(index: int, point: PointSummary) -> Quantity:
    finding = point.objectives[index]
    return finding_quantity(finding, MARKS[finding.verdict])


def _find_verdict(point: PointSummary) -> str | None:
    return point.verdict.value if point.verdict else None


def _mark(point: PointSummary) -> Mark | None:
    is_missed = any(finding.verdict is Verdict.MISSED for finding in point.objectives)
    return mark_if(is_missed, Mark.ALARM)


def finding_reasons(findings: Iterable[tuple[str, Finding]]) -> Iterator[Phrase]:
    """Yield why findings are inconclusive, or missed without a value, once per reason.

    Each finding comes with the name of its owner.
    """
    owners: dict[tuple[Verdict, str, str], list[str]] = {}
    for owner, finding in findings:
        if finding.reason:
            key = (finding.verdict, finding.name, finding.reason)
            owners.setdefault(key, []).append(owner)
    for (verdict, name, reason), names in owners.items():
        head = f"{verdict.value.capitalize()}: "
        yield say(head, Name(name), " of ", format_names(names, most=3), f": {reason}.")
