"""`bitbench load URL`: sweep a running endpoint, or search for the highest rate that meets objectives."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from bitbench.analysis.results.summary import PointSummary, RateAnswer, StudySummary
from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import counts_option, numbers_option
from bitbench.cli.outcome import show_outcome, write_outcome
from bitbench.cli.progress import RunDisplay
from bitbench.cli.terminal import Terminal
from bitbench.endpoint.endpoint_run import measure_endpoint_study
from bitbench.endpoint.load_study import (
    LoadOptions,
    PreparedLoad,
    describe_search_cost,
    offer_p95,
    prepare_load,
)
from bitbench.machine.workplace import Workplace
from bitbench.reports.document.words import plural
from bitbench.running.offers import load_client
from bitbench.study.base import Record
from bitbench.study.objective import Objective
from bitbench.study.study_file import checked, checked_objectives
from bitbench.util.errors import UsageError
from bitbench.util.units import parse_fraction, show_seconds

LOAD, PROMPTS, SERVER, OUTPUT = "Load", "Prompts", "Server", "Output"  # the panels of --help


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
        str | None,
        typer.Option(
            metavar="1,2,4,…", rich_help_panel=LOAD, help="Sweep over concurrent requests."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="1,2,4,…", rich_help_panel=LOAD, help="Sweep over requests per second."
        ),
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
        typer.Option(
            metavar="poisson|constant",
            rich_help_panel=LOAD,
            help="Spacing of requests [default: poisson].",
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            rich_help_panel=LOAD,
            help="Length of a trial at a rate [default: 30s; a search chooses].",
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=LOAD,
            help="Requests per trial, instead of --duration [default: 16 per stream].",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=LOAD,
            help="Trials per point, or of the whole search [default: 3; a search: 12].",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(metavar="SHARE", hidden=True, help="Stop a search at ± this [default: 5%]."),
    ] = None,
    max_rate: Annotated[
        float | None,
        typer.Option(metavar="RATE", hidden=True, help="The highest rate that a search may try."),
    ] = None,
    input_tokens: Annotated[
        int, typer.Option(min=1, rich_help_panel=PROMPTS, help="Prompt length in tokens.")
    ] = 128,
    output_tokens: Annotated[
        int, typer.Option(min=1, rich_help_panel=PROMPTS, help="Output length in tokens.")
    ] = 64,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=PROMPTS,
            help="Prompts from a file instead of random token ids.",
        ),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            rich_help_panel=PROMPTS,
            help="Request exactly --output-tokens; switch off where unsupported.",
        ),
    ] = True,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            rich_help_panel=PROMPTS,
            help="Seed of order and prompts [default: a new one, which is recorded].",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=SERVER,
            help="The model's name [default: the first in /v1/models].",
        ),
    ] = None,
    api: Annotated[
        str,
        typer.Option(
            metavar="completions|chat",
            rich_help_panel=SERVER,
            help="The API to use; chat needs --text.",
        ),
    ] = "completions",
    api_key_env: Annotated[
        str,
        typer.Option(
            metavar="NAME", rich_help_panel=SERVER, help="Environment variable with the key."
        ),
    ] = "OPENAI_API_KEY",
    nodes: Annotated[
        int | None,
        typer.Option(min=1, hidden=True, help="So many machines of --on [default: all]."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            hidden=True,
            help="Machines to send from: the nodes of ray://HEAD:PORT.",
        ),
    ] = None,
    plan_only: Annotated[
        bool,
        typer.Option(
            "--plan", rich_help_panel=OUTPUT, help="Print trials, requests and time, then stop."
        ),
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
            "--allow-inconclusive",
            rich_help_panel=OUTPUT,
            help="End with 0 where an interval contains a limit.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", rich_help_panel=OUTPUT, help="Print one JSON document; see `bitbench schema`."
        ),
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
        precision=None
        if precision is None
        else checked(lambda: parse_fraction(precision), about="--precision"),
        max_rate=max_rate,
        output_forced=ignore_eos,
        seed=seed,
    )
    at, console = Workplace(), Terminal(stderr=as_json)
    with load_client(nodes, on, api_key_env=api_key_env) as client:
        prepared = prepare_load(
            url, options, client, into=into, model=model, api_key_env=api_key_env
        )
        show_load_heading(console, prepared)
        if plan_only:
            raise typer.Exit
        with RunDisplay(console) as display:
            folder = measure_endpoint_study(prepared, display, client, at)
    reported = write_outcome(folder, at.home)
    code = reported.exit_code(allow_inconclusive=allow_inconclusive)
    if as_json:
        end_with_json(
            "load", load_answer(str(folder.path), str(reported.page), reported.summary), code
        )
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


def show_load_heading(console: Console, prepared: PreparedLoad) -> None:
    """Print what is measured, its times without load, and what the trials will take."""
    study, search, contact = prepared.study, prepared.search, prepared.contact
    setup = study.engines[0]
    lines = [
        Text.assemble((setup.name, "bold"), f" at {setup.args['url']}"),
        Text(
            f"without load: TTFT {show_seconds(contact.ttft_s)}, latency {show_seconds(contact.latency_s)}",
            "dim",
        ),
    ]
    if search is not None:
        lines.append(Text(describe_search_cost(search), "dim"))
        offer = offer_p95(study, search, search.highest)
        if offer is not None:
            lines.append(Text.assemble(("warning: ", "yellow"), offer))
    elif prepared.next_point is None:
        trials = len(study.workloads) * study.measure.trials.min
        lines.append(
            Text(
                f"{plural(len(study.workloads), 'point')}, {plural(trials, 'trial')} in all", "dim"
            )
        )
    for line in lines:
        console.print(line, soft_wrap=True)
