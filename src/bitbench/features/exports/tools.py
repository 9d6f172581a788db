"""The tools that get points. Each function imports its tool's package, sends the points, and
returns the text to print."""

import os
import time
from urllib.parse import quote
from urllib.request import Request, urlopen

from bitbench.features.exports.content import ExportedPoint

Points = list[ExportedPoint]  # of one study
_ENDS = {
    "s": "_seconds",
    "tok/s": "_tokens_per_second",
    "req/s": "_requests_per_second",
    "J/tok": "_joules_per_token",
}
_UCUM = {"bytes": "By", "tok/s": "{token}/s", "req/s": "{request}/s", "J/tok": "J/{token}"}
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_PATIENCE_S = 10.0
_LONGEST = 500  # characters of a parameter, the limit of older MLflow servers


def prometheus(points: Points, url: str | None) -> str:
    """Return text for the node exporter's textfile collector, or push it to a Pushgateway. Facts
    are labels of `bitbench_point_info`."""
    families: dict[str, list[str]] = {}
    for point in points:
        rows = [("point_info", "What was measured, where.", point.facts, 1.0)]
        for name, limit, unit, meaning, value in point.figures:
            rows.append((f"{name}{_ENDS.get(unit, '')}{limit}", meaning, point.labels, value))
        for name, meaning, labels, value in rows:
            head = [f"# HELP bitbench_{name} {meaning}", f"# TYPE bitbench_{name} gauge"]
            pairs = (f'{label}="{text.translate(_ESCAPED)}"' for label, text in labels.items())
            sample = f"bitbench_{name}{{{','.join(pairs)}}} {value!r}"
            families.setdefault(name, head).append(sample)
    text = "".join(f"{line}\n" for lines in families.values() for line in lines)
    if url is None:
        return text
    study = quote(points[0].labels["study"], safe="")
    address = f"{url.rstrip('/')}/metrics/job/bitbench/study/{study}"
    request = Request(address, text.encode(), {"Content-Type": "text/plain"}, method="PUT")
    with urlopen(request, timeout=_PATIENCE_S):
        return f"pushed {len(points)} points to {address}\n"


def otel(points: Points, url: str | None) -> str:
    """Send gauges over OTLP and HTTP, with the facts as attributes."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
    from opentelemetry.sdk.resources import Resource

    reader = InMemoryMetricReader()
    provider = MeterProvider(
        [reader], resource=Resource.create({"service.name": "bitbench"}), shutdown_on_exit=False
    )
    meter = provider.get_meter("bitbench")
    for point in points:
        for name, limit, unit, meaning, value in point.figures:
            gauge = meter.create_gauge(f"bitbench.{name}{limit}", _UCUM.get(unit, unit), meaning)
            gauge.set(value, point.facts)
    endpoint = f"{url.rstrip('/')}/v1/metrics" if url else None
    exporter = OTLPMetricExporter(endpoint=endpoint, timeout=_PATIENCE_S)
    result = exporter.export(reader.get_metrics_data())
    exporter.shutdown()
    provider.shutdown()
    if result is not MetricExportResult.SUCCESS:
        raise OSError("the collector's log says why")
    return f"sent {len(points)} points\n"


def mlflow(points: Points, url: str | None) -> str:
    """Write an experiment per study and a run per point."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=url)
    now_ms = int(time.time() * 1000)
    study = points[0].labels["study"]
    experiment = client.get_experiment_by_name(study)
    if experiment is not None:
        experiment_id = experiment.experiment_id
    else:
        experiment_id = client.create_experiment(study)
    for point in points:
        runs = client.search_runs(
            [experiment_id], f"tags.`bitbench.point` = '{point.id}'", max_results=1
        )
        if runs:
            run = runs[0]
        else:
            tags = {"bitbench.point": point.id}
            run = client.create_run(experiment_id, run_name=point.name, tags=tags)
        metrics = [
            Metric(figure.name + figure.limit, figure.value, now_ms, 0) for figure in point.figures
        ]
        params = [Param(name, value[:_LONGEST]) for name, value in point.facts.items()]
        client.log_batch(run.info.run_id, metrics=metrics, params=params)
        client.set_terminated(run.info.run_id)
    return f"wrote {len(points)} runs to the experiment {study} of {client.tracking_uri}\n"


def wandb(points: Points, url: str | None) -> str:
    """Write a run per point, grouped by study. Without an address, write offline files for `wandb
    sync`."""
    import wandb as tool

    mode = "online" if url else os.environ.get("WANDB_MODE", "offline")
    server = {"base_url": url} if url else {}
    settings = tool.Settings(silent=True, console="off", disable_git=True, **server)
    project = os.environ.get("WANDB_PROJECT", "bitbench")
    lines: list[str] = []
    for point in points:
        run = tool.init(
            project=project,
            group=point.labels["study"],
            name=point.name,
            id=point.id,
            mode=mode,
            settings=settings,
            reinit="finish_previous",
            config=point.facts,
        )
        run.log({figure.name + figure.limit: figure.value for figure in point.figures})
        if mode == "offline":
            lines.append(f"wandb sync {run.settings.sync_dir}\n")
        else:
            lines.append(f"wrote {point.name}\n")
        run.finish()
    return "".join(lines)
