"""The terminal while an endpoint is under load: one live panel, one line per finished trial above it."""

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bitbench.analysis.objectives import held
from bitbench.cli.progress import WIDE
from bitbench.measure.load_study import PreparedLoad
from bitbench.records.load_progress import LoadProgress, Percentiles
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import NOT_THE_ENGINES, InstanceRecord, Outcome, TrialRecord
from bitbench.reports.document.words import plural
from bitbench.study import plan as points
from bitbench.study.plan import Config, Plan, Point
from bitbench.util.units import show_percent, show_seconds, significant

NAME_WIDTH = 9  # a longer name shifts its line
REDRAW_S = 0.5  # drawing costs processor time that a server on the same machine would miss


class LoadDisplay:
    """An Observer. Without a terminal it prints only the lines of finished trials."""

    def __init__(self, console: Console, prepared: PreparedLoad) -> None:
        study, search, contact = prepared.study, prepared.search, prepared.contact
        self._console = console
        self._is_narrow = console.width < WIDE
        self._study = study
        self._is_search = search is not None
        self._trials = search.trials if search else len(study.workloads) * study.measure.trials.min
        self._done = 0
        self._name = "preparing"
        self._drawn_s = -REDRAW_S  # in the time of the trial, which begins anew with each
        self._live = Live(console=console, transient=True, auto_refresh=False)
        setup = study.engines[0]
        self._print(Text.assemble((setup.name, "bold"), f" at {setup.args['url']}"))
        self._print(
            Text(
                f"without load: TTFT {show_seconds(contact.ttft_s)}, latency {show_seconds(contact.latency_s)}",
                style="dim",
            )
        )

    def __enter__(self) -> "LoadDisplay":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def study_started(self, plan: Plan, trials_done: int) -> None:  # noqa: ARG002
        self._done = trials_done
        if trials_done:
            self._print(Text(f"resuming after {plural(trials_done, 'trial')}"))

    def group_started(self, group: points.Group, remaining_s: float | None) -> None:
        """Nothing is started: an endpoint runs already."""

    def instance_ready(self, record: InstanceRecord) -> None:
        """It was ready before."""

    def trial_started(self, point: Point, index: int, *, warmup: bool) -> None:  # noqa: ARG002
        self._name = point.workload

    def trial_running(self, progress: LoadProgress) -> None:
        if self._console.is_terminal and abs(progress.elapsed_s - self._drawn_s) >= REDRAW_S:
            self._drawn_s = progress.elapsed_s
            self._live.update(self._panel(progress), refresh=True)

    def trial_finished(self, record: TrialRecord) -> None:
        holds = held(record, self._study.objectives)
        counts = record.outcome not in NOT_THE_ENGINES or (self._is_search and holds is not None)
        self._done += counts
        self._print(
            trial_line(
                record,
                f"{self._done:>2}/{self._trials}" if counts else "again",
                holds if counts else None,
                is_narrow=self._is_narrow,
            )
        )

    def quality_running(self, config: Config, step: str) -> None:
        """An endpoint is not asked for quality."""

    def quality_finished(self, record: QualityRecord) -> None:
        """Likewise."""

    def note(self, message: str) -> None:
        self._print(Text(message, style="dim"))

    def warn(self, message: str) -> None:
        self._print(Text.assemble(("warning: ", "yellow"), message))

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)

    def _panel(self, progress: LoadProgress) -> Group:
        client = progress.client
        late = f"p99 late {show_seconds(client.send_lateness_p99_s)}, lag {show_seconds(client.loop_lag_p99_s)}"
        figures: list[tuple[str, str | Text]] = [
            ("rate", f"{progress.requests_per_s:,.1f}/s"),
            ("running", f"{progress.running:,}"),
            ("tokens", f"{progress.chunks_per_s:,.0f}/s"),
            ("errors", _errors(progress.failed)),
            ("TTFT", _percentiles(progress.ttft)),
            ("ITL", _percentiles(progress.itl)),
            ("client", late),
            ("CPU", show_percent(client.cpu_share)),
        ]
        table = Table.grid(padding=(0, 2))
        in_a_row = 1 if self._is_narrow else 2
        for place in range(0, len(figures), in_a_row):
            table.add_row(*(point for figure in figures[place : place + in_a_row] for point in figure))
        heading = Table.grid(padding=(0, 2))
        ended = progress.succeeded + progress.failed
        heading.add_row(
            Text(self._name, style="bold"),
            *([] if self._is_narrow else [ProgressBar(total=max(progress.requests, 1), completed=ended, width=24)]),
            f"{ended:,}/{progress.requests:,} requests",
            f"trial {self._done + 1} of {self._trials}",
            f"{progress.elapsed_s:.0f} s",
        )
        return Group(heading, table)


def trial_line(record: TrialRecord, number: str, holds: bool | None, *, is_narrow: bool = False) -> Text:
    """`3/12 rate-40  39.8/s  2,551 tok/s  TTFT 20.1 ms, p99 22.3 ms, TPOT 2.00 ms  meets`; narrow, the three that a
    line of 60 characters holds."""
    metrics = record.metrics
    line = Text.assemble((f"{number} ", "dim"), f"{record.point.workload:<{NAME_WIDTH}} ", overflow="fold")
    if record.outcome is Outcome.OK:
        served = metrics.achieved_rate or metrics.request_throughput
        tail = "" if is_narrow else f", p99 {show_seconds(metrics.ttft_p99_s)}, TPOT {show_seconds(metrics.tpot_s)}"
        line.append(
            f"{significant(served):>6}/s {significant(metrics.output_throughput):>7} tok/s  "
            f"TTFT {show_seconds(metrics.ttft_p50_s)}{tail}"
        )
    else:
        word = "rejected" if record.outcome is Outcome.CLIENT_BOUND and holds is None else record.outcome
        line.append(word, style="yellow")
        line.append(f": {record.cause}")
    if holds is not None:
        line.append("  meets" if holds else "  fails", style="green" if holds else "red")
    if holds is False and record.outcome is Outcome.OK and record.objectives and record.objectives.why_not:
        line.append(f": {record.objectives.why_not}", style="dim")
    return line


def _errors(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "")


def _percentiles(times: Percentiles | None) -> str:
    return "–" if times is None else f"p50 {show_seconds(times.p50_s)}, p99 {show_seconds(times.p99_s)}"
