"""One trial in numbers, by the definitions of `core.found.metrics`."""

import pyarrow as pa

from bitbench.core.found.metrics import METRICS, Source
from bitbench.core.found.summary import MetricDefinition
from bitbench.core.recorded.trial import TrialMetrics
from bitbench.rows.figures import figure
from bitbench.rows.request_rows import RequestRows

RECORDED = {  # the figures of a trial: speed and memory
    metric.column: metric for metric in METRICS.values() if metric.is_recorded and metric.source is not Source.SCORES
}
DEFINITIONS = {column: MetricDefinition.of(metric) for column, metric in RECORDED.items()}


def measure(table: pa.Table) -> TrialMetrics:
    """The figures of one trial from its request rows (core.recorded.requests); only complete requests count."""
    rows = RequestRows(table).complete()
    return TrialMetrics(**{column: figure(RECORDED[column], rows) for column in TrialMetrics.model_fields})
