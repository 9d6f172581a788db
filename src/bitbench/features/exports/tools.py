"""The tools that get points. Each function imports its tool's own package, sends, and returns what is printed."""

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
_LONGEST = 500  # characters of a parameter; older servers of MLflow take no more


def prometheus(points: Points, url: str | None) -> str:
    """Print for the node exporter's textfile collector, or push to a Pushgateway; facts are `bitbench_point_info`."""
    families: dict[str, list[str]] = {}
    for point in points:
        rows = [("point_info", "What was measured, where.", point.facts, 1.0)]
        for name, limit, unit, meaning, value in point.figures:
            rows.append((f"{name}{_ENDS.get(unit, '')}{limit}", meaning, point.labels, value))
        for name, meaning, labels, value in rows:
            head = [f"# HELP bitbench_{name} {meaning}", f"# TYPE bitbench_{name} gauge"]
            shown = ",".join(
                f'{label}="{text.translate(_ESCAPED)}"' for label, text in labels.items()
            )
            families.setdefault(name, head).append(f"bitbench_{name}{{{shown}}} {value!r}")
    text = "".join(f"{line}\n" for lines in families.values() for line in lines)
    if url is None:
        return text
    place = (
        f"{url.rstrip('/')}/metrics/job/bitbench/study/{quote(points[0].labels['study'], safe='')}"
    )
    with urlopen(
        Request(place, text.encode(), {"Content-Type": "text/plain"}, method="PUT"),
        timeout=_PATIENCE_S,
    ):
        return f"pushed {len(points)} points to {place}\n"


def otel(points: Points, url: str | None) -> str:
    """Send gauges over OTLP and HTTP; facts are attributes."""
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
            meter.create_gauge(f"bitbench.{name}{limit}", _UCUM.get(unit, unit), meaning).set(
                value, point.facts
            )
    exporter = OTLPMetricExporter(
        endpoint=f"{url.rstrip('/')}/v1/metrics" if url else None, timeout=_PATIENCE_S
    )
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

    client, now, study = (
        MlflowClient(tracking_uri=url),
        int(time.time() * 1000),
        points[0].labels["study"],
    )
    found = client.get_experiment_by_name(study)
    experiment = found.experiment_id if found is not None else client.create_experiment(study)
    for point in points:
        known = client.search_runs(
            [experiment], f"tags.`bitbench.point` = '{point.id}'", max_results=1
        )
        tags = {"bitbench.point": point.id}
        run = known[0] if known else client.create_run(experiment, run_name=point.name, tags=tags)
        metrics = [
            Metric(figure.name + figure.limit, figure.value, now, 0) for figure in point.figures
        ]
        params = [Param(name, value[:_LONGEST]) for name, value in point.facts.items()]
        client.log_batch(run.info.run_id, metrics=metrics, params=params)
        client.set_terminated(run.info.run_id)
    return f"wrote {len(points)} runs to the experiment {study} of {client.tracking_uri}\n"


def wandb(points: Points, url: str | None) -> str:
    """Write a run per point, grouped by study; without an address, offline files that `wandb sync` uploads."""
    import wandb as tool

    mode = "online" if url else os.environ.get("WANDB_MODE", "offline")
    settings = tool.Settings(
        silent=True, console="off", disable_git=True, **({"base_url": url} if url else {})
    )
    project, said = os.environ.get("WANDB_PROJECT", "bitbench"), ""
    for point in points:
        how = {
            "mode": mode,
            "settings": settings,
            "reinit": "finish_previous",
            "config": point.facts,
        }
        run = tool.init(
            project=project, group=point.labels["study"], name=point.name, id=point.id, **how
        )
        run.log({figure.name + figure.limit: figure.value for figure in point.figures})
        said += (
            f"wandb sync {run.settings.sync_dir}\n"
            if mode == "offline"
            else f"wrote {point.name}\n"
        )
        run.finish()
    return said
