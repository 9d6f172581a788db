"""One trial in numbers, by the definitions of `study.metrics`; and how much of it a prefix cache answered."""

from statistics import fmean

from bitbench.analysis.results.summary import CachedPrompts, MetricDefinition
from bitbench.records.folder import StudyRecords
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import EngineMetrics, TrialMetrics
from bitbench.study.metrics import METRICS, FigureSource
from bitbench.study.plan import Point

RECORDED = {  # the figures of a trial: speed and memory
    metric.column: metric
    for metric in METRICS.values()
    if metric.is_recorded and metric.source is not FigureSource.SCORES
}
DEFINITIONS = {column: MetricDefinition.of(metric) for column, metric in RECORDED.items()}


def metrics_of_trial(sums: RequestSums, energy_j: float | None = None) -> TrialMetrics:
    """The figures of one trial from its request rows; only complete requests count. `energy_j`: what its GPUs took
    meanwhile."""
    found = TrialMetrics(
        **{column: sums.metric(RECORDED[column]) for column in TrialMetrics.model_fields}
    )
    served = found.request_throughput if found.achieved_rate is None else found.achieved_rate
    share, tokens = sums.good_share, sums.output_tokens
    return found.model_copy(
        update={
            "goodput": None if share is None or served is None else share * served,
            "energy_per_token": energy_j / tokens if energy_j is not None and tokens else None,
        }
    )


CACHED = (
    0.01  # of a trial's prompt tokens: less is a token or two that prompts have in common by chance
)


def cached_share(counted: EngineMetrics | None, sums: RequestSums) -> float | None:
    """Of the prompt tokens of a trial, what came from a cache: by the engine's own counter, which sees all its clients,
    else by the usage of the answers. None where neither says."""
    cached = counted.cached_tokens if counted is not None else None
    if cached is None:
        cached = sums.cached_tokens
    asked = sums.sent_input_tokens
    return None if cached is None or not asked else min(cached / asked, 1.0)


def cached_prompts(of: StudyRecords, point: Point) -> CachedPrompts | None:
    """Over the trials that count; None where none used a cache, or the study asked for one."""
    shares = [trial.cached_share for trial in of.counted(point) if trial.cached_share is not None]
    trials = sum(share >= CACHED for share in shares)
    if not trials or _is_asked_for(of, point):
        return None
    return CachedPrompts(trials=trials, share=fmean(shares))


def _is_asked_for(of: StudyRecords, point: Point) -> bool:
    """By prompts that share a prefix, or by an engine that was started with its cache on."""
    workload = of.study.workload(point.workload)
    if workload.shared_prefix is not None or workload.conversation is not None:
        return True
    own = (instance.facts for instance in of.instances if instance.config == point.config)
    return any(facts.prefix_caching and not facts.was_running for facts in own)
