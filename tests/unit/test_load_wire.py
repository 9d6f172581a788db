"""A request says all that a server must know, and nothing it was not given."""

import json

import pytest

from bitbench.loadgen.requests import Ask, request_bytes
from bitbench.ports import Endpoint
from bitbench.study.base import Json
from bitbench.study.workload import Api
from bitbench.util.http.connection import Address, parse_address


def parts_of(
    endpoint: Endpoint, ask: Ask, api: Api = Api.COMPLETIONS, batch_size: int | None = None
) -> tuple[list[str], Json]:
    head, _, body = request_bytes(endpoint, ask, api=api, batch_size=batch_size).partition(
        b"\r\n\r\n"
    )
    lines = head.decode().split("\r\n")
    assert f"Content-Length: {len(body)}" in lines
    return lines, json.loads(body)


def test_a_request_says_all_that_a_server_must_know() -> None:
    endpoint = Endpoint(
        "http://127.0.0.1:81", "m", "secret", {"ignore_eos": True}, batch_header="X-Batch"
    )
    lines, body = parts_of(endpoint, Ask([4, 5, 6], 3, 9), batch_size=8)
    assert lines[0] == "POST /v1/completions HTTP/1.1"
    assert {"Authorization: Bearer secret", "X-Batch: 8", "Host: 127.0.0.1:81"} < set(lines)
    assert body == {
        "model": "m",
        "prompt": [4, 5, 6],
        "max_tokens": 9,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_without_a_key_or_a_batch_nothing_is_said_about_them() -> None:
    lines, _ = parts_of(Endpoint("http://h:1", "m", batch_header="X-Batch"), Ask([1], 1, 1))
    assert not any(line.startswith("Connection") for line in lines)
    assert (
        "Connection: close"
        in parts_of(Endpoint("http://h:1", "m", keeps_connections=False), Ask([1], 1, 1))[0]
    )
    assert not any(line.startswith(("Authorization", "X-Batch")) for line in lines)


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé?"}]


@pytest.mark.parametrize(
    ("api", "prompt", "path", "said"),
    [
        (Api.COMPLETIONS, "Hé?", "/v1/completions", {"prompt": "Hé?"}),
        (
            Api.CHAT,
            "Hé?",
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hé?"}]},
        ),
        (Api.CHAT, MESSAGES, "/v1/chat/completions", {"messages": MESSAGES}),
    ],
)
def test_text_goes_to_the_endpoint_that_was_asked_for(
    api: Api, prompt: Json, path: str, said: Json
) -> None:
    lines, body = parts_of(Endpoint("http://h:1", "m"), Ask(prompt, None, 4), api)
    assert lines[0] == f"POST {path} HTTP/1.1"
    assert body.items() >= said.items()
    assert ("prompt" in body) != ("messages" in body)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:81", Address("127.0.0.1", 81, tls=False)),
        ("http://host/", Address("host", 80, tls=False)),
        ("https://api.example.com", Address("api.example.com", 443, tls=True)),
        ("https://host:8443", Address("host", 8443, tls=True)),
        ("http://[::1]:8000", Address("::1", 8000, tls=False)),
    ],
)
def test_addresses(url: str, expected: Address) -> None:
    assert parse_address(url) == expected


def test_the_host_header_of_an_ipv6_address_has_brackets() -> None:
    assert "Host: [::1]:8000" in parts_of(Endpoint("http://[::1]:8000", "m"), Ask([1], 1, 1))[0]


@pytest.mark.parametrize("url", ["ftp://host:1", "http://host:1/v1", "host:1"])
def test_an_address_that_is_not_plain_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        parse_address(url)
