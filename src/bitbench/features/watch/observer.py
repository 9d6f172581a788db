"""`bitbench run --watch`: a page in the browser while a study runs, served to this machine alone, GET only, nothing
from the disk.

Pages are made between trials and between blocks, never while a trial runs.
"""

import json
import math
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

from bitbench.features.watch.words import REFRESH_S, Questions, RunProgress, live_page, watch_page_questions
from bitbench.ports import Observer
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import TrialRecord
from bitbench.reports.document.html import html_page, vega_bundle
from bitbench.reports.write import StudyReport
from bitbench.study.plan import Config, Group, Plan, Point
from bitbench.util.errors import UsageError

HOST = "127.0.0.1"
_SLOWEST_REQUEST_S = 5.0


class LiveServer:
    """A context manager. Pages are bytes that were made before: a request costs no more than sending them."""

    def __init__(self, port: int = 0) -> None:
        """Port 0: any that is free. Raises UsageError where it is taken."""
        try:
            self._server = _Server((HOST, port), _Handler)
        except OSError as error:
            raise UsageError(f"--port {port} cannot be used ({error.strerror}); give another, or none") from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}/"

    def publish(self, path: str, kind: str, content: str) -> None:
        """`path` as a browser asks for it, such as `/`; what it held before is replaced."""
        self._server.pages[path] = (kind, content.encode())

    def was_asked_since(self, moment_s: float) -> bool:
        """For a page, by `time.monotonic`."""
        return self._server.last_asked_s > moment_s

    def __enter__(self) -> "LiveServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.last_asked_s = -math.inf
        super().__init__(*arguments)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _SLOWEST_REQUEST_S
    server_version, sys_version = "bitbench", ""

    def do_GET(self) -> None:
        server = cast("_Server", self.server)
        port = server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):  # a name that was bent to loopback
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        server.last_asked_s = time.monotonic()
        if self.path not in server.pages:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, content = server.pages[self.path]
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """The terminal is for the study."""


@contextmanager
def watch_run(
    home: Path, into: StudyFolder | None, inner: Observer, *, port: int, on_url: Callable[[str], None]
) -> Iterator["WatchedRun"]:
    """Serve the page until the run has ended, however it does."""
    with LiveServer(port) as server:
        run = WatchedRun(home, into, server, inner)
        on_url(server.url)
        try:
            yield run
        except BaseException:
            run.ended("Stopped before its end; the same command resumes it.")
            raise
        run.read_records()
        run.ended("Finished.")


class WatchedRun:
    """An Observer that keeps the page of a running study, and passes everything on to another one."""

    def __init__(self, home: Path, into: StudyFolder | None, server: LiveServer, inner: Observer) -> None:
        self._home, self._into, self._server, self._inner = home, into, server, inner
        # What the page does not show.
        self.instance_ready, self.trial_running = inner.instance_ready, inner.trial_running
        self.quality_finished, self.warn = inner.quality_finished, inner.warn
        self._name = ""
        self._folder: StudyFolder | None = None
        self._block = 0
        self._progress = RunProgress()
        self._questions: tuple[Questions, ...] = ()
        self._has_report = False
        self._publish()

    def ended(self, sentence: str) -> None:
        """The last page stays in the browser. Where one is open, it gets the time to ask for it."""
        self._show(replace(self._progress, ended=sentence, activity="This page is no longer updated."))
        ended_s = time.monotonic()
        is_open = self._server.was_asked_since(ended_s - 2 * REFRESH_S)
        while is_open and not self._server.was_asked_since(ended_s) and time.monotonic() < ended_s + REFRESH_S + 1:
            time.sleep(0.1)

    def study_started(self, plan: Plan, trials_done: int) -> None:
        measure = plan.study.measure
        least = len(plan.points) * measure.starts.min * measure.trials.min
        planned = max(least, trials_done) if measure.budget is None else None
        self._name = plan.study.name
        self._folder = self._into or StudyFolder(Path(plan.study.name))
        self._show(replace(self._progress, trials_done=trials_done, trials_planned=planned))
        self._inner.study_started(plan, trials_done)

    def group_started(self, group: Group, remaining_s: float | None) -> None:
        if group.block > self._block:
            self._block = group.block
            self.read_records()
        self._show(replace(self._progress, remaining_s=remaining_s, activity=f"Starting {group.name}."))
        self._inner.group_started(group, remaining_s)

    def trial_started(self, point: Point, index: int, *, warmup: bool) -> None:
        what = "warm-up" if warmup else f"trial {index + 1}"
        self._show(replace(self._progress, activity=f"Block {self._block + 1}: {point.name}, {what}."))
        self._inner.trial_started(point, index, warmup=warmup)

    def trial_finished(self, record: TrialRecord) -> None:
        done = self._progress.trials_done + (record.kind == "measured")
        planned = self._progress.trials_planned
        self._progress = replace(self._progress, trials_done=done, trials_planned=planned and max(planned, done))
        self._inner.trial_finished(record)

    def quality_running(self, config: Config, step: str) -> None:
        self._show(replace(self._progress, activity=f"{config.name}: quality, {step}."))
        self._inner.quality_running(config, step)

    def note(self, message: str) -> None:
        self._show(replace(self._progress, activity=message))
        self._inner.note(message)

    def _show(self, progress: RunProgress) -> None:
        self._progress = progress
        self._publish()

    def _publish(self) -> None:
        shown = live_page(self._name, self._progress, self._questions, has_report=self._has_report)
        content = asdict(self._progress) | {"study": self._name, "questions": [asdict(row) for row in self._questions]}
        self._server.publish("/", "text/html", shown)
        self._server.publish("/progress.json", "application/json", json.dumps(content))

    def read_records(self) -> None:
        """What the complete blocks say, and the report of them."""
        assert self._folder is not None
        report = StudyReport(self._folder, self._home)
        self._questions = watch_page_questions(report.summary)
        self._server.publish("/report", "text/html", html_page(report.document, vega_bundle(self._home)))
        self._has_report = True
