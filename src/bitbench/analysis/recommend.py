"""Which config to run: the best by the primary metric that certainly meets every limit.

The interval decides, never the mean alone. A limit is met if the whole interval is within it, and
missed if the whole interval is beyond it. Anything else is inconclusive. One start decides nothing
about the next one, as in `gate`: if each config has one start, none is chosen. A metric that was
not measured meets no limit.
"""

from collections.abc import Iterable, Sequence
from math import expm1

from bitbench.analysis.objectives import CONTAINS, judge_mean_objective, judge_objective
from bitbench.analysis.quality import KL, RISE, has_quantized_cache, is_changed_by_cache_only
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
    RankingEntry,
    StudySummary,
)
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from bitbench.study.plan import Config
from bitbench.study.study import Study
from bitbench.util.errors import UsageError

# The first that the study has: device memory, else process memory.
MEMORIES = ("device_peak_bytes", "peak_bytes")


def recommend(
    summary: StudySummary,
    limits: Limits,
    *,
    workloads: Sequence[str] = (),
    engines: Sequence[str] = (),
) -> Recommendation:
    """Return the best config of each workload that meets the limits.

    `workloads` and `engines` select a part of the study, and all if empty. The baseline stays the
    baseline of the study, whatever its engine.
    """
    setups = _select_setups(summary, engines)
    memory = _choose_memory_metric(summary)
    choices = []
    for part in summary.by_model:
        for ranking in _select_rankings(part, workloads):
            judged = []
            for point in _sort_points(part, ranking):
                if point.point.config.engine in setups:
                    judged.append(_judge_point(part, point, ranking, limits, memory))
            if not judged:
                judged = _list_refused(part, ranking.workload, setups)
            choices.append(_choose_config(part, ranking, judged, limits))
    return Recommendation(
        study=summary.study.name,
        limits=limits,
        primary_metric=summary.definitions[summary.primary_metric],
        memory_name=summary.definitions[memory].name,
        choices=tuple(choices),
        notes=tuple(_iter_notes(summary, limits)),
    )


def _choose_memory_metric(summary: StudySummary) -> str:
    for name in MEMORIES:
        if any(name in point.metrics for point in summary.points):
            return name
    return MEMORIES[-1]


def _select_rankings(summary: StudySummary, workloads: Sequence[str]) -> list[Ranking]:
    """Return the rankings of these workloads, or all. Raise UsageError for an unknown workload."""
    by_workload = {ranking.workload: ranking for ranking in summary.rankings}
    for name in workloads:
        if name not in by_workload:
            names = ", ".join(by_workload) or "none"
            raise UsageError(f"this study has no workload {name}; it has {names}")
    selected = [by_workload[name] for name in dict.fromkeys(workloads)]
    return selected or list(by_workload.values())


def _select_setups(summary: StudySummary, engines: Sequence[str]) -> set[str]:
    """Return the names of the setups of these engines, or all.

    Raise UsageError for an unknown engine.
    """
    selected: set[str] = set()
    setups = summary.study.engines
    for engine in engines:
        matching = [setup.name for setup in setups if engine in (setup.name, setup.engine)]
        if not matching:
            names = ", ".join(setup.name for setup in setups)
            raise UsageError(f"this study has no engine {engine}; it has {names}")
        selected.update(matching)
    return selected or {setup.name for setup in setups}


def _sort_points(summary: StudySummary, ranking: Ranking) -> list[PointSummary]:
    """Return the points of a workload in the order of its ranking, with unranked points last."""
    rank = {entry.config: number for number, entry in enumerate(ranking.entries)}
    return sorted(
        summary.list_points(ranking.workload),
        key=lambda point: rank.get(point.point.config, len(rank)),
    )


def _find_entry(ranking: Ranking, config: Config) -> RankingEntry | None:
    return next((entry for entry in ranking.entries if entry.config == config), None)


def _find_quality(summary: StudySummary, config: Config) -> ConfigQuality | None:
    return next((quality for quality in summary.quality if quality.config == config), None)


def _judge_point(
    summary: StudySummary, point: PointSummary, ranking: Ranking, limits: Limits, memory: str
) -> Judged:
    config = point.point.config
    entry = _find_entry(ranking, config)
    failed = [run for run in point.runs if run.outcome not in (Outcome.OK, *NOT_THE_ENGINES)]
    if entry is None:
        causes = []
        for group in point.failures:
            causes.append(f"{group.failure.outcome.value}: {group.failure.cause}")
        return Judged(
            config=config,
            figure=None,
            trials=len(point.runs),
            failed_trials=len(failed),
            why_no_result="; ".join(dict.fromkeys(causes)) or "not run yet",
        )
    quality = _find_quality(summary, config)
    return Judged(
        config=config,
        figure=point.metrics[ranking.metric],
        ratio_to_baseline=entry.ratio_to_baseline,
        same_engine=entry.same_engine,
        memory=point.metrics.get(memory),
        findings=tuple(_iter_findings(summary, point, limits, memory)),
        trials=len(point.runs),
        failed_trials=len(failed),
        quality_doubt=_describe_quality_doubt(summary, config, quality),
        is_flagged=quality is not None and quality.flagged,
    )


def _describe_quality_doubt(
    summary: StudySummary, config: Config, quality: ConfigQuality | None
) -> str:
    """Return what a reader must know about a config's quality, even without a limit on it.

    The text is empty without doubts.
    """
    if not has_quantized_cache(config, summary.study):
        is_reference = next(
            other.is_reference for other in summary.configs if other.config == config
        )
        if is_reference:
            return ""
    if quality is not None:
        if quality.flagged:
            return f"is flagged: {quality.reason}"
        if quality.state is QualityState.UNDECIDED:
            return f"is undecided: {quality.reason}"
        if quality.is_known:
            return ""
    return "is unknown" if summary.quality or summary.imported_from else "was not measured"


def _list_refused(summary: StudySummary, workload: str, setups: set[str]) -> list[Judged]:
    """Return the configs that were refused on a workload, with the reasons."""
    judged = []
    for refusal in summary.refusals:
        config = refusal.point.config
        if refusal.point.workload == workload and config.engine in setups:
            reason = f"not supported: {refusal.reason}"
            judged.append(Judged(config=config, figure=None, why_no_result=reason))
    return judged


def _iter_findings(
    summary: StudySummary, point: PointSummary, limits: Limits, memory: str
) -> Iterable[Finding]:
    for objective in limits.objectives:
        yield judge_objective(objective, point)
    if limits.memory_bytes is not None:
        limit = float(limits.memory_bytes)
        peak = point.metrics.get(memory)
        verdict, reason = judge_mean_objective(peak, limit)
        yield Finding(
            name=MEMORY, unit="bytes", limit=limit, estimate=peak, verdict=verdict, reason=reason
        )
    if limits.quality_loss is not None:
        yield _judge_quality(summary, point.point.config, limits.quality_loss)


def _judge_quality(summary: StudySummary, config: Config, limit: float) -> Finding:
    """Judge the rise of perplexity over the same unquantized model on the same engine.

    The study's baseline itself has lost nothing, unless it is quantized and measured against
    another config. A config that is flagged without an estimate had no finite log-probabilities.
    The same weights with a quantized KV cache are judged by their divergence: see `_loss`.
    """
    quality = _find_quality(summary, config)
    loss = _find_quality_loss(quality, summary.study) if quality else None
    is_whole = quality is None or (not quality.flagged and quality.baseline in (None, config))
    verdict = Verdict.INCONCLUSIVE
    reason = ""
    if not summary.quality:
        reason = QUALITY_NOT_MEASURED
    elif config == summary.baseline and is_whole:
        loss = Estimate(value=0.0)
        verdict = Verdict.MET
    elif quality is not None and quality.flagged and loss is None:
        verdict = Verdict.MISSED
        reason = quality.reason or "it is flagged"
    elif loss is None:
        cause = (quality.cause or quality.reason) if quality else None
        reason = f"its quality is unknown ({cause})" if cause else "its quality is unknown"
    elif loss.interval is None:
        reason = "too few windows for an interval"
    elif (verdict := check_against_limit(loss, limit)) is Verdict.INCONCLUSIVE:
        reason = CONTAINS
    return Finding(
        name=QUALITY_LOSS, unit="share", limit=limit, estimate=loss, verdict=verdict, reason=reason
    )


def _find_quality_loss(quality: ConfigQuality, study: Study) -> Estimate | None:
    """Return the rise of perplexity, or None if it was not measured.

    For the same weights with a quantized KV cache, return e^KL - 1. This is the rise that their
    mean divergence means on text that the baseline itself would write. It is far less noisy than
    the rise on a text from elsewhere, which may become more likely by chance.
    """
    if not is_changed_by_cache_only(quality.config, quality.baseline, study):
        return quality.estimates.get(RISE)
    divergence = quality.estimates.get(KL)
    if divergence is None:
        return None
    low = None if divergence.low is None else expm1(divergence.low)
    high = None if divergence.high is None else expm1(divergence.high)
    return Estimate(
        value=expm1(divergence.value), low=low, high=high, confidence=divergence.confidence
    )


def _choose_config(
    summary: StudySummary, ranking: Ranking, judged: Sequence[Judged], limits: Limits
) -> Choice:
    """Choose the fastest config that meets all limits.

    Without a limit on quality, the limits of the study exclude flagged configs.
    """
    met = []
    for candidate in judged:
        is_excluded = limits.quality_loss is None and candidate.is_flagged
        if candidate.verdict is Verdict.MET and not is_excluded:
            met.append(candidate.config)
    starts_needed = ranking.starts_needed if met else None
    chosen = None
    undecided = []
    if met and starts_needed is None:
        chosen = met[0]
        entry = _find_entry(ranking, chosen)
        rivals = entry.undecided_with if entry else ()
        # A config without a rank is not significantly different from any other.
        unranked = {other.config for other in ranking.entries if other.rank_low is None}
        for config in met[1:]:
            if config in rivals or not unranked.isdisjoint((config, chosen)):
                undecided.append(config)
    return Choice(
        workload=ranking.workload,
        model=ranking.model,
        baseline=summary.baseline,
        judged=tuple(judged),
        chosen=chosen,
        undecided=tuple(undecided),
        starts_needed=starts_needed,
    )


def _iter_notes(summary: StudySummary, limits: Limits) -> Iterable[str]:
    """Yield what a reader must know about the limits and the figures."""
    if any(objective.statistic != "mean" for objective in limits.objectives):
        yield (
            "A percentile is that of the requests of all trials together. It is met only where its "
            "interval has an upper end, and called by its name where ten requests or more lie "
            "beyond it (p99: 1,000); with fewer, the slowest is shown."
        )
    if summary.imported_from is not None:
        yield "The figures were imported: they follow the other tool's definitions."
