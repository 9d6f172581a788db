"""The client against servers that behave and servers that do not, on real sockets."""

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO

import pyarrow as pa
import pytest

from bitbench.core.ports import Endpoint, LoadJob, Vocabulary
from bitbench.core.records import REQUEST_COLUMNS, REQUEST_STATUSES
from bitbench.core.workload import Arrival, Workload
from bitbench.load.client import run_job

Script = Callable[[socket.socket, int], None]


def event(**message: object) -> bytes:
    data = b"data: " + json.dumps(message).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = event(choices=[{"text": "x", "finish_reason": None}])
USAGE = event(choices=[], usage={"prompt_tokens": 4, "completion_tokens": 2})
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class ScriptedServer:
    """Answers each request by a script; counts connections and keeps what was asked."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.prompts: list[list[int]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        with connected, connected.makefile("rb") as reader, contextlib.suppress(OSError):
            for number in itertools.count():
                length = _length_of_next_request(reader)
                if length is None:
                    return
                self.prompts.append(json.loads(reader.read(length))["prompt"])
                self._script(connected, number)


def _length_of_next_request(reader: IO[bytes]) -> int | None:
    """Read a head; None when there is no further request."""
    length = None
    while (line := reader.readline()).strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return length


@pytest.fixture
def serve() -> Iterator[Callable[[Script], ScriptedServer]]:
    servers = []

    def start(script: Script) -> ScriptedServer:
        servers.append(ScriptedServer(script))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def run(port: int, *, limit_s: float = 20.0, stall_s: float = 10.0, **shape: object) -> list[dict[str, object]]:
    settings = {"name": "w", "concurrency": 1, "input_tokens": 4, "output_tokens": 2, **shape}
    workload = Workload.model_validate(settings)
    job = LoadJob(Endpoint(f"http://127.0.0.1:{port}", "m", "k"), workload, Vocabulary(1_000), (1,), limit_s, stall_s)
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


def test_a_good_stream_gives_ordered_times_and_the_engines_counts(serve: Callable[[Script], ScriptedServer]) -> None:
    (row,) = run(serve(good).port)
    assert (row["status"], row["http_status"], row["input_tokens"], row["output_tokens"]) == ("ok", 200, 4, 2)
    times = [row[name] for name in ("planned_s", "sent_s", "first_token_s", "last_token_s", "end_s")]
    assert times == sorted(times)  # type: ignore[type-var]
    assert times[0] == 0
    first, last = row["chunk_s"]  # type: ignore[misc]
    assert (first, last) == (row["first_token_s"], row["last_token_s"])
    assert last - first >= 0.02


def test_a_batch_sends_all_at_once_with_fresh_prompts(serve: Callable[[Script], ScriptedServer]) -> None:
    server = serve(good)
    rows = run(server.port, concurrency=5)
    assert [row["request"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["planned_s"] for row in rows] == [0] * 5
    assert server.connections == 5
    assert len({tuple(prompt) for prompt in server.prompts}) == 5


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


def test_a_closed_loop_opens_a_new_connection_where_the_server_closes(
    serve: Callable[[Script], ScriptedServer],
) -> None:
    def close_after_each(connected: socket.socket, number: int) -> None:
        connected.sendall(STREAM.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + TOKEN + TOKEN + USAGE + END)
        connected.shutdown(socket.SHUT_RDWR)

    server = serve(close_after_each)
    rows = run(server.port, requests=3, arrival=Arrival.CLOSED_LOOP)
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert server.connections == 3


def send_and_close(data: bytes) -> Script:
    def script(connected: socket.socket, number: int) -> None:
        connected.sendall(data)
        connected.shutdown(socket.SHUT_RDWR)

    return script


def send_and_wait(data: bytes) -> Script:
    def script(connected: socket.socket, number: int) -> None:
        connected.sendall(data)
        time.sleep(1.5)

    return script


ERROR_BODY = b'{"error": {"message": "the prompt is too long"}}'
HTTP_ERROR = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(ERROR_BODY) + ERROR_BODY


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
        (send_and_close(STREAM + TOKEN + event(error={"message": "the engine died"}) + END), "broken", "engine died"),
        (send_and_close(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "broken", "not HTTP"),
        (send_and_wait(HTTP_ERROR), "http_error", "the prompt is too long"),
        (send_and_wait(STREAM + TOKEN), "stalled", "no byte for 200 ms"),
        (send_and_wait(b""), "stalled", "no byte for 200 ms"),
    ],
)
def test_what_goes_wrong_is_typed_and_said(
    serve: Callable[[Script], ScriptedServer], script: Script, status: str, said: str
) -> None:
    (row,) = run(serve(script).port, stall_s=0.2)
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
        for _ in range(100):
            connected.sendall(TOKEN)
            time.sleep(0.02)

    (row,) = run(serve(drip).port, limit_s=0.3, stall_s=0.2)
    assert row["status"] == "timeout"
    assert 0.3 <= float(row["end_s"]) < 0.6  # type: ignore[arg-type]
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
