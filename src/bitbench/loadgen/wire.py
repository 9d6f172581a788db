"""A request as bytes, ready to be handed to a socket."""

import json

from bitbench import __version__
from bitbench.loadgen.asks import Ask
from bitbench.ports import Endpoint
from bitbench.study.base import Json
from bitbench.study.prompts import Api
from bitbench.util.http.address import address

PATHS = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}


def request_bytes(endpoint: Endpoint, ask: Ask, *, api: Api, batch_size: int | None) -> bytes:
    """A streaming request with greedy sampling and the usage in its last chunk.

    `batch_size` is for a server that runs static batches: so many requests belong together.
    """
    body = json.dumps(
        {
            "model": endpoint.model,
            **_prompt(ask, api),
            "max_tokens": ask.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **endpoint.extra_body,
        },
        separators=(",", ":"),
    ).encode()
    headers = {
        "Host": address(endpoint.url).header,
        "User-Agent": f"bitbench/{__version__}",
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
    }
    if not endpoint.keeps_connections:
        headers["Connection"] = "close"  # then its answer says so too, and the next request gets a new one
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    if endpoint.batch_header is not None and batch_size is not None:
        headers[endpoint.batch_header] = str(endpoint.batch_size or batch_size)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {PATHS[api]} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def _prompt(ask: Ask, api: Api) -> dict[str, Json]:
    if api is Api.COMPLETIONS:
        return {"prompt": ask.prompt}
    return {"messages": [{"role": "user", "content": ask.prompt}] if isinstance(ask.prompt, str) else ask.prompt}
