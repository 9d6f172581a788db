"""`bitbench load URL`: sweep a running endpoint, or search for the highest rate that holds what it promises."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.parsing import counts, numbers


def load(
    url: Annotated[str, typer.Argument(help="such as http://127.0.0.1:8000", metavar="URL")],
    *,
    concurrency: Annotated[
        str | None, typer.Option(metavar="1,2,4,…", help="Sweep: so many requests in flight at once.")
    ] = None,
    rate: Annotated[str | None, typer.Option(metavar="1,2,4,…", help="Sweep: so many requests per second.")] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="ttft_p99=200ms,…",
            help="Objectives: search the highest rate that holds them, or hold each point of a sweep against them.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Its name [default: the first in /v1/models].")] = None,
    input_tokens: Annotated[int, typer.Option(min=1, help="Length of a prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="Length of an answer.")] = 64,
    text: Annotated[Path | None, typer.Option(help="Prompts from a file instead of random token ids.")] = None,
    api: Annotated[str, typer.Option(help="completions, or chat (needs --text).")] = "completions",
    arrival: Annotated[
        str | None, typer.Option(help="poisson or constant: how requests of a rate are spaced [default: poisson].")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(help="Of a trial at a rate [default: 30s; in a search as long as is needed].")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Per trial, instead of --duration [default: 16 per stream].")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Of each point, interleaved [default: 3]; of a search in all [default: 12]."),
    ] = None,
    precision: Annotated[str, typer.Option(help="Of the rate that a search finds.")] = "3%",
    max_rate: Annotated[float | None, typer.Option(help="The highest rate that a search may try.")] = None,
    api_key_env: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable that holds the key.")
    ] = "OPENAI_API_KEY",
    vocabulary: Annotated[
        int | None, typer.Option(help="Random token ids are from 1,000 up to this [default: 32,000].")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option(help="Ask for exactly --output-tokens; off for servers that do not know it.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Order and prompts follow from it.")] = 0,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", help="Folder to fill or to go on with [default: load-HOST-DATE]."),
    ] = None,
) -> None:
    """Measure an OpenAI-compatible endpoint that runs already.

    Sweeps concurrencies or rates, or searches the highest rate that holds objectives (--slo). Fills a folder like a
    study's; the same command with --into goes on with an interrupted one.
    """
    from rich.console import Console

    from bitbench.cli.load_display import LoadDisplay
    from bitbench.cli.outcome import show_outcome
    from bitbench.ground.errors import LoadError
    from bitbench.ground.units import parse_fraction
    from bitbench.lab.checked import checked, checked_objectives
    from bitbench.lab.load_study import LoadOptions, prepare_load
    from bitbench.lab.study import Lab
    from bitbench.load.workers import LoadWorkers

    options = LoadOptions(
        concurrency=None if concurrency is None else counts(concurrency, "--concurrency", LoadError),
        rate=None if rate is None else numbers(rate, "--rate", LoadError),
        objectives=checked_objectives(slo, LoadError),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        text=text,
        api=api,
        arrival=arrival,
        duration=duration,
        requests=requests,
        trials=trials,
        precision=checked(lambda: parse_fraction(precision), LoadError, about="--precision"),
        max_rate=max_rate,
        output_forced=ignore_eos,
        seed=seed,
    )
    lab, console = Lab(), Console()
    with LoadWorkers() as client:
        prepared = prepare_load(
            url, options, client, into=into, model=model, api_key_env=api_key_env, vocabulary=vocabulary
        )
        with LoadDisplay(console, prepared) as display:
            folder = lab.load(prepared, display, client)
    show_outcome(lab, folder, console)
