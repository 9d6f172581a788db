"""A Ray cluster of several nodes on this machine: `python -m tests.features.fleet.ray_nodes N` until its input ends."""

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bitbench.engines.null import NullArguments
from bitbench.engines.processes import free_port
from bitbench.features.fleet.cluster import _LOCAL_VARIABLES, NOTICE_VARIABLES
from tests.busy_machine import wait_for
from tests.left_behind import marked


def variables(folder: Path) -> dict[str, str]:
    """For every process of the cluster, the driver included."""
    token = folder / "token"
    if not token.exists():
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
    return {
        **_LOCAL_VARIABLES,
        **NOTICE_VARIABLES,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }


@contextmanager
def ray_nodes(folder: Path, count: int) -> Iterator[str]:
    """Yield the address as `--on` takes it."""
    command = [sys.executable, "-m", __name__, str(count)]
    root = Path(__file__).parents[3]
    environment = {**marked(folder), **variables(folder)}
    with subprocess.Popen(
        command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as cluster:
        assert cluster.stdout is not None
        try:
            yield f"ray://{cluster.stdout.readline().strip()}"
        finally:
            cluster.communicate()


@contextmanager
def open_server(place: Path, *, ttft: float, tpot: float) -> Iterator[str]:
    """Yield the URL of a null server that asks for no key: one would be refused on a cluster without TLS."""
    port = free_port()
    behaviour = json.dumps({**NullArguments(ttft=ttft, tpot=tpot).model_dump(), "seed": 0})
    command = [sys.executable, "-m", "bitbench.engines.workers.null_server", str(port), behaviour]
    with subprocess.Popen(command, env={**marked(place), "BITBENCH_NULL_KEY": ""}) as server:
        try:
            assert wait_for(lambda: _listens(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def main(count: int) -> None:
    from ray.cluster_utils import Cluster

    common = {"include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster: Any = Cluster(
        initialize_head=True, head_node_args={**common, "num_cpus": 0, "node_name": "head"}
    )
    for number in range(count):
        cluster.add_node(**common, num_cpus=1, node_name=f"n{number}")
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)
