"""A server repeats the key in every field, plain or as in a URL, at every cut: bitbench keeps nothing of it."""

import json
import socket
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from bitbench.engines.endpoint import EndpointUnusable, list_offered_models
from bitbench.loadgen.client import run_job
from bitbench.ports import Endpoint, LoadJob, Vocabulary
from bitbench.study.workload import Arrival, Workload
from bitbench.util.text import HIDDEN, QUOTED_LENGTH, quote
from tests.support.canary import KEY, WRITTEN, traces
from tests.support.certificate import make_certificate
from tests.support.hostile_modes import OK_HEAD, chunk
from tests.support.raw_server import Asked, models, plain, send, serving
from tests.support.scripted_server import END, STREAM, TOKEN, USAGE, event
from tests.support.with_receiver import WAYS, choose

# Where a server can put a text into its answer to a request.
FIELDS: dict[str, Callable[[str], bytes]] = {
    "reason": lambda text: plain(b"", f"401 {text}"),
    "status line": lambda text: f"HTTP/9 {text}\r\n\r\n".encode(),
    "header line": lambda text: OK_HEAD + f"{text.replace(':', '')}\r\n\r\n".encode(),
    "length": lambda text: OK_HEAD + f"Content-Length: {text}\r\n\r\n".encode(),
    "retry-after": lambda text: plain(b"", "429 Many", f"Retry-After: {text}"),
    "location": lambda text: plain(b"", "302 Found", f"Location: http://x.example/?key={text}"),
    "other header": lambda text: plain(b"no", "500 Error", f"X-Key: {text}"),
    "body": lambda text: plain(text.encode(), "500 Error"),
    "body of a 429": lambda text: plain(text.encode(), "429 Many"),
    "JSON error": lambda text: plain(json.dumps({"error": text}).encode(), "400 Bad"),
    "JSON message": lambda text: plain(
        json.dumps({"error": {"message": text}}).encode(), "400 Bad"
    ),
    "JSON detail": lambda text: plain(
        json.dumps({"detail": [{"input": text}]}).encode(), "422 Bad"
    ),
    "chunk size": lambda text: STREAM + f"{text}\r\n".encode(),
    "chunk extension": lambda text: STREAM + f"2;{text}\r\nhello\r\n".encode(),
    "trailer": lambda text: (
        STREAM + TOKEN + TOKEN + USAGE + END[:-2] + f"X: {text}\r\n\r\n".encode()
    ),
    "event that is no JSON": lambda text: STREAM + chunk(f"data: {text}\n\n".encode()) + END,
    "event with an error": lambda text: STREAM + event(error={"message": text}) + END,
    "event with an odd error": lambda text: STREAM + event(error={"odd": text}) + END,
    "text": lambda text: STREAM + event(choices=[{"text": text}]) + TOKEN + USAGE + END,
    "comment": lambda text: STREAM + chunk(f": {text}\n\n".encode()) + TOKEN + TOKEN + USAGE + END,
    "usage": lambda text: (
        STREAM + TOKEN + event(usage={"prompt_tokens": text, "completion_tokens": text}) + END
    ),
    "model": lambda text: (
        STREAM + TOKEN + event(model=text, id=text, choices=[{"text": "x"}]) + USAGE + END
    ),
}


def cut_texts() -> Iterator[str]:
    """The key at every place around the lengths to which words are shortened, and in pieces of every length."""
    for limit, words in product((80, QUOTED_LENGTH), ("x", "the key ")):
        filling = words * limit
        yield from (
            filling[:place] + KEY + " end"
            for place in range(max(0, limit - len(KEY) - 40), limit + 4)
        )


def answers() -> list[bytes]:
    spelled = [field(write(KEY)) for field, write in product(FIELDS.values(), WRITTEN.values())]
    return spelled + [FIELDS[name](text) for name in ("body", "event with an error", "retry-after", "status line")
                      for text in cut_texts()]  # fmt: skip


@pytest.mark.parametrize("receiver", WAYS)
def test_no_row_of_a_trial_holds_a_part_of_the_key(
    receiver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(receiver, monkeypatch)
    todo = answers()
    count = len(todo)

    def repeat_the_key(connected: socket.socket, asked: Asked) -> None:
        assert asked.authorization == f"Bearer {KEY}"
        connected.sendall(todo.pop())

    with serving(repeat_the_key) as server:
        workload = Workload(
            name="w",
            concurrency=1,
            input_tokens=4,
            output_tokens=2,
            requests=count,
            arrival=Arrival.CLOSED_LOOP,
        )
        endpoint = Endpoint(server.url, "m", KEY)
        job = LoadJob(
            endpoint, workload, Vocabulary(1_000), (1,), 5.0, 2.0, go_on_after_failure=True
        )
        rows = run_job(job).requests.to_pylist()
    assert not todo
    assert len(rows) == count
    leaking = {row["request"]: row["error"] for row in rows if traces(row["error"] or "")}
    assert not leaking
    assert sum(HIDDEN in (row["error"] or "") for row in rows) > count / 2, (
        "they were quoted, without the key"
    )


def test_what_is_no_part_of_the_key_is_quoted_as_it_is() -> None:
    assert (
        quote("Incorrect API key provided: sk-1234.", "sk-1234")
        == "Incorrect API key provided: ***."
    )
    assert (
        quote("a short key is no secret, nor is none", "k")
        == "a short key is no secret, nor is none"
    )
    assert quote(f"{KEY}{KEY} and {KEY[:7]}", KEY) == f"{HIDDEN}{HIDDEN} and {KEY[:7]}"
    assert quote(" two\n lines\t", KEY) == "two lines"


REDIRECTS = {
    "same place": "http://127.0.0.1:{here}/v2/models",
    "other path, relative": "/v2/models",
    "other port": "http://127.0.0.1:{there}/v1/models",
    "other name of this host": "http://localhost:{there}/v1/models",
    "with the key in it": "http://127.0.0.1:{there}/v1/models?key={key}",
    "no scheme": "//localhost:{there}/v1/models",
}


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("kind", REDIRECTS)
def test_the_key_follows_no_redirect(kind: str, code: int) -> None:
    def redirect(connected: socket.socket, asked: Asked) -> None:
        place = REDIRECTS[kind].format(here=here.port, there=there.port, key=KEY)
        connected.sendall(plain(b"", f"{code} Moved", f"Location: {place}"))

    with serving(send(models("m"))) as there, serving(redirect) as here:
        with pytest.raises(EndpointUnusable, match="it redirects to") as unusable:
            list_offered_models(Endpoint(here.url, "m", KEY))
        assert len(here.asked) == 1
        assert not there.asked
    assert not traces(str(unusable.value))


def test_the_key_follows_no_redirect_from_https_to_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
    with serving(send(models("m"))) as readable:
        downgrade = send(plain(b"", "302 Found", f"Location: {readable.url}/v1/models"))
        with serving(downgrade, certificate.server_context()) as encrypted:
            with pytest.raises(EndpointUnusable, match="it redirects to http://"):
                list_offered_models(Endpoint(encrypted.url, "m", KEY))
            assert encrypted.asked[0].authorization == f"Bearer {KEY}"
        assert not readable.asked
