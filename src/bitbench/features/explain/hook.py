"""The switch of an instance's profiler: two requests, as vLLM has them, and a Chrome trace in its folder."""

import json
from http import HTTPStatus
from pathlib import Path

from bitbench.ports import Endpoint
from bitbench.util.errors import ProfileError
from bitbench.util.http.connection import BadAnswer, PlainConnection
from bitbench.util.http.limits import PLAIN_BYTES
from bitbench.util.quotation import quote

_START_LIMIT_S = 60.0
# Writing a trace took vLLM half a second per decode step of a small model on a busy core.
_STOP_LIMIT_S = 600.0


def start_profile(endpoint: Endpoint, name: str) -> None:
    """What runs from now on is recorded; its file will begin with this name."""
    _post(endpoint, "/start_profile", {"profile_prefix": name}, _START_LIMIT_S)


def stop_profile(endpoint: Endpoint, name: str, folder: Path) -> Path:
    """Blocks until the trace is written, and says where: that of the first rank, where there are several."""
    _post(endpoint, "/stop_profile", {}, _STOP_LIMIT_S)
    traces = sorted(folder.glob(f"{name}*.json.gz"))
    if not traces:
        raise ProfileError(f"the engine's profiler wrote no trace {name} to {folder}; see the engine's log")
    return traces[0]


def _post(endpoint: Endpoint, path: str, body: dict[str, str], limit_s: float) -> None:
    key = endpoint.api_key
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        with PlainConnection(endpoint.url, limit_s=limit_s, limit_bytes=PLAIN_BYTES) as connection:
            answer = connection.ask("POST", path, headers, json.dumps(body).encode())
    except (OSError, BadAnswer) as error:
        raise ProfileError(f"the engine did not answer {path} ({quote(str(error), key)}); see its log") from None
    if answer.status != HTTPStatus.OK:
        raise ProfileError(f"the engine answered {path} with {answer.status}: {quote(answer.body, key)}")
