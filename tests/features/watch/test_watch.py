"""`bitbench run --watch`: the page says how far it is and what is decided, and gives nothing else to anybody else."""

import http.client
import json
import socket
import threading
import time
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bitbench.features.watch.observer import LiveServer
from bitbench.measure.offers import LogObserver, watched
from bitbench.measure.runner import measure_study
from bitbench.measure.workplace import Workplace
from bitbench.records.folder import StudyFolder
from bitbench.util.errors import UsageError

STUDY = """
name: seen
engines:
  - {engine: null, name: slow, args: {ttft: 800ms, vary: 0.01, vary_instance: 0.01}}
  - {engine: null, name: fast, args: {ttft: 200ms, vary: 0.01, vary_instance: 0.01}}
workloads:
  - {name: single, concurrency: 1, input_tokens: 8, output_tokens: 1}
measure: {starts: 3, trials: 2, schedule: visits}
baseline: slow
"""


def ask(url: str, path: str = "/", *, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_it_tells_progress_and_what_is_decided_while_the_study_runs_and_after_it(tmp_path: Path) -> None:
    (tmp_path / "seen.yaml").write_text(STUDY)
    at, urls, seen, pages = Workplace(tmp_path / "home"), [], [], []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            seen.append(json.loads(ask(urls[0], "/progress.json")[1]))

    looking = threading.Thread(target=look)
    with watched(at.home, StudyFolder(tmp_path / "out"), LogObserver(), port=0, on_url=urls.append) as observer:
        ended = observer.ended

        def look_once_more(sentence: str) -> None:
            ended(sentence)
            pages.append(ask(urls[0]))
            over.set()
            looking.join()

        observer.ended = look_once_more  # type: ignore[method-assign]
        looking.start()
        measure_study(tmp_path / "seen.yaml", tmp_path / "out", observer, at)
        status, report = ask(urls[0], "/report")
        pages.append(ask(urls[0]))
    assert status == 200
    assert "fast" in report
    counts = [progress["trials_done"] for progress in seen]
    assert counts == sorted(counts)
    assert {progress["trials_planned"] for progress in seen} >= {12}
    assert any(progress["remaining_s"] for progress in seen)
    questions = [row for progress in seen for row in progress["questions"]]
    assert any("fast" in row["still_open"] for row in questions)  # after the first block
    (status, page), (_, last) = pages
    assert status == 200
    assert '<meta http-equiv="refresh"' in page
    assert "Finished." in last
    assert "fast is faster than slow" in last
    assert 'http-equiv="refresh"' not in last
    with pytest.raises(ConnectionRefusedError):  # it ended with the run
        ask(urls[0])


def test_only_a_browser_of_this_machine_gets_only_what_was_published() -> None:
    with LiveServer() as server:
        server.publish("/", "text/html", "<p>here</p>")
        assert ask(server.url) == (200, "<p>here</p>")
        assert ask(server.url, host="evil.example")[0] == 421
        assert ask(server.url, "/../../etc/passwd")[0] == 404
        assert ask(server.url, "/?x")[0] == 404
        assert ask(server.url, method="POST")[0] == 501
        assert server.url.startswith("http://127.0.0.1:")
        port = urlsplit(server.url).port
        assert port is not None
        with pytest.raises(UsageError, match="give another, or none"):
            LiveServer(port)


def test_a_page_of_another_name_that_was_bent_to_this_machine_gets_nothing() -> None:
    """A name that its owner lets point to 127.0.0.1: a browser takes what comes for that site's own."""
    with LiveServer() as server:
        server.publish("/", "text/html", "<p>here</p>")
        server.publish("/progress.json", "application/json", "{}")
        port = urlsplit(server.url).port
        before = time.monotonic()
        near = ("127.0.0.1.evil.example", "localhost.", "localhost.evil", "0.0.0.0", "[::1]", "evil.example")
        odd = (f"127.0.0.1:{port}@evil.example", f"evil.example, 127.0.0.1:{port}", "127.0.0.1:80")
        hosts = ("", "127.0.0.1", "localhost", *odd, *near, *(f"{name}:{port}" for name in near))
        for path, host in product(("/", "/progress.json", "/report", "http://127.0.0.1/"), hosts):
            assert ask(server.url, path, host=host)[0] == 421, (path, host)
        with socket.create_connection(("127.0.0.1", port)) as old:  # HTTP/1.0 names no host
            old.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert b" 421 " in old.makefile("rb").readline()
        assert not server.was_asked_since(before)  # nor is anybody waited for because of it
        assert ask(server.url, host=f"localhost:{port}")[0] == 200
