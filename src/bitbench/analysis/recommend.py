"""Which config to run: the best by the primary metric among those that meet every limit with confidence.

A limit is held against the interval, never against the mean alone: within it as a whole is met, beyond it as a whole
is broken, anything else is inconclusive. One start says nothing of the next one and decides nothing, as in `gate`: if
each config has one, none is chosen. A figure that was not measured meets no limit.
"""

from collections.abc import Iterable, Sequence
from math import expm1

from bitbench.analysis.objectives import CONTAINS, judge_mean_objective, judge_objective
from bitbench.analysis.quality import KL, RISE, has_quantized_cache, loses_quality_by_cache
from bitbench.analysis.results.estimate import Estimate, Finding, Verdict, check_against_limit
from bitbench.analysis.results.recommendation import (
    MEMORY,
    QUALITY_LOSS,
    QUALITY_NOT_MEASURED,
    Choice,
    Judged,
    Limits,
    Recommendation,
)
from bitbench.analysis.results.summary import (
    ConfigQuality,
    PointSummary,
    QualityState,
    Ranking,
    StudySummary,
)
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from bitbench.study.plan import Config
from bitbench.study.study import Study
from bitbench.util.errors import UsageError

MEMORIES = ("device_peak_bytes", "peak_bytes")  # that of the devices where there are any


def recommend(
    summary: StudySummary,
    limits: Limits,
    *,
    workloads: Sequence[str] = (),
    engines: Sequence[str] = (),
) -> Recommendation:
    """`workloads`, `engines`: all unless given. The baseline stays that of the study, whatever its engine."""
    setups = _wanted_setups(summary, engines)
    memory = next(
        (name for name in MEMORIES if any(name in point.metrics for point in summary.points)),
        MEMORIES[-1],
    )
    choices = []
    for part in summary.by_model:
        for ranking in _wanted(part, workloads):
            judged = [
                _judge(part, point, ranking, limits, memory=memory)
                for point in _in_order(part, ranking)
                if point.point.config.engine in setups
            ] or [
                judged
                for judged in _refused(part, ranking.workload)
                if judged.config.engine in setups
            ]
            choices.append(_choose(part, ranking, judged, limits))
    return Recommendation(
        study=summary.study.name,
        limits=limits,
        primary_metric=summary.definitions[summary.primary_metric],
        memory_name=summary.definitions[memory].name,
        choices=tuple(choices),
        notes=tuple(_notes(summary, limits)),
    )


def _wanted(summary: StudySummary, workloads: Sequence[str]) -> list[Ranking]:
    known = {ranking.workload: ranking for ranking in summary.rankings}
    missing = [name for name in workloads if name not in known]
    if missing:
        raise UsageError(
            f"this study has no workload {missing[0]}; it has {', '.join(known) or 'none'}"
        )
    return [known[name] for name in dict.fromkeys(workloads)] or list(known.values())


def _wanted_setups(summary: StudySummary, engines: Sequence[str]) -> set[str]:
    setups = summary.study.engines
    missing = [
        name for name in engines if not any(name in (setup.name, setup.engine) for setup in setups)
    ]
    if missing:
        known = ", ".join(setup.name for setup in setups)
        raise UsageError(f"this study has no engine {missing[0]}; it has {known}")
    return {
        setup.name
        for setup in setups
        if not engines or setup.name in engines or setup.engine in engines
    }


def _in_order(summary: StudySummary, ranking: Ranking) -> list[PointSummary]:
    place = {entry.config: number for number, entry in enumerate(ranking.entries)}
    return sorted(
        summary.points_of(ranking.workload),
        key=lambda point: place.get(point.point.config, len(place)),
    )


def _judge(
    summary: StudySummary, point: PointSummary, ranking: Ranking, limits: Limits, *, memory: str
) -> Judged:
    config = point.point.config
    entry = next((entry for entry in ranking.entries if entry.config == config), None)
    failed = [run for run in point.runs if run.outcome not in (Outcome.OK, *NOT_THE_ENGINES)]
    if entry is None:
        causes = dict.fromkeys(
            f"{group.failure.outcome.value}: {group.failure.cause}" for group in point.failures
        )
        why = "; ".join(causes) or "not run yet"
        return Judged(
            config=config,
            figure=None,
            trials=len(point.runs),
            failed_trials=len(failed),
            why_no_result=why,
        )
    return Judged(
        config=config,
        figure=point.metrics[ranking.metric],
        ratio_to_baseline=entry.ratio_to_baseline,
        same_engine=entry.same_engine,
        memory=point.metrics.get(memory),
        findings=tuple(_findings(summary, point, limits, memory)),
        trials=len(point.runs),
        failed_trials=len(failed),
        quality_doubt=_quality_doubt(summary, config),
        is_flagged=any(quality.flagged for quality in summary.quality if quality.config == config),
    )


def _quality_doubt(summary: StudySummary, config: Config) -> str:
    """What is to be known beside a speed, also where no limit was asked for."""
    rounds_its_cache = has_quantized_cache(config, summary.study)
    if not rounds_its_cache and next(
        own.is_reference for own in summary.configs if own.config == config
    ):
        return ""
    found = next((quality for quality in summary.quality if quality.config == config), None)
    if found is not None and found.flagged:
        return f"is flagged: {found.reason}"
    if found is not None and found.state is QualityState.UNDECIDED:
        return f"is undecided: {found.reason}"
    if found is not None and found.is_known:
        return ""
    return "is unknown" if summary.quality or summary.imported_from else "was not measured"


def _refused(summary: StudySummary, workload: str) -> list[Judged]:
    """Where no config was tried on a workload, why not."""
    return [
        Judged(
            config=refusal.point.config,
            figure=None,
            why_no_result=f"not supported: {refusal.reason}",
        )
        for refusal in summary.refusals
        if refusal.point.workload == workload
    ]


def _findings(
    summary: StudySummary, point: PointSummary, limits: Limits, memory: str
) -> Iterable[Finding]:
    yield from (judge_objective(objective, point) for objective in limits.objectives)
    if limits.memory_bytes is not None:
        limit, known = float(limits.memory_bytes), point.metrics.get(memory)
        verdict, reason = judge_mean_objective(known, limit)
        yield Finding(
            name=MEMORY, unit="bytes", limit=limit, estimate=known, verdict=verdict, reason=reason
        )
    if limits.quality_loss is not None:
        yield _quality(summary, point.point.config, limits.quality_loss)


def _quality(summary: StudySummary, config: Config, limit: float) -> Finding:
    """The rise of perplexity over that of the same model without quantization on the same engine.

    The study's baseline itself has lost nothing, unless it is quantized and measured against another. What is flagged
    without a figure gave no finite numbers. The same weights with a quantized KV cache are judged by their divergence:
    see `_loss`.
    """
    found = next((quality for quality in summary.quality if quality.config == config), None)
    known = _loss(found, summary.study) if found else None
    is_whole = found is None or (not found.flagged and found.baseline in (None, config))
    verdict, reason = Verdict.INCONCLUSIVE, ""
    if not summary.quality:
        reason = QUALITY_NOT_MEASURED
    elif config == summary.baseline and is_whole:
        known, verdict = Estimate(value=0.0), Verdict.MET
    elif found is not None and found.flagged and known is None:
        verdict, reason = Verdict.MISSED, found.reason or "it is flagged"
    elif known is None:
        cause = (found.cause or found.reason) if found else None
        reason = f"its quality is unknown{f' ({cause})' if cause else ''}"
    elif known.interval is None:
        reason = "too few windows for an interval"
    elif (verdict := check_against_limit(known, limit)) is Verdict.INCONCLUSIVE:
        reason = CONTAINS
    return Finding(
        name=QUALITY_LOSS, unit="share", limit=limit, estimate=known, verdict=verdict, reason=reason
    )


def _loss(found: ConfigQuality, study: Study) -> Estimate | None:
    """The rise of perplexity; of the same weights with a quantized KV cache, the rise that their mean divergence is on
    text that the baseline itself would write: e^KL - 1. It is far less noisy than that on a text from elsewhere, which
    may become likelier by chance."""
    if not loses_quality_by_cache(found.config, found.baseline, study):
        return found.estimates.get(RISE)
    known = found.estimates.get(KL)
    if known is None:
        return None
    low, high = (None if end is None else expm1(end) for end in (known.low, known.high))
    return Estimate(value=expm1(known.value), low=low, high=high, confidence=known.confidence)


def _choose(
    summary: StudySummary, ranking: Ranking, judged: Sequence[Judged], limits: Limits
) -> Choice:
    """Choose the fastest that meets all limits. Without a limit on quality those of the study rule out."""
    met = [
        own.config
        for own in judged
        if own.verdict is Verdict.MET and (limits.quality_loss is not None or not own.is_flagged)
    ]
    is_undecided = ranking.starts_needed is not None and bool(met)
    chosen = met[0] if met and not is_undecided else None
    entry = next((entry for entry in ranking.entries if entry.config == chosen), None)
    unranked = {
        other.config for other in ranking.entries if other.rank_low is None
    }  # not told apart from any
    rivals = () if entry is None else entry.undecided_with
    undecided = tuple(
        config
        for config in met[1:]
        if config in rivals or not unranked.isdisjoint((config, met[0]))
    )
    return Choice(
        workload=ranking.workload,
        model=ranking.model,
        baseline=summary.baseline,
        judged=tuple(judged),
        chosen=chosen,
        undecided=() if is_undecided else undecided,
        starts_needed=ranking.starts_needed if is_undecided else None,
    )


def _notes(summary: StudySummary, limits: Limits) -> Iterable[str]:
    if any(objective.statistic != "mean" for objective in limits.objectives):
        yield (
            "A percentile is that of the requests of all trials together. It is met only where its interval has an "
            "upper end, and called by its name where ten requests or more lie beyond it (p99: 1,000); with fewer, the "
            "slowest is shown."
        )
    if summary.imported_from is not None:
        yield "The figures were imported: they follow the other tool's definitions."
