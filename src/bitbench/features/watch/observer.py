"""`bitbench run --watch`: a page in the browser while a study runs.

Pages are made between trials and between blocks, never while a trial runs.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from bitbench.features.watch.server import LiveServer
from bitbench.features.watch.types import Questions, RunProgress
from bitbench.features.watch.words import REFRESH_S, live_page, questions
from bitbench.ports import Observer
from bitbench.records.folder import StudyFolder
from bitbench.records.load_progress import LoadProgress
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.reports.document.html import page
from bitbench.reports.document.vega import vega_bundle
from bitbench.reports.write import report_document, report_summary
from bitbench.study.plan import Config, Group, Plan, Point


@contextmanager
def watched(
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

    def instance_ready(self, record: InstanceRecord) -> None:
        self._inner.instance_ready(record)

    def trial_started(self, point: Point, index: int, *, warmup: bool) -> None:
        what = "warm-up" if warmup else f"trial {index + 1}"
        self._show(replace(self._progress, activity=f"Block {self._block + 1}: {point.name}, {what}."))
        self._inner.trial_started(point, index, warmup=warmup)

    def trial_running(self, progress: LoadProgress) -> None:
        self._inner.trial_running(progress)

    def trial_finished(self, record: TrialRecord) -> None:
        done = self._progress.trials_done + (record.kind == "measured")
        planned = self._progress.trials_planned
        self._progress = replace(self._progress, trials_done=done, trials_planned=planned and max(planned, done))
        self._inner.trial_finished(record)

    def quality_running(self, config: Config, step: str) -> None:
        self._show(replace(self._progress, activity=f"{config.name}: quality, {step}."))
        self._inner.quality_running(config, step)

    def quality_finished(self, record: QualityRecord) -> None:
        self._inner.quality_finished(record)

    def note(self, message: str) -> None:
        self._show(replace(self._progress, activity=message))
        self._inner.note(message)

    def warn(self, message: str) -> None:
        self._inner.warn(message)

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
        records = self._folder.read()
        summary = report_summary(self._folder, self._home, records)
        self._questions = questions(summary)
        document = report_document(self._folder, self._home, summary, records)
        self._server.publish("/report", "text/html", page(document, vega_bundle(self._home)))
        self._has_report = True
