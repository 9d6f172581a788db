"""The commands. Each one reads its arguments, calls the lab, and prints."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli import (
    compare,
    environments,
    explain,
    export,
    history,
    import_results,
    kernels,
    load,
    models,
    profile,
    quality,
    quantize,
    query,
    recommend,
    report,
)

app = typer.Typer(
    name="bitbench",
    help="The workbench for quantized LLM inference: quantize, run, measure, recommend.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
StudyFile = Annotated[Path, typer.Argument(help="The study file.", metavar="STUDY")]
Into = Annotated[
    Path | None, typer.Option("--into", metavar="DIR", help="Results folder [default: ./NAME of the study].")
]


def _version(wanted: bool) -> None:
    if wanted:
        from bitbench import __version__

        typer.echo(f"bitbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """The workbench for quantized LLM inference: quantize, run, measure, recommend."""


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("study.yaml"),
) -> None:
    """Write a commented study file to start from."""
    from bitbench.ground.errors import StudyFileError
    from bitbench.ground.safe_files import SafeFolder
    from bitbench.planning.starter import STARTER

    if path.exists():
        raise StudyFileError(f"{path} already exists; give another name, or remove it")
    files, name = SafeFolder.around(path)
    files.write(name, STARTER)
    typer.echo(f"Wrote {path}. `bitbench plan {path}` shows what it would run.")


@app.command()
def plan(study: StudyFile) -> None:
    """Show what a study would run and how long it may take.

    Prints the cells, the variants and environments that are missing, and a time estimate. Runs nothing.
    """
    from bitbench.cli.plan import show_plan
    from bitbench.lab.study import Lab

    show_plan(Lab(), study)


@app.command()
def run(
    study: StudyFile,
    into: Into = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wall time to spend, such as 10m; overrides the study's own.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow the URLs, keys, files and arguments that `bitbench plan` shows.")
    ] = False,
) -> None:
    """Run a study, or resume an interrupted one, and report.

    Trials that are recorded are not run again. With a budget, starts and rounds are planned from it, contenders without
    an open question are dropped, and the study ends early when everything is decided. The report is
    DIR/report/index.html. A study file that sends something elsewhere, or could run code, is asked about once.
    """
    from bitbench.cli.outcome import show_outcome
    from bitbench.cli.parsing import seconds
    from bitbench.cli.progress import RunDisplay
    from bitbench.cli.terminal import Terminal
    from bitbench.cli.trust import confirm
    from bitbench.ground.errors import StudyFileError
    from bitbench.lab.study import Lab

    lab, console = Lab(), Terminal()
    budget_s = None if budget is None else seconds(budget, "--budget", StudyFileError)
    confirm(lab.trust(study), console, trusts=trust)
    with RunDisplay(console) as display:
        folder = lab.run(study, into, display, budget_s=budget_s)
    show_outcome(lab, folder, console)


@app.command()
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Skip the measurement of the machine's noise.")] = False,
) -> None:
    """Show what this machine can run, and what is missing."""
    from bitbench.cli.doctor import show_doctor
    from bitbench.lab.study import default_home

    show_doctor(default_home(), measure=not quick)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a study file, for editors."""
    import json

    from bitbench.planning.study_file import study_schema

    typer.echo(json.dumps(study_schema(), indent=2, ensure_ascii=False))


# --help lists them in this order, after those above.
app.command()(report.report)
app.command()(recommend.recommend)
app.command()(compare.compare)
app.command()(explain.explain)
app.command()(profile.profile)
app.command()(quality.quality)
app.command()(quantize.quantize)
app.command()(quantize.recipes)
app.command()(load.load)
app.command()(kernels.kernels)
app.command()(query.query)
app.command()(history.history)
app.command("import")(import_results.import_results)
app.command()(export.export)
app.add_typer(environments.app, name="env")
app.add_typer(models.app, name="model")
app.add_typer(quantize.app, name="variant")
