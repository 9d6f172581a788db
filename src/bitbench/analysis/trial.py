"""One trial in numbers, by the definitions of `study.metrics`."""

from collections.abc import Sequence

import pyarrow as pa

from bitbench.analysis.objectives import good_share
from bitbench.analysis.results.summary import MetricDefinition
from bitbench.records.figures import figure
from bitbench.records.request_rows import RequestRows
from bitbench.records.trial import Energy, TrialMetrics
from bitbench.study.metrics import METRICS, FigureSource
from bitbench.study.objective import Objective

RECORDED = {  # the figures of a trial: speed and memory
    metric.column: metric
    for metric in METRICS.values()
    if metric.is_recorded and metric.source is not FigureSource.SCORES
}
DEFINITIONS = {column: MetricDefinition.of(metric) for column, metric in RECORDED.items()}


def measure(table: pa.Table, objectives: Sequence[Objective] = (), energy: Energy | None = None) -> TrialMetrics:
    """The figures of one trial from its request rows (core.recorded.requests); only complete requests count.
    `energy`: what its devices took meanwhile."""
    rows = RequestRows(table).complete()
    found = TrialMetrics(**{column: figure(RECORDED[column], rows) for column in TrialMetrics.model_fields})
    served = found.request_throughput if found.achieved_rate is None else found.achieved_rate
    share = good_share(table, objectives)
    tokens, (gpus_j, cpus_j) = float(rows.output_tokens.sum()), energy or Energy()
    return found.model_copy(
        update={
            "goodput": None if share is None or served is None else share * served,
            "energy_per_token": gpus_j / tokens if gpus_j is not None and tokens else None,
            "cpu_energy_per_token": cpus_j / tokens if cpus_j is not None and tokens else None,
        }
    )
