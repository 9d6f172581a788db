"""The summary of a study: everything a report may say, computed from the records."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from bitbench.analysis.absolute import Samples, estimate_all_metrics
from bitbench.analysis.configs import summarize_config, summarize_engine, summarize_failures
from bitbench.analysis.intervals import Sample, summarize_starts
from bitbench.analysis.objectives import check_objectives, judge_objective
from bitbench.analysis.precision import is_unfinished
from bitbench.analysis.quality import DEFINITIONS as QUALITY_DEFINITIONS
from bitbench.analysis.quality import summarize_quality
from bitbench.analysis.ranking import (
    ModelGroup,
    get_model_group,
    list_model_groups,
    rank_configs,
)
from bitbench.analysis.rate_search import list_rate_trials, summarize_rate_search
from bitbench.analysis.rejections import summarize_rejections
from bitbench.analysis.requests import estimate_tails, pool_requests, summarize_stream
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import (
    ComparedModel,
    Outlier,
    PointSummary,
    Ranking,
    Run,
    SameEngineRatio,
    StudySummary,
)
from bitbench.analysis.sequential import Speeds, find_baseline, get_primary_metric
from bitbench.analysis.trial import DEFINITIONS, RECORDED, find_cached_prompts
from bitbench.analysis.turns import settle_turns
from bitbench.feature import Offer, handle_feature_errors, report_parts
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import TrialRecord
from bitbench.study.base import Record
from bitbench.study.metrics import METRICS, PRIMARY_METRICS
from bitbench.study.objective import Objective
from bitbench.study.plan import Config, Point

# Metrics checked for outliers: the possible primary metrics. All other metrics follow from these or
# are extremes themselves.
FLAGGED_METRICS = tuple(METRICS[name].column for name in PRIMARY_METRICS)

MODIFIED_Z_LIMIT = 3.5  # Iglewicz and Hoaglin (1993), for 0.6745 · |x − median| / MAD
_MAD_TO_SD = 0.6745  # third quartile of the normal distribution: MAD / sd

# The MAD of three values is the distance of the nearer neighbor to the median. Two values that
# nearly coincide therefore make any third one look extreme: more than one in four triples of pure
# noise exceed the z limit. A flag must also matter. 10 % is five times the 2 % relative sd between
# trials that calls for no attention. With such noise and three to ten trials, fewer than one point
# in 10,000 is flagged.
MIN_RELATIVE_DEVIATION = 0.10

MIN_TRIALS = 3  # of two values neither is the odd one


def summarize(records: StudyRecords) -> StudySummary:
    """Summarize a study, finished or not.

    Only measured trials with the outcome OK count. All other trials appear as outcomes.
    """
    plan = records.plan
    samples = collect_samples(records)
    speeds_by_group = {
        group: _make_speeds(records, group, samples) for group in list_model_groups(plan)
    }
    variants = {variant.name: variant for variant in plan.variants}
    configs = []
    for config in plan.configs:
        variant = variants.get(config.variant)
        configs.append(summarize_config(config, variant, records.instances, records.trials))
    search = None
    if records.lock.search:
        search = summarize_rate_search(
            list_rate_trials(plan.study, records.trials), records.lock.search
        )
    quality_definitions = {} if plan.study.quality is None else QUALITY_DEFINITIONS
    return StudySummary(
        study=plan.study,
        primary_metric=get_primary_metric(plan).metric,
        baseline=find_baseline(plan),
        definitions=DEFINITIONS,
        points=tuple(_summarize_points(records, speeds_by_group, samples)),
        configs=tuple(configs),
        rankings=tuple(_iter_rankings(records, speeds_by_group)),
        models=_list_models(speeds_by_group),
        refusals=plan.refusals,
        imported_from=plan.imported_from,
        expectations=plan.expectations,
        level=plan.level,
        in_float32=plan.in_float32,
        search=search,
        quality=summarize_quality(records),
        quality_definitions=quality_definitions,
        quality_refusals=plan.quality_refusals,
        rounded_before=plan.rounded_before,
        rejections=summarize_rejections(records, speeds_by_group),
        parts=dict(_iter_parts(records)),
    )


def _iter_parts(records: StudyRecords) -> Iterator[tuple[str, Record]]:
    """Yield the name and the result of each feature that adds to the summary."""
    for part, feature in report_parts():
        with handle_feature_errors(feature):
            computed = Offer(feature, part.compute).load()(records)
            if computed is not None:
                yield part.name, computed


def summarize_speeds(records: StudyRecords, config: Config) -> Speeds:
    """Return the speeds of the configs that are compared with this one."""
    return _make_speeds(records, get_model_group(records.plan, config), collect_samples(records))


def _make_speeds(records: StudyRecords, group: ModelGroup, samples: Samples) -> Speeds:
    standing = group.standing(records.trials, records.starts_and_quality)
    return Speeds(standing, samples, records.study.measure.confidence)


def _list_models(groups: Collection[ModelGroup]) -> tuple[ComparedModel, ...]:
    """Return the models of a study that has several. Empty for a study of one model."""
    if len(groups) < 2:
        return ()
    return tuple(
        ComparedModel(name=group.model, configs=group.configs, baseline=group.baseline)
        for group in groups
    )


def collect_samples(records: StudyRecords) -> dict[Point, dict[str, Sample]]:
    """Return a sample of each metric of each point, from the trials that count."""
    samples = {}
    for point, trials in _group_by_point(records).items():
        counted = [trial for trial in trials if trial.counts]
        samples[point] = _summarize_metrics(counted, was_running=records.was_running(point.config))
    return samples


def collect_values_by_start(records: StudyRecords, metric: str) -> dict[Point, list[list[float]]]:
    """Return one metric of the trials that count, by point, with one group of values per start."""
    by_point: dict[Point, list[list[float]]] = {}
    for point, trials in _group_by_point(records).items():
        starts: dict[str, list[float]] = {}
        for trial in trials:
            if trial.counts and (value := _collect_certain_metrics(trial).get(metric)) is not None:
                starts.setdefault(trial.instance_id, []).append(value)
        by_point[point] = list(starts.values())
    return by_point


def _group_by_point(records: StudyRecords) -> dict[Point, list[TrialRecord]]:
    by_point: dict[Point, list[TrialRecord]] = {point: [] for point in records.plan.points}
    for trial in settle_turns(records.plan, records.trials):
        if trial.point in by_point:
            by_point[trial.point].append(trial)
    return by_point


def _collect_metrics(trial: TrialRecord) -> dict[str, float]:
    """Return the metrics that are defined, by the keys of DEFINITIONS."""
    values = {**dict(trial.metrics), **dict(trial.memory)}
    return {name: values[name] for name in DEFINITIONS if values.get(name) is not None}


def _collect_certain_metrics(trial: TrialRecord) -> dict[str, float]:
    """Return the metrics without those that a late client may have moved too far."""
    metrics = _collect_metrics(trial)
    for name in list(metrics):
        if RECORDED[name].moves_with in trial.uncertain:
            del metrics[name]
    return metrics


def _summarize_metrics(counted: Sequence[TrialRecord], *, was_running: bool) -> dict[str, Sample]:
    grouped: dict[str, dict[tuple[int, str], list[float]]] = {}
    for trial in counted:
        start = trial.block, trial.instance_id
        for metric, value in _collect_certain_metrics(trial).items():
            grouped.setdefault(metric, {}).setdefault(start, []).append(value)
    # A peak only rises during a start: one value per start.
    for peak in grouped.keys() & {"peak_bytes", "device_peak_bytes"}:
        grouped[peak] = {start: [max(values)] for start, values in grouped[peak].items()}
    return {
        metric: summarize_starts(starts, was_running=was_running)
        for metric, starts in grouped.items()
    }


def _summarize_points(
    records: StudyRecords, speeds_by_group: Mapping[ModelGroup, Speeds], samples: Samples
) -> Iterator[PointSummary]:
    estimates = estimate_all_metrics(samples, records.study.measure.confidence)
    group_of: dict[Point, ModelGroup] = {}
    for group in speeds_by_group:
        group_of |= dict.fromkeys(group.plan.points, group)
    for point, trials in _group_by_point(records).items():
        group = group_of[point]
        summary = _summarize_point(point, trials, group, speeds_by_group[group], estimates[point])
        yield _add_requests(records, summary, trials)


def _summarize_point(
    point: Point,
    trials: Sequence[TrialRecord],
    group: ModelGroup,
    speeds: Speeds,
    estimates: Mapping[str, Estimate],
) -> PointSummary:
    counted = [trial for trial in trials if trial.counts]
    failures = summarize_failures(trials)
    runs = []
    for trial in trials:
        if trial.kind == "measured" and trial.turn == 0:
            runs.append(_make_run(trial, group.plan.study.objectives))
    return PointSummary(
        point=point,
        metrics=dict(estimates),
        runs=tuple(runs),
        outliers=_list_outliers(counted),
        failures=failures,
        engine=summarize_engine(counted),
        is_unfinished=is_unfinished(group, point, counted, speeds.standing, failed=bool(failures)),
    )


def _add_requests(
    records: StudyRecords, point: PointSummary, trials: Sequence[TrialRecord]
) -> PointSummary:
    """Return the summary with the results of its single requests.

    Request rows are read here and not kept, so the rows of one point at a time are in memory.
    """
    requests = pool_requests(records, trials)
    workload = records.study.workload(point.point.workload)
    confidence = records.study.measure.confidence
    was_running = records.was_running(point.point.config)
    update = {
        "tails": estimate_tails(requests, workload, confidence, was_running=was_running),
        "was_running": was_running,
        "streams": summarize_stream(requests),
        "cached": find_cached_prompts(records, point.point),
    }
    full = point.model_copy(update=update)
    judged = [judge_objective(objective, full) for objective in records.study.objectives]
    return full.model_copy(update={"objectives": tuple(judged)})


def _make_run(trial: TrialRecord, objectives: Sequence[Objective]) -> Run:
    why_not = trial.objectives.why_not if trial.objectives else None
    return Run(
        trial_id=trial.id,
        instance_id=trial.instance_id,
        block=trial.block,
        outcome=trial.outcome,
        metrics=_collect_metrics(trial),
        holds=check_objectives(trial, objectives),
        why_not=why_not,
        uncertain=trial.uncertain,
        requests=trial.requests,
        failed_requests=trial.failed_requests,
    )


def _list_outliers(counted: Sequence[TrialRecord]) -> tuple[Outlier, ...]:
    outliers = []
    certain = [_collect_certain_metrics(trial) for trial in counted]
    for metric in FLAGGED_METRICS:
        measured = [index for index, metrics in enumerate(certain) if metric in metrics]
        values = [certain[index][metric] for index in measured]
        for position in list_outlier_positions(values):
            outliers.append(
                Outlier(
                    trial_id=counted[measured[position]].id,
                    metric=metric,
                    value=values[position],
                    median=float(np.median(values)),
                )
            )
    return tuple(outliers)


def list_outlier_positions(values: Sequence[float]) -> list[int]:
    """Return the positions of the values that are far from the median.

    A value is far by the robust z-score and by at least 10 %. Reports flag and show such values,
    and never drop them.
    """
    if len(values) < MIN_TRIALS:
        return []
    series = np.asarray(values, dtype=np.float64)
    median = float(np.median(series))
    distance = np.abs(series - median)
    mad = float(np.median(distance))
    far = _MAD_TO_SD * distance > MODIFIED_Z_LIMIT * mad
    matters = distance > MIN_RELATIVE_DEVIATION * abs(median)
    return [int(position) for position in np.flatnonzero(far & matters)]


def _iter_rankings(
    records: StudyRecords, speeds_by_group: Mapping[ModelGroup, Speeds]
) -> Iterator[Ranking]:
    """Yield the rankings by workload and, within a workload, by model."""
    for workload in records.study.workloads:
        for group, speeds in speeds_by_group.items():
            model = group.model if len(speeds_by_group) > 1 else None
            yield _rank_workload(group, workload.name, speeds).model_copy(update={"model": model})


def _rank_workload(group: ModelGroup, workload: str, speeds: Speeds) -> Ranking:
    """Rank the configs of one workload, with ratios that are above 1 if a config is better."""
    ranking = _rank_without_ratios(group, workload, speeds)
    baseline = ranking.baseline
    entries = []
    for entry in ranking.entries:
        ratio = None
        if baseline is not None and entry.config != baseline:
            ratio = speeds.between(entry.config, baseline, workload)
        same_engine = _find_same_engine_ratio(group, workload, speeds, entry.config)
        entries.append(
            entry.model_copy(update={"ratio_to_baseline": ratio, "same_engine": same_engine})
        )
    return ranking.model_copy(update={"entries": tuple(entries)})


def _find_same_engine_ratio(
    group: ModelGroup, workload: str, speeds: Speeds, config: Config
) -> SameEngineRatio | None:
    """Compare a config with the unquantized model on its engine.

    Return None if that model is the baseline or has no result. A ratio to a baseline on another
    engine, or in another number format, also contains the difference between two engines.
    """
    unquantized = {variant.name for variant in group.plan.variants if variant.is_dense}
    if group.baseline is None or config.variant in unquantized:
        return None
    references = [
        other
        for other in group.configs
        if other.engine == config.engine and other.variant in unquantized
    ]
    if group.baseline in references:
        return None
    for reference in references:
        if (ratio := speeds.between(config, reference, workload)) is not None:
            return SameEngineRatio(unquantized=reference, ratio=ratio)
    return None


def _rank_without_ratios(group: ModelGroup, workload: str, speeds: Speeds) -> Ranking:
    samples = {}
    for point in group.plan.points:
        if point.workload == workload and speeds.metric in speeds.samples[point]:
            samples[point.config] = speeds.samples[point][speeds.metric]
    return rank_configs(
        workload,
        samples,
        speeds.standing,
        baseline=group.baseline,
        confidence=speeds.confidence,
    )
