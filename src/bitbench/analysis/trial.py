"""The metrics of one trial, and the share of its prompts that a prefix cache answered."""

from statistics import fmean

from bitbench.analysis.results.summary import CachedPrompts, MetricDefinition
from bitbench.records.folder import StudyRecords
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import EngineMetrics, TrialMetrics
from bitbench.study.metrics import METRICS, FigureSource
from bitbench.study.plan import Point

RECORDED = {  # the metrics of a trial: speed and memory
    metric.column: metric
    for metric in METRICS.values()
    if metric.is_recorded and metric.source is not FigureSource.SCORES
}
DEFINITIONS = {column: MetricDefinition.of(metric) for column, metric in RECORDED.items()}


def compute_trial_metrics(sums: RequestSums, energy_j: float | None = None) -> TrialMetrics:
    """Return the metrics of one trial from its complete requests.

    `energy_j` is the energy that its GPUs used meanwhile.
    """
    columns = {column: sums.metric(RECORDED[column]) for column in TrialMetrics.model_fields}
    metrics = TrialMetrics(**columns)
    served = metrics.achieved_rate
    if served is None:
        served = metrics.request_throughput
    goodput = None
    if sums.good_share is not None and served is not None:
        goodput = sums.good_share * served
    energy_per_token = None
    if energy_j is not None and sums.output_tokens:
        energy_per_token = energy_j / sums.output_tokens
    return metrics.model_copy(update={"goodput": goodput, "energy_per_token": energy_per_token})


# Share of a trial's prompt tokens. Less is a token or two that prompts have in common by chance.
CACHED = 0.01


def cached_share(counted: EngineMetrics | None, sums: RequestSums) -> float | None:
    """Return the share of a trial's prompt tokens that came from a cache.

    It is from the engine's own counter, which includes all its clients, else from the usage of the
    answers. Return None if neither has it.
    """
    cached = counted.cached_tokens if counted is not None else None
    if cached is None:
        cached = sums.cached_tokens
    sent = sums.sent_input_tokens
    return None if cached is None or not sent else min(cached / sent, 1.0)


def find_cached_prompts(records: StudyRecords, point: Point) -> CachedPrompts | None:
    """Return the use of a prefix cache over the trials that count.

    Return None if no trial used a cache, or if the study requested one.
    """
    shares = []
    for trial in records.counted(point):
        if trial.cached_share is not None:
            shares.append(trial.cached_share)
    trials = sum(share >= CACHED for share in shares)
    if not trials or _is_cache_requested(records, point):
        return None
    return CachedPrompts(trials=trials, share=fmean(shares))


def _is_cache_requested(records: StudyRecords, point: Point) -> bool:
    """Return True if prompts share a prefix or bitbench started the engine with its cache on."""
    workload = records.study.workload(point.workload)
    if workload.shared_prefix is not None or workload.conversation is not None:
        return True
    for instance in records.instances:
        facts = instance.facts
        if instance.config == point.config and facts.prefix_caching and not facts.was_running:
            return True
    return False
