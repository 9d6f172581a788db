"""A request as bytes, ready to be handed to a socket."""

import json
from urllib.parse import urlsplit

from bitbench import __version__
from bitbench.core.ports import Endpoint
from bitbench.core.workload import Workload

PATH = "/v1/completions"


def address(endpoint: Endpoint) -> tuple[str, int]:
    """Host and port. Engines listen on loopback without TLS; another scheme is refused here."""
    parts = urlsplit(endpoint.url)
    if parts.scheme != "http" or parts.hostname is None or parts.path not in ("", "/"):
        raise ValueError(f"the endpoint {endpoint.url!r} should look like http://host:port")
    return parts.hostname, parts.port or 80


def completion_request(endpoint: Endpoint, workload: Workload, prompt: list[int]) -> bytes:
    """A streaming completion of token ids, with greedy sampling and the usage in the last chunk."""
    host, port = address(endpoint)
    body = json.dumps(
        {
            "model": endpoint.model,
            "prompt": prompt,
            "max_tokens": workload.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **endpoint.extra_body,
        },
        separators=(",", ":"),
    ).encode()
    headers = {
        "Host": f"{host}:{port}",
        "User-Agent": f"bitbench/{__version__}",
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Authorization": f"Bearer {endpoint.api_key}",
    }
    if endpoint.batch_header is not None:
        headers[endpoint.batch_header] = str(workload.concurrency)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body
