"""`scripts/null_endpoint` as the documents show it: with a key in OPENAI_API_KEY, and without one."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitbench.engines.processes import free_port

ROOT = Path(__file__).parents[2]
DOCUMENTED = re.search(
    r"^\$ scripts/null_endpoint 8123 (.+) &$", (ROOT / "docs" / "endpoints.md").read_text(), re.M
)
READY_WITHIN_S = 60.0


@contextlib.contextmanager
def started(*arguments: str, **variables: str) -> Iterator[str]:
    """The address of a server that answers."""
    port = free_port()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    command = [ROOT / "scripts" / "null_endpoint", str(port), *arguments]
    with subprocess.Popen(command, env={**environment, "PATH": path, **variables}) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(server, f"{url}/health")
            yield url
        finally:
            server.terminate()


def wait_until_ready(server: "subprocess.Popen[bytes]", url: str) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        assert server.poll() is None, "it ended"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.05)
    pytest.fail("it was not ready in time")


def models(url: str, key: str | None = None) -> list[str]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/models", headers=headers), timeout=10
    ) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def test_the_documented_command_serves_without_a_key() -> None:
    assert DOCUMENTED is not None
    with started(*DOCUMENTED[1].split()) as url:
        assert models(url) == models(url, "whatever") == ["null"]


def test_a_port_alone_is_enough_and_a_key_in_the_environment_is_asked_for() -> None:
    with started(OPENAI_API_KEY="known-to-both") as url:
        assert models(url, "known-to-both") == ["null"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            models(url)
