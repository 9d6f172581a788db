"""The terminal output while a study runs."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from bitbench.analysis.objectives import check_objectives
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import (
    InstanceRecord,
    LoadProgress,
    ObjectiveResult,
    Outcome,
    TrialRecord,
)
from bitbench.reports.document.words import format_count
from bitbench.study.objective import Objective
from bitbench.study.plan import Config, Group, Plan, Point
from bitbench.util.units import show_bytes, show_duration, show_seconds, show_significant

WIDE = 80  # columns from which a line has all metrics of a trial and wraps if names are long
SILENT_S = 30.0  # time after which a log, which has no live line, gets a line on the current step


def _show_objectives(result: ObjectiveResult | None) -> list[tuple[str, str]]:
    """Return texts, each with its style: whether a trial meets the objectives of its study, and
    which it misses. The list is empty without objectives."""
    if result is None:
        return []
    if result.holds:
        return [("  meets", "green")]
    if result.holds is None:
        return [(f"  unknown: {result.why_not}", "yellow")]
    return [("  fails", "red"), (f": {result.why_not}", "dim")]


class RunDisplay:
    """An Observer with a line per event and a live line at the bottom of a terminal. In a log, an
    occasional line replaces the live one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._remaining_s: float | None = None
        self._trial = ""  # description of the running trial
        self._objectives: tuple[Objective, ...] = ()
        self._told_at = time.monotonic()
        self._printed_at = self._told_at
        # The cause of the newest failure. A repeated one is shown as "as above", since an engine
        # often fails in the same way on every workload.
        self._cause: str | None = None
        self._is_narrow = console.width < WIDE
        bar = [] if self._is_narrow else [BarColumn(bar_width=24)]
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            *bar,
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
            refresh_per_second=2,  # drawing takes processor time from the engine under test
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("preparing", total=None, left="")

    def __enter__(self) -> "RunDisplay":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def study_started(self, plan: Plan, trials_done: int) -> None:
        """Show a bar for the minimum number of trials. Further trials, for more precision, make it
        longer. It never becomes full, since that would stop its clock."""
        self._objectives = plan.study.objectives
        measure = plan.study.measure
        minimum = len(plan.points) * measure.starts.min * measure.trials.min
        self._progress.update(
            self._task, total=max(minimum, trials_done + 1), completed=trials_done
        )
        if trials_done:
            self._print(f"resuming after {format_count(trials_done, 'trial')}")

    def group_started(self, group: Group, remaining_s: float | None) -> None:
        self._remaining_s = remaining_s
        self._told_at = time.monotonic()
        self._describe(f"{group.name}: starting")

    def instance_ready(self, record: InstanceRecord) -> None:
        if record.outcome is not Outcome.OK:
            return  # its trials show the failure
        facts = [f"ready in {show_seconds(record.ready_s)}"]
        if record.facts.engine_version:
            facts.append(record.facts.engine_version)
        if record.memory.resident_bytes:
            facts.append(show_bytes(record.memory.resident_bytes))
        self._print((record.id, "bold"), f" {record.config.name}  ", (", ".join(facts), "dim"))

    def trial_started(self, point: Point, index: int, *, warmup: bool) -> None:
        phase = "warm-up" if warmup else f"trial {index + 1}"
        self._trial = f"{point.config.name}: {point.workload}, {phase}"
        self._describe(self._trial)

    def trial_running(self, progress: LoadProgress) -> None:
        ended = progress.succeeded + progress.failed
        failed = f" ({progress.failed:,} failed)" if progress.failed else ""
        self._describe(f"{self._trial}, {ended:,}/{progress.requests:,} requests{failed}")

    def trial_finished(self, record: TrialRecord) -> None:
        if record.kind == "warmup":
            return
        (task,) = self._progress.tasks
        done = int(task.completed) + 1
        self._progress.update(self._task, completed=done, total=max(task.total or 0, done + 1))
        name = f"{record.point.config.name}  {record.point.workload}"
        if record.outcome is Outcome.OK:
            metrics = record.metrics
            line = f"  {record.id} {name}  {show_significant(metrics.output_throughput)} tok/s"
            times = f", TTFT {show_seconds(metrics.ttft_s)}, TPOT {show_seconds(metrics.tpot_s)}"
            if not self._is_narrow or len(line + times) <= self._console.width:
                line += times
            self._print(line, *_show_objectives(record.objectives))
            return
        is_rejected = record.outcome is Outcome.CLIENT_BOUND
        # A search still uses a trial if the late client cannot have changed its result.
        is_used = is_rejected and check_objectives(record, self._objectives) is not None
        word = "rejected" if is_rejected and not is_used else record.outcome
        cause = record.cause or ""
        if cause and cause == self._cause:
            cause = "as above"
        self._cause = record.cause
        objectives = _show_objectives(record.objectives) if is_used else []
        self._print(f"  {record.id} {name}  ", (word, "yellow"), f": {cause}", *objectives)

    def quality_running(self, config: Config, step: str) -> None:
        self._describe(f"{config.name}: quality, {step}")

    def quality_finished(self, record: QualityRecord) -> None:
        head = f"  {record.id} {record.config.name}  quality: "
        if record.outcome is Outcome.OK:
            duration = show_seconds(record.duration_s)
            self._print(f"{head}{record.tokens:,} tokens in {duration}")
        else:
            self._print(head, (record.outcome, "yellow"), f": {record.cause or ''}")

    def note(self, message: str) -> None:
        if self._console.is_terminal:
            self._describe(message)
        else:
            self._print(message)

    def warn(self, message: str) -> None:
        self._print(("warning:", "yellow"), f" {message}")

    def _describe(self, text: str) -> None:
        remaining_s = (self._remaining_s or 0.0) - (time.monotonic() - self._told_at)
        left = f"about {show_duration(remaining_s)} left" if remaining_s > 0 else ""
        self._progress.update(self._task, description=text, left=left)
        if not self._console.is_terminal and time.monotonic() - self._printed_at >= SILENT_S:
            self._print(f"  {text}", f" ({left})" if left else "")

    def _print(self, *parts: str | tuple[str, str]) -> None:
        """Print the parts as one line. A part is a text, or a text with its style."""
        self._printed_at = time.monotonic()
        self._console.print(Text.assemble(*parts), soft_wrap=True)
