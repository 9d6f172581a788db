"""OpenTelemetry: gauges over OTLP and HTTP, to a collector. Without an address, where OTEL_EXPORTER_OTLP_* say."""

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource

from bitbench.features.exports.content import ExportedStudy, ExportError

_UNITS = {"bytes": "By", "tok/s": "{token}/s", "req/s": "{request}/s", "J/tok": "J/{token}"}  # as UCUM spells them
_PATIENCE_S = 10.0


def export(study: ExportedStudy, url: str | None) -> str:
    place = f"{url.rstrip('/')}/v1/metrics" if url else None
    exporter = OTLPMetricExporter(endpoint=place, timeout=_PATIENCE_S)
    try:
        result = exporter.export(_otel_metrics(study))
    finally:
        exporter.shutdown()
    if result is not MetricExportResult.SUCCESS:
        raise ExportError(f"{place or 'the collector'} did not take the figures; check --url and the collector's log.")
    return f"sent {len(study.points)} points to {place or 'the collector that OTEL_EXPORTER_OTLP_ENDPOINT names'}\n"


def _otel_metrics(study: ExportedStudy) -> MetricsData | None:
    """Facts of the study are its resource, those of a point attributes of its points."""
    reader = InMemoryMetricReader()
    resource = Resource.create({"service.name": "bitbench", "bitbench.study": study.name, **study.facts})
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    meter = provider.get_meter("bitbench", study.facts.get("bitbench_version", ""))
    for point in study.points:
        attributes = {"study": study.name, **point.labels, **point.facts}
        for figure in point.figures:
            unit = _UNITS.get(figure.unit, figure.unit)
            for ending, value in figure.bounds():
                gauge = meter.create_gauge(f"bitbench.{figure.name}{ending}", unit, figure.meaning)
                gauge.set(value, attributes)
    found = reader.get_metrics_data()
    provider.shutdown()
    return found
