"""`bitbench load URL`: sweep a running endpoint, or search for the highest rate that meets objectives."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bitbench.analysis.objectives import objectives_hold
from bitbench.analysis.results.summary import PointSummary, RateAnswer, StudySummary
from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import counts_option, numbers_option
from bitbench.cli.outcome import show_outcome, write_outcome
from bitbench.cli.progress import WIDE
from bitbench.cli.terminal import Terminal
from bitbench.measure import runner
from bitbench.measure.load_study import (
    LoadOptions,
    PreparedLoad,
    describe_search_cost,
    offer_p95,
    prepare_load,
)
from bitbench.measure.offers import load_client
from bitbench.measure.workplace import Workplace
from bitbench.records.quality import QualityRecord
from bitbench.records.trial import NOT_THE_ENGINES, InstanceRecord, LoadProgress, Outcome, TrialRecord
from bitbench.reports.document.words import plural
from bitbench.study import plan as points
from bitbench.study.base import Record
from bitbench.study.objective import Objective
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study_file import checked, checked_objectives
from bitbench.util.errors import UsageError
from bitbench.util.units import parse_fraction, show_seconds, show_significant

LOAD, PROMPTS, SERVER, OUTPUT = "Load", "Prompts", "Server", "Output"  # the panels of --help
NAME_WIDTH = 9  # a longer name shifts its line
REDRAW_S = 0.5  # drawing costs processor time that a server on the same machine would miss


class LoadAnswer(Record):
    """`search` is null for a sweep. Points are points: their figures, percentiles, trials and verdicts."""

    folder: str
    page: str
    objectives: tuple[Objective, ...]
    search: RateAnswer | None
    points: tuple[PointSummary, ...]
    notes: tuple[str, ...]


def load(
    url: Annotated[str, typer.Argument(help="Such as http://127.0.0.1:8000.", metavar="URL")],
    *,
    concurrency: Annotated[
        str | None, typer.Option(metavar="1,2,4,…", rich_help_panel=LOAD, help="Sweep over concurrent requests.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="1,2,4,…", rich_help_panel=LOAD, help="Sweep over requests per second.")
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="ttft_p99=200ms,…",
            rich_help_panel=LOAD,
            help="Objectives: find the highest rate that meets them, or check each point of a sweep.",
        ),
    ] = None,
    arrival: Annotated[
        str | None,
        typer.Option(metavar="poisson|constant", rich_help_panel=LOAD, help="Spacing of requests [default: poisson]."),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", rich_help_panel=LOAD, help="Length of a trial at a rate [default: 30s; a search chooses]."
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1, rich_help_panel=LOAD, help="Requests per trial, instead of --duration [default: 16 per stream]."
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, rich_help_panel=LOAD, help="Trials per point, or of the whole search [default: 3; a search: 12]."
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="SHARE", hidden=True, help="Stop a search at ± this [default: 5%].")
    ] = None,
    max_rate: Annotated[
        float | None, typer.Option(metavar="RATE", hidden=True, help="The highest rate that a search may try.")
    ] = None,
    input_tokens: Annotated[int, typer.Option(min=1, rich_help_panel=PROMPTS, help="Prompt length in tokens.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, rich_help_panel=PROMPTS, help="Output length in tokens.")] = 64,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=PROMPTS, help="Prompts from a file instead of random token ids."),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option(rich_help_panel=PROMPTS, help="Request exactly --output-tokens; switch off where unsupported."),
    ] = True,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, rich_help_panel=PROMPTS, help="Seed of order and prompts [default: a new one, which is recorded]."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=SERVER, help="The model's name [default: the first in /v1/models]."
        ),
    ] = None,
    api: Annotated[
        str,
        typer.Option(metavar="completions|chat", rich_help_panel=SERVER, help="The API to use; chat needs --text."),
    ] = "completions",
    api_key_env: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=SERVER, help="Environment variable with the key.")
    ] = "OPENAI_API_KEY",
    nodes: Annotated[
        int | None,
        typer.Option(min=1, hidden=True, help="So many machines of --on [default: all]."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="WHERE", hidden=True, help="Machines to send from: the nodes of ray://HEAD:PORT."),
    ] = None,
    plan_only: Annotated[
        bool,
        typer.Option("--plan", rich_help_panel=OUTPUT, help="Print trials, requests and time, then stop."),
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into",
            metavar="DIR",
            rich_help_panel=OUTPUT,
            help="Results folder, new or to resume [default: load-HOST-DATE].",
        ),
    ] = None,
    allow_inconclusive: Annotated[
        bool,
        typer.Option(
            "--allow-inconclusive", rich_help_panel=OUTPUT, help="End with 0 where an interval contains a limit."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Print one JSON document; see `bitbench schema`.")
    ] = False,
) -> None:
    """Measure a running OpenAI-compatible endpoint.

    Sweeps concurrencies or rates, or searches for the highest rate that meets objectives (--slo). Fills a study
    folder; the same command with --into resumes an interrupted one. Exit code 1: no rate meets the objectives, or a
    point of the sweep misses them. 2: inconclusive. 3: no point has a result.
    """
    if plan_only and as_json:
        raise UsageError("--plan prints sentences; leave out --json")
    options = LoadOptions(
        concurrency=None if concurrency is None else counts_option(concurrency, "--concurrency"),
        rate=None if rate is None else numbers_option(rate, "--rate"),
        objectives=checked_objectives(slo),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        text=text,
        api=api,
        arrival=arrival,
        duration=duration,
        requests=requests,
        trials=trials,
        precision=None if precision is None else checked(lambda: parse_fraction(precision), about="--precision"),
        max_rate=max_rate,
        output_forced=ignore_eos,
        seed=seed,
    )
    at, console = Workplace(), Terminal(stderr=as_json)
    with load_client(nodes, on, api_key_env=api_key_env) as client:
        prepared = prepare_load(url, options, client, into=into, model=model, api_key_env=api_key_env)
        if plan_only:
            LoadDisplay(console, prepared)
            raise typer.Exit
        with LoadDisplay(console, prepared) as display:
            folder = runner.measure_endpoint_study(prepared, display, client, at)
    reported = write_outcome(folder, at.home)
    code = reported.exit_code(allow_inconclusive=allow_inconclusive)
    if as_json:
        end_with_json("load", load_answer(str(folder.path), str(reported.page), reported.summary), code)
    show_outcome(reported, console, code)
    raise typer.Exit(code)


def load_answer(folder: str, page: str, summary: StudySummary) -> LoadAnswer:
    return LoadAnswer(
        folder=folder,
        page=page,
        objectives=summary.study.objectives,
        search=summary.search,
        points=summary.points,
        notes=tuple(sorted({note for config in summary.configs for note in config.notes})),
    )


class LoadDisplay:
    """An Observer. Without a terminal it prints only the lines of finished trials."""

    def __init__(self, console: Console, prepared: PreparedLoad) -> None:
        study, search, contact = prepared.study, prepared.search, prepared.contact
        self._console = console
        self._is_narrow = console.width < WIDE
        self._study = study
        self._is_search = search is not None
        self._trials = search.trials + 1 if search else len(study.workloads) * study.measure.trials.min
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
        if search is not None:
            self.note(describe_search_cost(search))
            offer = offer_p95(study, search, search.highest)
            if offer is not None:
                self.warn(offer)
        elif prepared.next_point is None:
            self.note(f"{plural(len(study.workloads), 'point')}, {plural(self._trials, 'trial')} in all")

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
        holds = objectives_hold(record, self._study.objectives)
        counts = record.outcome not in NOT_THE_ENGINES or (self._is_search and holds is not None)
        self._done += counts
        self._print(
            load_trial_line(
                record,
                f"{self._done:>2}/{max(self._trials, self._done)}" if counts else "again",
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
        figures: list[tuple[str, str | Text]] = [
            ("rate", f"{progress.requests_per_s:,.1f}/s"),
            ("running", f"{progress.running:,}"),
            ("tokens", f"{progress.chunks_per_s:,.0f}/s"),
            ("errors", _errors(progress.failed)),
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


def load_trial_line(record: TrialRecord, number: str, holds: bool | None, *, is_narrow: bool = False) -> Text:
    """`3/12 rate-40  39.8/s  2,551 tok/s  TTFT 20.1 ms, p99 22.3 ms, TPOT 2.00 ms  meets`; narrow, the three that a
    line of 60 characters holds."""
    metrics = record.metrics
    line = Text.assemble((f"{number} ", "dim"), f"{record.point.workload:<{NAME_WIDTH}} ", overflow="fold")
    if record.outcome is Outcome.OK:
        served = metrics.achieved_rate or metrics.request_throughput
        tail = "" if is_narrow else f", p99 {show_seconds(metrics.ttft_p99_s)}, TPOT {show_seconds(metrics.tpot_s)}"
        line.append(
            f"{show_significant(served):>6}/s {show_significant(metrics.output_throughput):>7} tok/s  "
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
    if record.outcome is Outcome.OK and record.objectives and record.objectives.holds is None:
        line.append(f"  unknown: {record.objectives.why_not}", style="yellow")
    return line


def _errors(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "")
