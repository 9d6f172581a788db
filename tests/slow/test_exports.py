"""Exports against the tools themselves, in an environment of their own: MLflow's server, Prometheus' parser and a push,
an OTLP receiver, W&B's offline files."""

import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.features.exports.exported_study import HOSTILE_NAME, exported_study

PACKAGES = (
    "pydantic", "pyyaml", "prometheus_client", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "mlflow",
    "wandb",
)  # fmt: skip
ROOT = Path(__file__).parents[2]
PATIENCE_S = 300
# What a tool calls output throughput, its limits, and a percentile with an open interval.
NAMES = {
    "prometheus": (
        "bitbench_output_throughput_tokens_per_second",
        "bitbench_ttft_p99_seconds",
        "bitbench_peak_bytes",
    ),
    "otel": ("bitbench.output_throughput", "bitbench.ttft_p99", "bitbench.peak_bytes"),
    "mlflow": ("output_throughput", "ttft_p99", "peak_bytes"),
    "wandb": ("output_throughput", "ttft_p99", "peak_bytes"),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BITBENCH_EXPORTS_PYTHON names one that has the packages already."""
    if given := os.environ.get("BITBENCH_EXPORTS_PYTHON"):
        return Path(given)
    folder = tmp_path_factory.mktemp("exports") / "env"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True)
    return folder / "bin" / "python"


@pytest.fixture
def mlflow_server(python: Path, tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
               "--backend-store-uri", f"sqlite:///{tmp_path}/runs.db", "--artifacts-destination", tmp_path]  # fmt: skip
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True) as server:
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, 15)


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and server.poll() is None:
        try:
            with urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"{url} did not answer")


def sent(
    python: Path, target: str, folder: Path, url: str = ""
) -> tuple[dict[str, dict[str, float]], str]:
    (folder / "study").write_bytes(pickle.dumps(exported_study()))
    child = subprocess.run(
        [python, ROOT / "tests" / "slow" / "exports_child.py", target, folder / "study", url],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "WANDB_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3_000:]
    found, fact = json.loads(child.stdout.splitlines()[-1])
    return found, fact


def assert_complete(target: str, found: dict[str, dict[str, float]], fact: str) -> None:
    throughput, tail, memory = NAMES[target]
    assert fact == 'Xeon \\ "x"'
    for variant, factor in (("bf16", 1.0), (HOSTILE_NAME, 2.0)):
        assert found[variant] == {
            throughput: 100.5 * factor,
            f"{throughput}_low": 99.0,
            f"{throughput}_high": 102.25,
            tail: 0.25 * factor,
            f"{tail}_low": 0.2,
            memory: 1e9 * factor,
        }


@pytest.mark.parametrize("target", ["prometheus", "otel", "wandb"])
def test_a_tool_has_every_figure_with_its_interval(
    target: str, python: Path, tmp_path: Path
) -> None:
    assert_complete(target, *sent(python, target, tmp_path))


def test_mlflow_has_every_figure_with_its_interval(
    python: Path, tmp_path: Path, mlflow_server: str
) -> None:
    assert_complete("mlflow", *sent(python, "mlflow", tmp_path, mlflow_server))
