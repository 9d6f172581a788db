"""A server repeats the key in every field, in every spelling, at every cut: nothing of it is in what bitbench keeps."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import psutil
import pytest

from bitbench.core.asked.workload import Arrival, Workload
from bitbench.core.ports import Endpoint, LoadJob, Vocabulary
from bitbench.core.quotation import HIDDEN, QUOTED_LENGTH, quote
from bitbench.engines.endpoint import EndpointUnusable, offered_models
from bitbench.load.client import run_job
from tests.unit.canary import KEY, WRITTEN, traces, traces_below
from tests.unit.certificate import make_certificate
from tests.unit.hostile_modes import OK_HEAD, chunk
from tests.unit.native_or_python import WAYS, choose
from tests.unit.raw_server import Asked, RawServer, models, plain, serving
from tests.unit.scripted_server import END, STREAM, TOKEN, USAGE, event

pytestmark = pytest.mark.alone


def errors(text: str, **shape: object) -> bytes:
    return plain(json.dumps({"error": text, **shape}).encode(), "400 Bad")


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
    "JSON error": lambda text: errors(text),
    "JSON message": lambda text: plain(json.dumps({"error": {"message": text}}).encode(), "400 Bad"),
    "JSON detail": lambda text: plain(json.dumps({"detail": [{"input": text}]}).encode(), "422 Bad"),
    "chunk size": lambda text: STREAM + f"{text}\r\n".encode(),
    "chunk extension": lambda text: STREAM + f"2;{text}\r\nhello\r\n".encode(),
    "trailer": lambda text: STREAM + TOKEN + TOKEN + USAGE + END[:-2] + f"X: {text}\r\n\r\n".encode(),
    "event that is no JSON": lambda text: STREAM + chunk(f"data: {text}\n\n".encode()) + END,
    "event with an error": lambda text: STREAM + event(error={"message": text}) + END,
    "event with an odd error": lambda text: STREAM + event(error={"odd": text}) + END,
    "text": lambda text: STREAM + event(choices=[{"text": text}]) + TOKEN + USAGE + END,
    "comment": lambda text: STREAM + chunk(f": {text}\n\n".encode()) + TOKEN + TOKEN + USAGE + END,
    "usage": lambda text: STREAM + TOKEN + event(usage={"prompt_tokens": text, "completion_tokens": text}) + END,
    "model": lambda text: STREAM + TOKEN + event(model=text, id=text, choices=[{"text": "x"}]) + USAGE + END,
}


def cut_texts() -> Iterator[str]:
    """The key at every place around the lengths to which words are shortened, and in pieces of every length."""
    for limit, words in product((80, QUOTED_LENGTH), ("x", "the key ")):
        filling = words * limit
        yield from (filling[:place] + KEY + " end" for place in range(max(0, limit - len(KEY) - 40), limit + 4))
    yield from (f"your key {KEY[:length]}… is wrong" for length in range(8, len(KEY)))
    yield from (f"your key …{KEY[start:]} is wrong" for start in range(len(KEY) - 8))


def answers() -> list[bytes]:
    spelled = [field(write(KEY)) for field, write in product(FIELDS.values(), WRITTEN.values())]
    return spelled + [FIELDS[name](text) for name in ("body", "event with an error", "retry-after", "status line")
                      for text in cut_texts()]  # fmt: skip


@pytest.mark.parametrize("native", WAYS)
def test_no_row_of_a_trial_holds_a_part_of_the_key(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(native, monkeypatch)
    todo = answers()
    count = len(todo)

    def repeat_the_key(connected: socket.socket, asked: Asked) -> None:
        assert asked.authorization == f"Bearer {KEY}"
        connected.sendall(todo.pop())
        connected.shutdown(socket.SHUT_RDWR)

    with serving(repeat_the_key) as server:
        workload = Workload(
            name="w", concurrency=1, input_tokens=4, output_tokens=2, requests=count, arrival=Arrival.CLOSED_LOOP
        )
        job = LoadJob(Endpoint(server.url, "m", KEY), workload, Vocabulary(1_000), (1,), 5.0, 2.0, Path(), True)
        rows = run_job(job).requests.to_pylist()
    assert not todo
    assert len(rows) == count
    leaking = {row["request"]: row["error"] for row in rows if traces(row["error"] or "")}
    assert not leaking
    assert sum(HIDDEN in (row["error"] or "") for row in rows) > count / 2, "they were quoted, without the key"


def test_what_is_no_part_of_the_key_is_quoted_as_it_is() -> None:
    assert quote("Incorrect API key provided: sk-1234.", "sk-1234") == "Incorrect API key provided: ***."
    assert quote("a short key is no secret, nor is none", "k") == "a short key is no secret, nor is none"
    assert quote(f"{KEY}{KEY} and {KEY[:9]}, but {KEY[:7]}", KEY) == f"{HIDDEN} and {HIDDEN}, but {KEY[:7]}"
    assert quote(" two\n lines\t", KEY) == "two lines"


REDIRECTS: dict[str, Callable[[RawServer, RawServer], str]] = {
    "same place": lambda here, there: f"{here.url}/v2/models",
    "other path, relative": lambda here, there: "/v2/models",
    "other port": lambda here, there: f"{there.url}/v1/models",
    "other name of this host": lambda here, there: f"http://localhost:{there.port}/v1/models",
    "with the key in it": lambda here, there: f"{there.url}/v1/models?key={KEY}",
    "no scheme": lambda here, there: f"//localhost:{there.port}/v1/models",
}


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("kind", REDIRECTS)
def test_the_key_follows_no_redirect(kind: str, code: int) -> None:
    with serving(lambda connected, asked: connected.sendall(models("m"))) as there:
        place: list[str] = []
        answer = lambda connected, asked: connected.sendall(plain(b"", f"{code} Moved", f"Location: {place[0]}"))  # noqa: E731
        with serving(answer) as here:
            place.append(REDIRECTS[kind](here, there))
            with pytest.raises(EndpointUnusable, match="it redirects to") as unusable:
                offered_models(Endpoint(here.url, "m", KEY))
            assert len(here.asked) == 1
        assert not there.asked
    assert not traces(str(unusable.value))


def test_the_key_follows_no_redirect_from_https_to_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
    with serving(lambda connected, asked: connected.sendall(models("m"))) as open_to_all:
        location = f"Location: {open_to_all.url}/v1/models"
        with (
            serving(lambda connected, asked: connected.sendall(plain(b"", "302 Found", location)),
                    certificate.server_context()) as encrypted,
            pytest.raises(EndpointUnusable, match="it redirects to http://"),
        ):  # fmt: skip
            offered_models(Endpoint(encrypted.url, "m", KEY))
        assert encrypted.asked[0].authorization == f"Bearer {KEY}"
        assert not open_to_all.asked


def answer_by_model(connected: socket.socket, asked: Asked) -> None:
    """Models are fields, and each answers with the key in that place."""
    if asked.path == "/v1/models":
        connected.sendall(models(*FIELDS, f"model-{KEY}"))
    else:
        connected.sendall(FIELDS[asked.model](KEY))
    connected.shutdown(socket.SHUT_RDWR)


def refuse_with_the_key(connected: socket.socket, asked: Asked) -> None:
    connected.sendall(plain(KEY.encode(), f"401 {KEY}", f"X-Key: {KEY}"))


def redirect_with_the_key(connected: socket.socket, asked: Asked) -> None:
    connected.sendall(plain(b"", "302 Found", f"Location: http://127.0.0.1:1/{KEY}"))


def no_http_but_the_key(connected: socket.socket, asked: Asked) -> None:
    connected.sendall(f"{KEY} {KEY}\r\n\r\n".encode())


def test_a_study_holds_nothing_of_the_key_in_any_file_nor_on_any_command_line(tmp_path: Path) -> None:
    """The whole way: `bitbench run` in a process of its own, its output, its children, its folder, its report."""
    chosen = ("body", "JSON message", "retry-after", "location", "usage", "text", "status line")
    with (
        serving(answer_by_model) as server,
        serving(refuse_with_the_key) as refusing,
        serving(redirect_with_the_key) as redirecting,
        serving(no_http_but_the_key) as silent,
    ):
        places = [(server.url, name) for name in chosen] + [(server.url, "unknown")]
        places += [(other.url, "m") for other in (refusing, redirecting, silent)]
        output, seen = run_study(tmp_path, places)
    assert not traces(output)
    assert not [line for line in seen if traces(line)]
    assert not traces_below(tmp_path)
    kept = (tmp_path / "out" / "trials.jsonl").read_text(encoding="utf-8")
    assert kept.count(HIDDEN) >= 4
    assert (tmp_path / "out" / "report" / "index.html").exists()


def run_study(folder: Path, places: list[tuple[str, str]]) -> tuple[str, set[str]]:
    """What it prints, and the command lines of all its processes."""
    engines = [
        {"engine": "endpoint", "name": f"e{number}", "args": {"url": url, "model": model, "api_key_env": "CANARY"}}
        for number, (url, model) in enumerate(places)
    ]
    study = {
        "name": "canary",
        "engines": engines,
        "workloads": [{"name": "w", "concurrency": 1, "input_tokens": 4, "output_tokens": 2}],
        "measure": {"instances": 1, "trials": 1},
    }
    (folder / "study.yaml").write_text(json.dumps(study), encoding="utf-8")
    command = [sys.executable, "-m", "bitbench", "run", "study.yaml", "--into", "out"]
    output, seen = folder / "output.txt", set[str]()
    with output.open("wb") as file:
        running = subprocess.Popen(
            command, cwd=folder, env={**os.environ, "CANARY": KEY}, stdout=file, stderr=subprocess.STDOUT
        )
        while running.poll() is None:
            seen |= command_lines(running.pid)
            time.sleep(0.02)
    said = output.read_text(encoding="utf-8")
    assert seen, said
    assert "this is a bug" not in said
    return said, seen


def command_lines(pid: int) -> set[str]:
    try:
        process = psutil.Process(pid)
        return {" ".join(each.cmdline()) for each in (process, *process.children(recursive=True))}
    except psutil.Error:
        return set()
