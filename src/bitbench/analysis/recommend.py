"""Which config to run: the best by the primary metric among those that meet every limit with confidence.

A limit is held against the interval, never against the mean alone: within it as a whole is met, beyond it as a whole
is broken, anything else is inconclusive. An interval that rests on one start knows nothing of the next one and decides
nothing, as in `gate`. A figure that was not measured meets no limit.
"""

from collections.abc import Iterable, Sequence
from math import expm1, inf

from bitbench.analysis.quality import KL, RISE, has_quantized_cache, loses_by_cache
from bitbench.analysis.results.recommendation import (
    MEMORY,
    QUALITY_LOSS,
    Choice,
    Cost,
    Finding,
    Judged,
    Limits,
    LimitVerdict,
    Recommendation,
)
from bitbench.analysis.results.summary import (
    ConfigQuality,
    Estimate,
    Interval,
    PointSummary,
    QualityEstimate,
    Ranking,
    StudySummary,
)
from bitbench.analysis.results.tails import JudgedObjective, ObjectiveVerdict
from bitbench.analysis.service_levels import CONTAINS, ONE_START, judge_objective
from bitbench.records.trial import NOT_THE_ENGINES, Outcome
from bitbench.study.plan import Config
from bitbench.study.study import Study
from bitbench.util.errors import UsageError

MEMORIES = ("device_peak_bytes", "peak_bytes")  # that of the devices where there are any
STANDINGS = {
    ObjectiveVerdict.MET: LimitVerdict.MET,
    ObjectiveVerdict.MISSED: LimitVerdict.BROKEN,
    ObjectiveVerdict.INCONCLUSIVE: LimitVerdict.UNSURE,
}


def recommend(
    summary: StudySummary,
    limits: Limits,
    *,
    workloads: Sequence[str] = (),
    engines: Sequence[str] = (),
    price_per_hour: float | None = None,
) -> Recommendation:
    """`workloads`, `engines`: all unless given. The baseline stays that of the study, whatever its engine."""
    on_engine = _on_engines(summary, engines)
    memory = next((name for name in MEMORIES if any(name in point.metrics for point in summary.points)), MEMORIES[-1])
    choices = []
    for part in summary.by_model:
        for ranking in _wanted(part, workloads):
            judged = [
                _judge(part, point, ranking, limits, memory=memory, price=price_per_hour)
                for point in _in_order(part, ranking)
                if point.point.config in on_engine
            ] or [one for one in _refused(part, ranking.workload) if one.config in on_engine]
            choices.append(_choose(part, ranking, judged))
    return Recommendation(
        study=summary.study.name,
        limits=limits,
        primary_metric=summary.definitions[summary.primary_metric],
        memory_name=summary.definitions[memory].name,
        price_per_hour=price_per_hour,
        choices=tuple(choices),
        for_all=() if summary.models else _for_all(choices),
        notes=tuple(_notes(summary, limits, choices)),
    )


def _wanted(summary: StudySummary, workloads: Sequence[str]) -> list[Ranking]:
    known = {ranking.workload: ranking for ranking in summary.rankings}
    missing = [name for name in workloads if name not in known]
    if missing:
        raise UsageError(f"this study has no workload {missing[0]}; it has {', '.join(known) or 'none'}")
    return [known[name] for name in dict.fromkeys(workloads)] or list(known.values())


def _on_engines(summary: StudySummary, engines: Sequence[str]) -> set[Config]:
    tried = [point.point.config for point in summary.points]
    configs = {*tried, *(refusal.point.config for refusal in summary.refusals)}
    setups = summary.study.engines
    missing = [name for name in engines if not any(name in (one.name, one.engine) for one in setups)]
    if missing:
        known = ", ".join(one.name for one in setups)
        raise UsageError(f"this study has no engine {missing[0]}; it has {known}")
    wanted = {setup.name for setup in setups if not engines or setup.name in engines or setup.engine in engines}
    return {config for config in configs if config.engine in wanted}


def _in_order(summary: StudySummary, ranking: Ranking) -> list[PointSummary]:
    place = {entry.config: number for number, entry in enumerate(ranking.entries)}
    return sorted(summary.points_of(ranking.workload), key=lambda point: place.get(point.point.config, len(place)))


def _judge(
    summary: StudySummary,
    point: PointSummary,
    ranking: Ranking,
    limits: Limits,
    *,
    memory: str,
    price: float | None,
) -> Judged:
    config = point.point.config
    entry = next((one for one in ranking.entries if one.config == config), None)
    failed = [run for run in point.runs if run.outcome not in (Outcome.OK, *NOT_THE_ENGINES)]
    if entry is None:
        causes = dict.fromkeys(f"{group.failure.outcome.value}: {group.failure.cause}" for group in point.failures)
        why = "; ".join(causes) or "not run yet"
        return Judged(config=config, figure=None, trials=len(point.runs), failed_trials=len(failed), why_no_result=why)
    speed = point.metrics.get("output_throughput")
    confirmed = ranking.confirmed if ranking.confirmed and ranking.confirmed.config == config else None
    reserve = next(one.memory.kv_cache_bytes for one in summary.configs if one.config == config)
    return Judged(
        config=config,
        figure=point.metrics[ranking.metric],
        ratio_to_baseline=entry.ratio_to_baseline,
        confirmed_ratio=confirmed.ratio if confirmed else None,
        memory=point.metrics.get(memory),
        kv_cache_bytes=reserve.mean if reserve else None,
        findings=tuple(_findings(summary, point, limits, memory)),
        cost=_cost(speed, price) if speed is not None and price is not None else None,
        trials=len(point.runs),
        failed_trials=len(failed),
        quality_doubt=_quality_doubt(summary, config),
        is_flagged=any(one.flagged for one in summary.quality if one.config == config),
    )


def _quality_doubt(summary: StudySummary, config: Config) -> str:
    """What is to be known beside a speed, also where no limit was asked for."""
    rounds_its_cache = has_quantized_cache(config, summary.study)
    if not rounds_its_cache and next(one.is_reference for one in summary.configs if one.config == config):
        return ""
    found = next((one for one in summary.quality if one.config == config), None)
    if found is not None and found.flagged:
        return f"is flagged: {found.reason}"
    if found is not None and found.is_known:
        return ""
    return "is unknown" if summary.quality or summary.imported_from else "was not measured"


def _refused(summary: StudySummary, workload: str) -> list[Judged]:
    """Where no config was tried on a workload, why not."""
    return [
        Judged(config=refusal.point.config, figure=None, why_no_result=f"not supported: {refusal.reason}")
        for refusal in summary.refusals
        if refusal.point.workload == workload
    ]


def _findings(summary: StudySummary, point: PointSummary, limits: Limits, memory: str) -> Iterable[Finding]:
    yield from (_of_objective(judge_objective(objective, point)) for objective in limits.objectives)
    if limits.memory_bytes is not None:
        yield _memory(float(limits.memory_bytes), point.metrics.get(memory))
    if limits.quality_loss is not None:
        yield _quality(summary, point.point.config, limits.quality_loss)


def _quality(summary: StudySummary, config: Config, limit: float) -> Finding:
    """The rise of perplexity over that of the same model without quantization on the same engine.

    The study's baseline itself has lost nothing. What is flagged without a figure gave no finite numbers. The same
    weights with a quantized KV cache are judged by their divergence: see `_loss`.
    """
    found = next((one for one in summary.quality if one.config == config), None)
    known = _loss(found, summary.study) if found else None
    value, interval = (known.value, known.interval) if known else (None, None)
    if not summary.quality:
        standing, reason = LimitVerdict.UNSURE, "quality was not measured in this study"
    elif config == summary.baseline:
        value, standing, reason = 0.0, LimitVerdict.MET, ""
    elif found is not None and found.flagged and known is None:
        standing, reason = LimitVerdict.BROKEN, found.reason or "it is flagged"
    elif known is None:
        cause = (found.cause or found.reason) if found else None
        standing, reason = LimitVerdict.UNSURE, f"its quality is unknown{f' ({cause})' if cause else ''}"
    elif interval is None:
        standing, reason = LimitVerdict.UNSURE, "too few windows for an interval"
    else:
        standing, reason = decide(interval, limit)
    return Finding(
        name=QUALITY_LOSS,
        unit="share",
        limit=limit,
        value=value,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        standing=standing,
        reason=reason,
    )


def _loss(found: ConfigQuality, study: Study) -> QualityEstimate | None:
    """The rise of perplexity; of the same weights with a quantized KV cache, the rise that their mean divergence is on
    text that the baseline itself would write: e^KL - 1. It is far less noisy than that on a text from elsewhere, which
    may become likelier by chance."""
    if not loses_by_cache(found.config, found.baseline, study):
        return found.estimates.get(RISE)
    known = found.estimates.get(KL)
    if known is None or known.interval is None:
        return known and QualityEstimate(value=expm1(known.value), interval=None)
    ends = {"low": expm1(known.interval.low), "high": expm1(known.interval.high)}
    return QualityEstimate(value=expm1(known.value), interval=known.interval.model_copy(update=ends))


def _of_objective(judged: JudgedObjective) -> Finding:
    return Finding(
        name=judged.objective.name,
        unit="s",
        limit=judged.objective.limit,
        value=judged.value,
        low=judged.low,
        high=judged.high,
        note=judged.note,
        standing=STANDINGS[judged.verdict],
        reason=judged.reason,
    )


def _memory(limit: float, known: Estimate | None) -> Finding:
    interval = known.interval if known else None
    if known is None:
        standing, reason = LimitVerdict.UNSURE, "it was not measured"
    elif interval is None:
        standing, reason = LimitVerdict.UNSURE, "one trial has no interval"
    elif not known.covers_starts:
        standing, reason = LimitVerdict.UNSURE, ONE_START
    else:
        standing, reason = decide(interval, limit)
    return Finding(
        name=MEMORY,
        unit="bytes",
        limit=limit,
        value=known.mean if known else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        standing=standing,
        reason=reason,
    )


def decide(interval: Interval, limit: float) -> tuple[LimitVerdict, str]:
    """For figures of which less is better."""
    if interval.high <= limit:
        return LimitVerdict.MET, ""
    if interval.low > limit:
        return LimitVerdict.BROKEN, ""
    return LimitVerdict.UNSURE, CONTAINS


def _cost(speed: Estimate, price_per_hour: float) -> Cost:
    def per_million(tokens_per_s: float) -> float | None:
        return price_per_hour / 3600 / tokens_per_s * 1e6 if tokens_per_s > 0 else None

    mean = per_million(speed.mean)
    assert mean is not None  # a throughput that is defined is positive
    ends = (speed.interval.high, speed.interval.low) if speed.interval else None
    return Cost(mean=mean, low=per_million(ends[0]) if ends else None, high=per_million(ends[1]) if ends else None)


def _choose(summary: StudySummary, ranking: Ranking, judged: Sequence[Judged]) -> Choice:
    met = [one.config for one in judged if one.standing is LimitVerdict.MET]
    chosen = met[0] if met else None
    entry = next((one for one in ranking.entries if one.config == chosen), None)
    ties = tuple(one for one in met if entry is not None and one in entry.tied_with)
    return Choice(
        workload=ranking.workload,
        model=ranking.model,
        baseline=summary.baseline,
        judged=tuple(judged),
        chosen=chosen,
        nearest=None if met else _nearest(judged),
        ties=ties,
    )


def _nearest(judged: Sequence[Judged]) -> Config | None:
    """Of those that may meet the limits, else of all: the one whose worst figure is the least beyond its limit."""
    measured = [one for one in judged if one.figure is not None]
    candidates = [one for one in measured if one.standing is LimitVerdict.UNSURE] or measured
    return min(candidates, key=_distance).config if candidates else None


def _distance(judged: Judged) -> tuple[int, float]:
    unknown = sum(finding.value is None for finding in judged.findings)
    return unknown, max((_share(one) for one in judged.findings if one.standing is not LimitVerdict.MET), default=0.0)


def _share(finding: Finding) -> float:
    if finding.value is None:
        return 0.0
    return finding.value / finding.limit if finding.limit > 0 else inf


def _for_all(choices: Sequence[Choice]) -> tuple[Config, ...]:
    if len(choices) < 2 or any(choice.chosen is None for choice in choices):
        return ()
    first, *others = [[choice.chosen, *choice.ties] for choice in choices]
    return tuple(one for one in first if one is not None and all(one in other for other in others))


def _notes(summary: StudySummary, limits: Limits, choices: Sequence[Choice]) -> Iterable[str]:
    if any(objective.statistic != "mean" for objective in limits.objectives):
        yield (
            "A percentile is that of the requests of all trials together. It is met only where its interval has an "
            "upper end, and called by its name where ten requests or more lie beyond it (p99: 1,000); with fewer, the "
            "slowest is shown."
        )
    if any(one.memory_without_cache is not None for choice in choices for one in choice.judged):
        judged = "--max-memory is held against" if limits.memory_bytes is not None else "Memory is"
        yield (
            f"{judged} what an engine takes as it was run, with the KV cache that it reserves at its start. Without "
            "KV is the same less that reserve: the least that a smaller reserve could bring it down to."
        )
    if summary.imported_from is not None:
        yield "The figures were imported: they follow the other tool's definitions."
