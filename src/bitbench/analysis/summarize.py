"""From the records of a study to everything a report may say."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bitbench.analysis.absolute import Samples, absolute_estimates
from bitbench.analysis.configs import summarize_config, summarize_engine, summarize_failures
from bitbench.analysis.intervals import Sample, sample_of_starts
from bitbench.analysis.objectives import judge_objective, objectives_hold
from bitbench.analysis.precision import is_unfinished
from bitbench.analysis.quality import DEFINITIONS as QUALITY_DEFINITIONS
from bitbench.analysis.quality import summarize_quality
from bitbench.analysis.ranking import (
    ModelGroup,
    rank_configs,
    ranking_model_group,
    ranking_model_groups,
)
from bitbench.analysis.rate_search import rate_search_answer, rate_trials
from bitbench.analysis.rejections import summarize_rejections
from bitbench.analysis.requests import pooled_requests, request_tails, stream_summary
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
from bitbench.analysis.sequential import Speeds, baseline_of, primary_metric_of
from bitbench.analysis.trial import DEFINITIONS, RECORDED, cached_prompts
from bitbench.analysis.turns import settle_turns
from bitbench.feature import Offer, feature_errors_as_warnings, report_parts
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import TrialRecord
from bitbench.study.base import Record
from bitbench.study.metrics import METRICS, PRIMARY_METRICS
from bitbench.study.objective import Objective
from bitbench.study.plan import Config, Point

# Looked at for outliers: those a primary metric can be. The others follow from them or are extremes themselves.
FLAGGED_METRICS = tuple(METRICS[name].column for name in PRIMARY_METRICS)

MODIFIED_Z_LIMIT = 3.5  # Iglewicz and Hoaglin (1993), for 0.6745 · |x − median| / MAD
_MAD_TO_SD = 0.6745  # third quartile of the normal distribution: MAD / sd

# The MAD of three values is the distance of the nearer neighbour to the median, so two values that nearly coincide
# make any third one look extreme: more than one in four triples of pure noise pass the z limit. A flag must also
# matter. 10 % is five times the 2 % relative sd between trials that calls for no attention; fewer than one point in
# 10,000 of such noise, with three to ten trials, is flagged.
MIN_RELATIVE_DEVIATION = 0.10

MIN_TRIALS = 3  # of two values neither is the odd one


def summarize(of: StudyRecords) -> StudySummary:
    """Summarize a study, finished or not. Only measured trials with outcome ok count; the rest appear as outcomes."""
    plan, samples = of.plan, samples_by_point(of)
    estimates = absolute_estimates(samples, of.study.measure.confidence)
    fields = {field: _speeds(of, field, samples) for field in ranking_model_groups(plan)}
    of_point = {
        point: (field, speeds) for field, speeds in fields.items() for point in field.plan.points
    }
    variants = {variant.name: variant for variant in plan.variants}
    search = of.lock.search
    return StudySummary(
        study=plan.study,
        primary_metric=primary_metric_of(plan).metric,
        baseline=baseline_of(plan),
        definitions=DEFINITIONS,
        points=tuple(
            _with_requests(
                of, _summarize_point(point, trials, *of_point[point], estimates[point]), trials
            )
            for point, trials in _by_point(of).items()
        ),
        configs=tuple(
            summarize_config(config, variants.get(config.variant), of.instances, of.trials)
            for config in plan.configs
        ),
        rankings=_rankings(of, fields),
        models=_models(fields) if len(fields) > 1 else (),
        refusals=plan.refusals,
        imported_from=plan.imported_from,
        expectations=plan.expectations,
        level=plan.level,
        in_float32=plan.in_float32,
        search=rate_search_answer(rate_trials(plan.study, of.trials), search) if search else None,
        quality=summarize_quality(of),
        quality_definitions=QUALITY_DEFINITIONS if plan.study.quality is not None else {},
        quality_refusals=plan.quality_refusals,
        rounded_before=plan.rounded_before,
        rejections=summarize_rejections(
            of,
            {field.baseline: speeds for field, speeds in fields.items()},
            {field.baseline: field.configs for field in fields},
        ),
        parts=dict(_parts(of)),
    )


def _parts(of: StudyRecords) -> Iterator[tuple[str, Record]]:
    """What features compute from the records."""
    for part, feature in report_parts():
        with feature_errors_as_warnings(feature):
            computed = Offer(feature, part.compute).load()(of)
            if computed is not None:
                yield part.name, computed


def summarize_speeds(of: StudyRecords, config: Config) -> Speeds:
    """Of the configs that are compared with this one."""
    return _speeds(of, ranking_model_group(of.plan, config), samples_by_point(of))


def _speeds(of: StudyRecords, field: ModelGroup, samples: Samples) -> Speeds:
    return Speeds(
        field.standing(of.trials, of.starts_and_quality), samples, of.study.measure.confidence
    )


def _models(fields: Iterable[ModelGroup]) -> tuple[ComparedModel, ...]:
    return tuple(
        ComparedModel(name=field.model, configs=field.configs, baseline=field.baseline)
        for field in fields
    )


def samples_by_point(of: StudyRecords) -> dict[Point, dict[str, Sample]]:
    """Each figure that counts, by point."""
    return {
        point: _samples(
            [trial for trial in trials if trial.counts], was_running=of.was_running(point.config)
        )
        for point, trials in _by_point(of).items()
    }


def sample_values_by_start(of: StudyRecords, metric: str) -> dict[Point, list[list[float]]]:
    """One figure of the trials that count, in groups of one start."""
    found: dict[Point, list[list[float]]] = {}
    for point, trials in _by_point(of).items():
        starts: dict[str, list[float]] = {}
        for trial in trials:
            if trial.counts and (value := _certain_metrics(trial).get(metric)) is not None:
                starts.setdefault(trial.instance_id, []).append(value)
        found[point] = list(starts.values())
    return found


def _by_point(of: StudyRecords) -> dict[Point, list[TrialRecord]]:
    of_point: dict[Point, list[TrialRecord]] = {point: [] for point in of.plan.points}
    for trial in settle_turns(of.plan, of.trials):
        if trial.point in of_point:
            of_point[trial.point].append(trial)
    return of_point


def _metrics(record: TrialRecord) -> dict[str, float]:
    """Those that are defined, by the keys of DEFINITIONS."""
    known = {**dict(record.metrics), **dict(record.memory)}
    return {name: known[name] for name in DEFINITIONS if known.get(name) is not None}


def _certain_metrics(record: TrialRecord) -> dict[str, float]:
    """Without those that a late client may have moved too far."""
    return {
        name: value
        for name, value in _metrics(record).items()
        if RECORDED[name].moves_with not in record.uncertain
    }


def _samples(counted: Sequence[TrialRecord], *, was_running: bool) -> dict[str, Sample]:
    grouped: dict[str, dict[tuple[int, str], list[float]]] = {}
    for record in counted:
        start = record.block, record.instance_id
        for metric, value in _certain_metrics(record).items():
            grouped.setdefault(metric, {}).setdefault(start, []).append(value)
    for peak in grouped.keys() & {
        "peak_bytes",
        "device_peak_bytes",
    }:  # it only rises: one value per start
        grouped[peak] = {start: [max(values)] for start, values in grouped[peak].items()}
    return {
        metric: sample_of_starts(starts, was_running=was_running)
        for metric, starts in grouped.items()
    }


def _summarize_point(
    point: Point,
    records: Sequence[TrialRecord],
    field: ModelGroup,
    speeds: Speeds,
    estimates: Mapping[str, Estimate],
) -> PointSummary:
    plan = field.plan
    counted = [record for record in records if record.counts]
    failures = summarize_failures(records)
    return PointSummary(
        point=point,
        metrics=dict(estimates),
        runs=tuple(
            _run(record, plan.study.objectives)
            for record in records
            if record.kind == "measured" and record.turn == 0
        ),
        outliers=_outliers(counted),
        failures=failures,
        engine=summarize_engine(counted),
        is_unfinished=is_unfinished(field, point, counted, speeds.standing, failed=bool(failures)),
    )


def _with_requests(
    of: StudyRecords, point: PointSummary, trials: Sequence[TrialRecord]
) -> PointSummary:
    """And what its single requests say. Rows are read here and not kept: those of one point are in memory at a time."""
    requests = pooled_requests(of, trials)
    workload, confidence = of.study.workload(point.point.workload), of.study.measure.confidence
    was_running = of.was_running(point.point.config)
    found = request_tails(requests, workload, confidence, was_running=was_running)
    seen = {"tails": found, "was_running": was_running, "streams": stream_summary(requests)}
    full = point.model_copy(update={**seen, "cached": cached_prompts(of, point.point)})
    judged = tuple(judge_objective(objective, full) for objective in of.study.objectives)
    return full.model_copy(update={"objectives": judged})


def _run(record: TrialRecord, objectives: Sequence[Objective]) -> Run:
    return Run(
        trial_id=record.id,
        instance_id=record.instance_id,
        block=record.block,
        outcome=record.outcome,
        metrics=_metrics(record),
        holds=objectives_hold(record, objectives),
        why_not=record.objectives.why_not if record.objectives else None,
        uncertain=record.uncertain,
        requests=record.requests,
        failed_requests=record.failed_requests,
    )


def _outliers(counted: Sequence[TrialRecord]) -> tuple[Outlier, ...]:
    found = []
    for metric in FLAGGED_METRICS:
        known = [
            (record, value)
            for record in counted
            if (value := _certain_metrics(record).get(metric)) is not None
        ]
        values = [value for _, value in known]
        found += [
            Outlier(
                trial_id=known[place][0].id,
                metric=metric,
                value=values[place],
                median=float(np.median(values)),
            )
            for place in summarize_outliers(values)
        ]
    return tuple(found)


def summarize_outliers(values: Sequence[float]) -> list[int]:
    """Positions of the values that are far from the median, by the robust z-score and by at least 10 %: they are
    flagged and shown, never dropped."""
    if len(values) < MIN_TRIALS:
        return []
    series = np.asarray(values, dtype=np.float64)
    median = float(np.median(series))
    distance = np.abs(series - median)
    mad = float(np.median(distance))
    far = _MAD_TO_SD * distance > MODIFIED_Z_LIMIT * mad
    matters = distance > MIN_RELATIVE_DEVIATION * abs(median)
    return [int(place) for place in np.flatnonzero(far & matters)]


def _rankings(of: StudyRecords, fields: Mapping[ModelGroup, Speeds]) -> tuple[Ranking, ...]:
    """By workload, and in it by model."""
    return tuple(
        _rank(field, workload.name, speeds).model_copy(
            update={"model": field.model if len(fields) > 1 else None}
        )
        for workload in of.study.workloads
        for field, speeds in fields.items()
    )


def _rank(field: ModelGroup, workload: str, speeds: Speeds) -> Ranking:
    """Rank the configs of one workload, with ratios that are above 1 where a config is better."""
    ranking = _ranked(field, workload, speeds)
    baseline = ranking.baseline
    entries = []
    for entry in ranking.entries:
        ratio = None
        if baseline is not None and entry.config != baseline:
            ratio = speeds.between(entry.config, baseline, workload)
        same_engine = _same_engine_ratio(field, workload, speeds, entry.config)
        entries.append(
            entry.model_copy(update={"ratio_to_baseline": ratio, "same_engine": same_engine})
        )
    return ranking.model_copy(update={"entries": tuple(entries)})


def _same_engine_ratio(
    field: ModelGroup, workload: str, speeds: Speeds, config: Config
) -> SameEngineRatio | None:
    """Compare a config with the unquantized model on its engine; None if that is the baseline or has no result.

    A baseline on another engine, or in another number format, says how two engines differ as well.
    """
    unquantized = {variant.name for variant in field.plan.variants if variant.is_dense}
    if field.baseline is None or config.variant in unquantized:
        return None
    own = [
        other
        for other in field.configs
        if other.engine == config.engine and other.variant in unquantized
    ]
    if field.baseline in own:
        return None
    for other in own:
        if (ratio := speeds.between(config, other, workload)) is not None:
            return SameEngineRatio(unquantized=other, ratio=ratio)
    return None


def _ranked(field: ModelGroup, workload: str, speeds: Speeds) -> Ranking:
    of_workload = [point for point in field.plan.points if point.workload == workload]
    return rank_configs(
        workload,
        {
            point.config: own[speeds.metric]
            for point in of_workload
            if speeds.metric in (own := speeds.samples[point])
        },
        speeds.standing,
        baseline=field.baseline,
        confidence=speeds.confidence,
    )
