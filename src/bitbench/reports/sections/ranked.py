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
    find_point_quantity,
    find_unit,
    format_percent,
    format_verdict_counts,
    make_finding_quantity,
    make_ratio,
    make_spread,
    to_quantity,
)
from bitbench.reports.document.words import (
    MAX_NAME,
    ColumnOf,
    Shown,
    Words,
    build_table,
    bullets,
    format_count,
    format_counts,
    format_list,
    format_names,
    make_number_column,
    make_ratio_column,
    make_words_column,
    mark_if,
    paragraph,
    say,
    small_print,
    strong,
)
from bitbench.reports.labels import CHOSEN, Labels
from bitbench.study.metrics import find_metric
from bitbench.study.objective import Objective
from bitbench.study.plan import Config, Point

NOT_RANKED = "one start, not ranked"
DEVICE_METRICS = ("device_peak_bytes", "device_bytes")  # shown if a device was used


def iter_rankings(summary: StudySummary) -> Iterator[tuple[StudySummary, Ranking]]:
    """Yield every ranking, with the part of the summary that it belongs to."""
    for part in summary.by_model:
        for ranking in part.rankings:
            yield part, ranking


def format_section_title(title: Words, summary: StudySummary) -> Phrase:
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


def format_outcomes(point: PointSummary) -> str:
    """Return the outcomes of failed trials: `crashed (2), oom`. Empty if none failed."""
    outcomes: list[str] = []
    for group in point.failures:
        outcomes += [group.failure.outcome.value] * len(group.ids)
    return format_counts(outcomes)


def find_ranked_estimate(summary: StudySummary, ranking: Ranking, entry: RankingEntry) -> Estimate:
    """Return the ranked metric of an entry."""
    point = Point(config=entry.config, workload=ranking.workload)
    measured = next(measured for measured in summary.points if measured.point == point)
    return measured.metrics[ranking.metric]


def list_ranked_points(summary: StudySummary, ranking: Ranking) -> list[PointSummary]:
    """Return the points of a workload, best first. Points without a result are last."""
    ranks = {entry.config: rank for rank, entry in enumerate(ranking.entries)}
    return sorted(
        summary.list_points(ranking.workload),
        key=lambda point: ranks.get(point.point.config, len(ranks)),
    )


def list_ranked_configs(summary: StudySummary) -> list[Config]:
    """Return every config by its mean rank over all workloads. One without a result is last."""
    ranks: dict[Config, list[int]] = {}
    for ranking in summary.rankings:
        for rank, entry in enumerate(ranking.entries):
            ranks.setdefault(entry.config, []).append(rank)

    def compute_mean_rank(config: Config) -> float:
        return fmean(ranks[config]) if config in ranks else inf

    return sorted((config.config for config in summary.configs), key=compute_mean_rank)


def find_ranked_entry(ranking: Ranking, config: Config) -> RankingEntry | None:
    """Return the entry of a config in a ranking, or None if it has no result."""
    return next((entry for entry in ranking.entries if entry.config == config), None)


def list_possible_bests(ranking: Ranking) -> list[Config]:
    """Return the configs that may be the best, or those of the first rank without claims."""
    if ranking.possible_bests:
        return list(ranking.possible_bests)
    return [entry.config for entry in ranking.entries if entry.rank_low == 1]


def format_versus_baseline(ranking: Ranking, entry: RankingEntry | None) -> Words:
    """Return the ratio to the baseline, `baseline` for the baseline itself, or None."""
    if entry is None:
        return None
    if entry.config == ranking.baseline:
        return "baseline"
    return make_ratio(entry.ratio_to_baseline)


def format_rank(entry: RankingEntry | None) -> str | None:
    """Return `1`, or `2–3` if undecided. An entry without a rank gets the reason instead."""
    if entry is None:
        return None
    if entry.rank_low is None:
        return NOT_RANKED
    return "–".join(map(str, dict.fromkeys((entry.rank_low, entry.rank_high))))


def find_ratio_to_baseline(ranking: Ranking, config: Config) -> Quantity | None:
    """Return the ratio of a config to the baseline of a workload, or None if unknown."""
    entry = find_ranked_entry(ranking, config)
    return make_ratio(entry.ratio_to_baseline) if entry else None


def find_memory_metric(summary: StudySummary) -> str:
    """Return the memory metric to show with speed: the device's, if a device was used."""
    return next(iter(list_device_metrics(summary)), "peak_bytes")


def list_device_metrics(summary: StudySummary) -> tuple[str, ...]:
    """Return the device metrics that at least one point has."""
    measured = {metric for point in summary.points for metric in point.metrics}
    return tuple(metric for metric in DEVICE_METRICS if metric in measured)


def make_metric_column(
    summary: StudySummary, metric: str, *, shown_from: int = 0, intervals_from: int = 130
) -> ColumnOf[PointSummary]:
    """Return a column with a metric of each point and its interval."""
    definition = find_metric_definition(summary, metric)
    return make_number_column(
        definition.label,
        find_unit(definition),
        lambda point: find_point_quantity(point, metric, definition),
        shown_from=shown_from,
        intervals_from=intervals_from,
    )


def find_metric_definition(summary: StudySummary, metric: str) -> MetricDefinition:
    """Return the definition of a metric, even of a percentile that only pooled requests have."""
    defined = find_metric(metric)
    assert defined is not None
    return summary.definitions.get(metric) or MetricDefinition.of(defined)


FEW_WORKLOADS = 2  # up to here, a table has room for the metric itself next to its ratio


def build_results_section(summary: StudySummary, labels: Labels) -> Section | None:
    """Return the results, or None if nothing was measured.

    `labels` carry the marks of the answer.
    """
    if not any(ranking.entries for ranking in summary.rankings):
        return None
    return Section(
        format_section_title("Results", summary),
        (build_results_table(summary, labels), small_print(*_list_reading_hints(summary))),
    )


def build_results_table(summary: StudySummary, labels: Labels) -> Table:
    """Return a row per config: its speed on each workload, its memory and its quality."""
    memory = {config.config: config.memory for config in summary.configs}
    columns: list[ColumnOf[Config]] = []
    for ranking in summary.rankings:
        columns += _make_workload_columns(summary, ranking)

    def format_config(config: Config) -> Phrase:
        mark = labels.mark(config)
        space = " " if mark else ""
        return say(f"{mark}{space}", Name(labels.name(config)))

    columns.append(
        make_number_column(
            "Peak memory",
            Unit.BYTES,
            lambda config: make_spread(memory[config].peak, Unit.BYTES),
        )
    )
    if summary.quality:
        columns.append(_make_quality_column(summary))
    return build_table(
        list_ranked_configs(summary),
        make_words_column("Config", format_config),
        *columns,
        mark=lambda config: mark_if(labels.mark(config) == CHOSEN, Mark.BEST),
        drop_empty=True,
    )


def _make_workload_columns(summary: StudySummary, ranking: Ranking) -> list[ColumnOf[Config]]:
    """Return the columns of a workload: the metric and the ratio to the baseline.

    The metric is left out if there are many workloads, the ratio if no config has one.
    """
    workload = Name(ranking.workload)
    definition = summary.definitions[ranking.metric]
    points = {point.point.config: point for point in summary.list_points(ranking.workload)}

    def get_value(config: Config) -> Shown:
        point = points.get(config)
        if point is None:
            return None
        value = to_quantity(point.metrics.get(ranking.metric), definition)
        return value or format_outcomes(point) or None

    def get_ratio(config: Config) -> Words:
        if config == ranking.baseline:
            return "baseline"
        return find_ratio_to_baseline(ranking, config)

    title = say(workload, f" {definition.label}")
    values = make_number_column(title, find_unit(definition), get_value)
    if not has_ranked_ratio(ranking):
        return [values]
    ratios = make_ratio_column(say(workload, " vs. baseline"), get_ratio)
    return [values, ratios] if len(summary.rankings) <= FEW_WORKLOADS else [ratios]


def _make_quality_column(summary: StudySummary) -> ColumnOf[Config]:
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
        value = to_quantity(row.estimates.get(key), definition)
        if value is None and row.baseline == config:
            return "baseline"
        return value

    return make_number_column(definition.label, find_unit(definition), get_quality)


def _list_reading_hints(summary: StudySummary) -> list[Words]:
    confidence = format_percent(summary.study.measure.confidence)
    return [
        f"Mean ± standard deviation of trials [{confidence} confidence interval of the mean]; of "
        "memory (the range of ",
        "starts). Ranks, n and every other metric are in the details of each workload; the last "
        "section says how the figures are made.",
    ]


SYMBOLS = (
    "✓ the whole interval is within the limit, ✗ the whole interval is beyond it, ? inconclusive."
)


def build_objectives_section(summary: StudySummary) -> Section | None:
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
        get_value = partial(_make_finding_quantity, index)
        columns.append(
            make_number_column(objective.name, Unit.SECONDS, get_value, intervals_from=0)
        )
    verdicts = build_table(
        summary.points,
        make_words_column("Workload", lambda point: Name(point.point.workload)),
        make_words_column("Config", lambda point: Name(labels[point.point.config])),
        *columns,
        make_words_column("Verdict", _find_verdict),
        mark=_mark,
    )
    about = paragraph(
        "Promised: ",
        format_study_objectives(summary),
        ", of all trials of a point together. ",
        SYMBOLS,
    )
    findings: list[tuple[str, Finding]] = []
    for point in summary.points:
        findings += [(point.point.name, finding) for finding in point.objectives]
    reasons = bullets(iter_finding_reasons(findings))
    return Section(
        say("Objectives"), (about, verdicts, *reasons), in_terminal=summary.search is None
    )


def format_objective_counts(summary: StudySummary) -> Phrase | None:
    """Return `Objectives (ttft_p99 ≤ 200 ms): of 3 points 2 met and 1 missed.`

    The result is None without objectives, without a result, or for a rate search.
    """
    verdicts = [point.verdict for point in summary.points]
    if summary.search is not None or not summary.is_measured or not any(verdicts):
        return None
    return say(
        strong("Objectives"),
        " (",
        format_study_objectives(summary),
        f"): of {format_count(len(verdicts), 'point')} ",
        format_list(format_verdict_counts(verdicts)),
        ".",
    )


def format_study_objectives(summary: StudySummary) -> Phrase:
    """Return the objectives of a study: `ttft_p99 ≤ 200 ms and tpot_p99 ≤ 20.0 ms`."""
    return format_objectives(summary.study.objectives)


def format_objectives(objectives: Sequence[Objective | Finding]) -> Phrase:
    """Return objectives with their limits: `ttft_p99 ≤ 200 ms and tpot_p99 ≤ 20.0 ms`."""
    parts = []
    for objective in objectives:
        limit = Quantity(objective.limit, Unit.SECONDS, digits=ROUGH)
        parts.append(say(Name(objective.name), " ≤ ", limit))
    return format_list(parts)


def _make_finding_quantity(index: int, point: PointSummary) -> Quantity:
    finding = point.objectives[index]
    return make_finding_quantity(finding, MARKS[finding.verdict])


def _find_verdict(point: PointSummary) -> str | None:
    return point.verdict.value if point.verdict else None


def _mark(point: PointSummary) -> Mark | None:
    is_missed = any(finding.verdict is Verdict.MISSED for finding in point.objectives)
    return mark_if(is_missed, Mark.ALARM)


def iter_finding_reasons(findings: Iterable[tuple[str, Finding]]) -> Iterator[Phrase]:
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
