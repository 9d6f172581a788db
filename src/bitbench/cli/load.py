"""`bitbench load URL`: a sweep of a running endpoint, or a search for the highest rate that meets
objectives."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from bitbench.analysis.results.summary import PointSummary, RateAnswer, StudySummary
from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import parse_counts_option, parse_numbers_option
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
from bitbench.reports.document.words import format_count
from bitbench.running.offers import load_client
from bitbench.study.base import Record
from bitbench.study.objective import Objective
from bitbench.study.study_file import check_input, parse_objectives
from bitbench.util.errors import UsageError
from bitbench.util.units import parse_fraction, show_seconds

# The panels of --help.
LOAD = "Load"
PROMPTS = "Prompts"
SERVER = "Server"
OUTPUT = "Output"


class LoadAnswer(Record):
    """The answer of `bitbench load --json`. `search` is null for a sweep. Each point has its
    metrics, percentiles, trials and verdicts."""

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
            help="Objectives: find the highest rate that meets them, "
            "or check each point of a sweep.",
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

    Sweeps concurrencies or rates, or searches for the highest rate that meets objectives (--slo).
    Fills a study folder; the same command with --into resumes an interrupted one. Exit code 1: no
    rate meets the objectives, or a point of the sweep misses them. 2: inconclusive. 3: no point has
    a result.
    """
    if plan_only and as_json:
        raise UsageError("--plan prints sentences; leave out --json")
    precision_share = None
    if precision is not None:
        precision_share = check_input(lambda: parse_fraction(precision), about="--precision")
    options = LoadOptions(
        concurrency=None
        if concurrency is None
        else parse_counts_option(concurrency, "--concurrency"),
        rate=None if rate is None else parse_numbers_option(rate, "--rate"),
        objectives=parse_objectives(slo),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        text=text,
        api=api,
        arrival=arrival,
        duration=duration,
        requests=requests,
        trials=trials,
        precision=precision_share,
        max_rate=max_rate,
        output_forced=ignore_eos,
        seed=seed,
    )
    workplace = Workplace()
    console = Terminal(stderr=as_json)
    with load_client(nodes, on, api_key_env=api_key_env) as client:
        prepared = prepare_load(
            url, options, client, into=into, model=model, api_key_env=api_key_env
        )
        show_load_heading(console, prepared)
        if plan_only:
            raise typer.Exit
        with RunDisplay(console) as display:
            folder = measure_endpoint_study(prepared, display, client, workplace)
    outcome = write_outcome(folder, workplace.home)
    code = outcome.exit_code(allow_inconclusive=allow_inconclusive)
    if as_json:
        answer = make_load_answer(str(folder.path), str(outcome.page), outcome.summary)
        end_with_json("load", answer, code)
    show_outcome(outcome, console, code)
    raise typer.Exit(code)


def make_load_answer(folder: str, page: str, summary: StudySummary) -> LoadAnswer:
    """Return the answer for --json."""
    notes = {note for config in summary.configs for note in config.notes}
    return LoadAnswer(
        folder=folder,
        page=page,
        objectives=summary.study.objectives,
        search=summary.search,
        points=summary.points,
        notes=tuple(sorted(notes)),
    )


def show_load_heading(console: Console, prepared: PreparedLoad) -> None:
    """Print the server, its times without load, and the cost of the trials."""
    study = prepared.study
    search = prepared.search
    contact = prepared.contact
    setup = study.engines[0]
    ttft = show_seconds(contact.ttft_s)
    latency = show_seconds(contact.latency_s)
    lines = [
        Text.assemble((setup.name, "bold"), f" at {setup.args['url']}"),
        Text(f"without load: TTFT {ttft}, latency {latency}", "dim"),
    ]
    if search is not None:
        lines.append(Text(describe_search_cost(search), "dim"))
        offer = offer_p95(study, search, search.highest)
        if offer is not None:
            lines.append(Text.assemble(("warning: ", "yellow"), offer))
    elif prepared.next_point is None:
        points = len(study.workloads)
        trials = format_count(points * study.measure.trials.min, "trial")
        lines.append(Text(f"{format_count(points, 'point')}, {trials} in all", "dim"))
    for line in lines:
        console.print(line, soft_wrap=True)
