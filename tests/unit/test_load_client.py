"""The client against servers that behave and servers that do not, on real sockets."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from bitbench.loadgen.client import run_job
from bitbench.ports import Endpoint, LoadJob, Vocabulary
from bitbench.records.tables import REQUEST_COLUMNS, REQUEST_STATUSES
from bitbench.study.workload import Arrival, Workload
from tests.support.certificate import make_certificate
from tests.support.scripted_server import END, STREAM, TOKEN, USAGE, Script, ScriptedServer, event
from tests.support.with_receiver import BOTH, WAYS, choose


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(request.param, monkeypatch)


@pytest.fixture
def serve() -> Iterator[Callable[[Script], ScriptedServer]]:
    servers = []

    def start(script: Script) -> ScriptedServer:
        servers.append(ScriptedServer(script))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def run(
    port: int,
    *,
    limit_s: float = 20.0,
    stall_s: float = 10.0,
    scheme: str = "http",
    go_on: bool = False,
    **shape: object,
) -> list[dict[str, object]]:
    settings = {"name": "w", "concurrency": 1, "input_tokens": 4, "output_tokens": 2, **shape}
    workload = Workload.model_validate(settings)
    endpoint = Endpoint(f"{scheme}://127.0.0.1:{port}", "m", "k")
    job = LoadJob(
        endpoint, workload, Vocabulary(1_000), (1,), limit_s, stall_s, go_on_after_failure=go_on
    )
    result = run_job(job)
    assert isinstance(result.requests, pa.Table)
    assert result.requests.column_names == [column.name for column in REQUEST_COLUMNS]
    rows: list[dict[str, object]] = result.requests.to_pylist()
    assert all(row["status"] in REQUEST_STATUSES for row in rows)
    return rows


def good(connected: socket.socket, number: int) -> None:
    connected.sendall(STREAM + TOKEN)
    time.sleep(0.02)
    connected.sendall(TOKEN + USAGE + END)


def good_with_a_pause(connected: socket.socket, number: int) -> None:
    """So long that a client that a busy machine stalls still reads the two tokens one by one."""
    connected.sendall(STREAM + TOKEN)
    time.sleep(0.5)
    connected.sendall(TOKEN + USAGE + END)


@pytest.mark.parametrize("way", BOTH, indirect=True)
def test_a_good_stream_gives_ordered_times_and_the_engines_counts(
    serve: Callable[[Script], ScriptedServer],
) -> None:
    (row,) = run(serve(good_with_a_pause).port)
    assert (row["status"], row["http_status"], row["input_tokens"], row["output_tokens"]) == (
        "ok",
        200,
        4,
        2,
    )
    times = [
        row[name] for name in ("planned_s", "sent_s", "first_token_s", "last_token_s", "end_s")
    ]
    assert times == sorted(times)  # type: ignore[type-var]
    assert times[0] == 0
    first, last = row["chunk_s"]  # type: ignore[misc]
    assert (first, last) == (row["first_token_s"], row["last_token_s"])
    assert last > first


def test_a_batch_sends_all_at_once_with_fresh_prompts(
    serve: Callable[[Script], ScriptedServer],
) -> None:
    server = serve(good)
    rows = run(server.port, concurrency=5)
    assert [row["request"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["planned_s"] for row in rows] == [0] * 5
    assert server.connections == 5
    assert len({tuple(prompt) for prompt in server.prompts}) == 5


@pytest.mark.parametrize("way", BOTH, indirect=True)
def test_a_closed_loop_plans_each_request_at_the_end_of_the_one_before(
    serve: Callable[[Script], ScriptedServer],
) -> None:
    server = serve(good)
    rows = run(server.port, concurrency=2, requests=7, arrival=Arrival.CLOSED_LOOP)
    assert len(rows) == 7
    assert {row["status"] for row in rows} == {"ok"}
    assert server.connections == 2  # kept, not opened again
    planned, ends = ([row[name] for row in rows] for name in ("planned_s", "end_s"))
    assert planned[:2] == [0, 0]
    assert planned[2:] == ends[:5]  # of the request before it on its stream


@pytest.mark.parametrize("way", BOTH, indirect=True)
@pytest.mark.parametrize(
    "said", [b"\r\nConnection: close\r\n\r\n", b"\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"]
)
def test_a_closed_loop_opens_a_new_connection_where_the_server_closes(
    serve: Callable[[Script], ScriptedServer], said: bytes
) -> None:
    """Also where it says nothing of it, as llama.cpp: then the next request may be on its way already."""

    def close_after_each(connected: socket.socket, number: int) -> None:
        connected.sendall(STREAM.replace(b"\r\n\r\n", said) + TOKEN + TOKEN + USAGE + END)
        connected.shutdown(socket.SHUT_RDWR)

    server = serve(close_after_each)
    rows = run(server.port, requests=3, arrival=Arrival.CLOSED_LOOP)
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert server.connections == 3


def test_a_request_is_sent_again_only_once(serve: Callable[[Script], ScriptedServer]) -> None:
    def answer_the_first(connected: socket.socket, number: int) -> None:
        if server.connections == 1 and number == 0:
            good(connected, number)
        else:
            connected.shutdown(socket.SHUT_RDWR)

    server = serve(answer_the_first)
    first, second, *others = run(server.port, requests=4, arrival=Arrival.CLOSED_LOOP)
    assert (first["status"], second["status"], others) == ("ok", "broken", [])
    assert server.connections == 2


def send_and_close(data: bytes) -> Script:
    def script(connected: socket.socket, number: int) -> None:
        connected.sendall(data)
        connected.shutdown(socket.SHUT_RDWR)

    return script


def send_and_wait(data: bytes) -> Script:
    def script(connected: socket.socket, number: int) -> None:
        connected.sendall(data)
        time.sleep(5.0)

    return script


ERROR_BODY = b'{"error": {"message": "the prompt is too long"}}'
HTTP_ERROR = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(ERROR_BODY) + ERROR_BODY
)


TOO_MANY = HTTP_ERROR.replace(b"400 Bad Request", b"429 Too Many Requests\r\nRetry-After: 7")


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        (
            send_and_close(STREAM + TOKEN),
            "broken",
            "closed the connection before the answer was complete, after 1 chunks",
        ),
        (send_and_close(b""), "broken", "closed the connection"),
        (send_and_close(STREAM + TOKEN + TOKEN + USAGE + b"0\r\n\r\n"), "broken", "without [DONE]"),
        (send_and_close(STREAM + TOKEN + TOKEN + END), "broken", "without usage"),
        (
            send_and_close(STREAM + TOKEN + event(error={"message": "the engine died"}) + END),
            "broken",
            "engine died",
        ),
        (send_and_close(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "broken", "not HTTP"),
        (send_and_wait(HTTP_ERROR), "http_error", "the prompt is too long"),
        (
            send_and_wait(TOO_MANY),
            "rate_limited",
            "the prompt is too long; it says to try again after 7 s",
        ),
        (send_and_wait(STREAM + TOKEN), "stalled", "no byte for 1.00 s"),
        (send_and_wait(b""), "stalled", "no byte for 1.00 s"),
    ],
)
def test_what_goes_wrong_is_typed_and_said(
    serve: Callable[[Script], ScriptedServer], script: Script, status: str, said: str
) -> None:
    (row,) = run(serve(script).port, stall_s=1.0 if status == "stalled" else 10.0)
    assert row["status"] == status
    assert said in str(row["error"])
    assert row["end_s"] is not None


def test_nothing_is_sent_after_a_failure(serve: Callable[[Script], ScriptedServer]) -> None:
    def fail_the_second(connected: socket.socket, number: int) -> None:
        if number == 1:
            connected.sendall(HTTP_ERROR)
        else:
            good(connected, number)

    rows = run(serve(fail_the_second).port, requests=5, arrival=Arrival.CLOSED_LOOP)
    assert [row["status"] for row in rows] == ["ok", "http_error"]


def test_a_stream_that_never_ends_is_timed_out(serve: Callable[[Script], ScriptedServer]) -> None:
    def drip(connected: socket.socket, number: int) -> None:
        connected.sendall(STREAM)
        for _ in range(1_000):
            connected.sendall(TOKEN)
            time.sleep(0.02)

    (row,) = run(serve(drip).port, limit_s=1.5, stall_s=1.0)
    assert row["status"] == "timeout"
    assert 1.5 <= float(row["end_s"]) < 10  # type: ignore[arg-type]  # half of what the stream takes
    assert len(row["chunk_s"]) > 5  # type: ignore[arg-type]


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    rows = run(port, concurrency=3)
    assert [row["status"] for row in rows] == ["refused"] * 3
    assert all(row["sent_s"] is None and row["first_token_s"] is None for row in rows)
    assert f"no connection to 127.0.0.1:{port}" in str(rows[0]["error"])


def test_a_request_larger_than_the_socket_takes_at_once_is_sent_whole(
    serve: Callable[[Script], ScriptedServer],
) -> None:
    server = serve(good)
    (row,) = run(server.port, input_tokens=1_000_000)
    assert row["status"] == "ok"
    assert len(server.prompts[0]) == 1_000_000


def test_after_a_failure_it_goes_on_where_that_is_asked(
    serve: Callable[[Script], ScriptedServer],
) -> None:
    def fail_the_second(connected: socket.socket, number: int) -> None:
        if number == 1:
            connected.sendall(TOO_MANY)
        else:
            good(connected, number)

    rows = run(serve(fail_the_second).port, requests=4, arrival=Arrival.CLOSED_LOOP, go_on=True)
    assert [row["status"] for row in rows] == ["ok", "rate_limited", "ok", "ok"]


def test_an_open_loop_waits_for_no_answer(serve: Callable[[Script], ScriptedServer]) -> None:
    """The server answers nobody before all have asked; a client that waited would never get there."""
    all_asked = threading.Barrier(12)

    def answer_all_together(connected: socket.socket, number: int) -> None:
        all_asked.wait(15)
        good(connected, number)

    rows = run(
        serve(answer_all_together).port,
        concurrency=1,
        requests=12,
        arrival={"kind": "constant", "rate": 100.0},
    )
    assert [row["status"] for row in rows] == ["ok"] * 12
    assert [row["planned_s"] for row in rows] == pytest.approx(
        [number / 100 for number in range(12)]
    )
    assert all(row["sent_s"] >= row["planned_s"] for row in rows)  # type: ignore[operator]


def test_connections_are_open_before_an_open_loop_needs_them(
    serve: Callable[[Script], ScriptedServer],
) -> None:
    """Long answers and a steady rate: each request needs a connection that no other one gave back."""

    def slow(connected: socket.socket, number: int) -> None:
        connected.sendall(STREAM + TOKEN)
        time.sleep(2.2)
        connected.sendall(TOKEN + USAGE + END)

    server = serve(slow)
    seen: list[int] = []

    def note(connected: socket.socket, number: int) -> None:
        seen.append(server.connections)
        slow(connected, number)

    server._script = note
    rows = run(server.port, requests=50, arrival={"kind": "constant", "rate": 25.0})
    assert [row["status"] for row in rows] == ["ok"] * 50
    # When request number n came, n + 1 connections were in use; those of the next requests were open already.
    assert sum(opened > place + 1 for place, opened in enumerate(seen[:40])) > 30


def test_a_conversation_thinks_between_its_turns(serve: Callable[[Script], ScriptedServer]) -> None:
    server = serve(good)
    conversation = {"turns": 3, "think": 0.05}
    rows = run(
        server.port,
        concurrency=2,
        conversation=conversation,
        arrival=Arrival.CLOSED_LOOP,
        requests=6,
    )
    assert [row["status"] for row in rows] == ["ok"] * 6
    for before, after in ((0, 2), (2, 4), (1, 3), (3, 5)):
        thought = float(rows[after]["planned_s"]) - float(rows[before]["end_s"])  # type: ignore[arg-type]
        assert thought == pytest.approx(0.05)
        assert rows[after]["sent_s"] >= rows[after]["planned_s"]  # type: ignore[operator]
    assert server.connections == 2


@pytest.mark.parametrize("way", BOTH, indirect=True)
def test_an_encrypted_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path)
    server = ScriptedServer(good, certificate.server_context())
    try:
        (stranger,) = run(server.port, scheme="https")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
        rows = run(
            server.port, scheme="https", concurrency=2, requests=6, arrival=Arrival.CLOSED_LOOP
        )
    finally:
        server.stop()
    assert stranger["status"] == "refused"
    assert "certificate verify failed" in str(stranger["error"])
    assert [row["status"] for row in rows] == ["ok"] * 6
    assert all(row["sent_s"] < row["first_token_s"] <= row["end_s"] for row in rows)  # type: ignore[operator]
