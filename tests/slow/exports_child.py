"""Sends a study to one tool and reads it back with that tool's own means; runs where the tool is installed.

python exports_child.py TARGET STUDY URL: prints {point: {figure: value}} as the tool has it, and one fact, as JSON.
"""

import json
import pickle
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from bitbench.features.exports import tools
from bitbench.features.exports.content import ExportedPoint

Found = dict[str, dict[str, float]]


class Receiver:
    """Takes one request, as a Pushgateway or a collector would."""

    def __init__(self) -> None:
        bodies: list[tuple[str, bytes]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            do_PUT = do_POST  # noqa: N815  # the name that http.server looks for

            def log_message(self, *_: Any) -> None:
                pass

        self.bodies = bodies
        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


def prometheus(study: list[ExportedPoint], _: str) -> tuple[Found, str]:
    from prometheus_client.parser import text_string_to_metric_families

    receiver = Receiver()
    printed = tools.prometheus(study, None)
    tools.prometheus(study, receiver.url)
    ((path, pushed),) = receiver.bodies
    assert pushed.decode() == printed
    found, fact = dict[str, dict[str, float]](), ""
    for family in text_string_to_metric_families(printed):
        for sample in family.samples:
            if sample.name == "bitbench_point_info":
                fact = sample.labels["host_cpu_model"]
            else:
                found.setdefault(sample.labels["variant"], {})[sample.name] = sample.value
    assert path == f"/metrics/job/bitbench/study/{study[0].labels['study']}"
    return found, fact


def otel(study: list[ExportedPoint], _: str) -> tuple[Found, str]:
    import gzip

    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    receiver = Receiver()
    tools.otel(study, receiver.url)
    ((path, body),) = receiver.bodies
    assert path == "/v1/metrics"
    request = ExportMetricsServiceRequest.FromString(
        gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
    )
    (resource,) = request.resource_metrics
    found, fact = dict[str, dict[str, float]](), ""
    for metric in resource.scope_metrics[0].metrics:
        for point in metric.gauge.data_points:
            labels = {pair.key: pair.value.string_value for pair in point.attributes}
            found.setdefault(labels["variant"], {})[metric.name] = point.as_double
            fact = labels["host_cpu_model"]
    return found, fact


def mlflow(study: list[ExportedPoint], url: str) -> tuple[Found, str]:
    from mlflow import MlflowClient

    tools.mlflow(study, url)
    tools.mlflow(study, url)  # again: the same runs
    client = MlflowClient(tracking_uri=url)
    runs = client.search_runs(
        [client.get_experiment_by_name(study[0].labels["study"]).experiment_id]
    )
    assert all(run.info.status == "FINISHED" for run in runs)
    assert len(runs) == len(study)
    return {run.data.params["variant"]: run.data.metrics for run in runs}, runs[0].data.params[
        "host_cpu_model"
    ]


def wandb(study: list[ExportedPoint], _: str) -> tuple[Found, str]:
    from wandb.proto.wandb_internal_pb2 import Record

    folders = [Path(line.split()[-1]) for line in tools.wandb(study, None).splitlines()]
    found, fact = dict[str, dict[str, float]](), ""
    for folder in folders:
        config, figures = dict[str, Any](), dict[str, float]()
        for data in offline_records(next(folder.glob("*.wandb")).read_bytes()):
            record = Record.FromString(data)
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            for item in record.history.item:
                figures[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        found[config["variant"]] = {
            name: value for name, value in figures.items() if not name.startswith("_")
        }
        fact = config["host_cpu_model"]
    return found, fact


def offline_records(content: bytes) -> Iterator[bytes]:
    """W&B's offline file is a LevelDB log: blocks of 32 KiB, parts behind checksum, length, kind (1, 4: the last)."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        if (room := 2**15 - place % 2**15) < 7:
            place += room
            continue
        length, kind = struct.unpack_from("<xxxxHB", content, place)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


READERS: dict[str, Callable[[list[ExportedPoint], str], tuple[Found, str]]] = {
    "prometheus": prometheus,
    "otel": otel,
    "mlflow": mlflow,
    "wandb": wandb,
}

if __name__ == "__main__":
    target, file, address = sys.argv[1:]
    print(json.dumps(READERS[target](pickle.loads(Path(file).read_bytes()), address)))
