"""The commands. Each one reads its arguments, calls what does it, and prints."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from bitbench.cli import (
    compare,
    environments,
    load,
    models,
    quality,
    quantize,
    quick,
    recommend,
    report,
)
from bitbench.cli.choices import Described
from bitbench.cli.features import feature_commands
from bitbench.cli.help import PlainGroup, PlainTyper, in_order
from bitbench.cli.options import AllowInconclusive, AsJson, InsecureCluster, OnDevice, chosen, end_with_json
from bitbench.feature import Panel
from bitbench.util.exit_codes import ExitCode


class _Commands(PlainGroup):
    """Typer would end with 1 where the reader of the output is gone, which is the code of a failed gate."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.commands = in_order({**self.commands, **feature_commands(), **self.commands})  # one of the core wins

    def invoke(self, ctx: Any) -> Any:  # click's context, or that of typer's copy of it
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as error:  # rich leaves by SystemExit then, and nothing else does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left has nowhere to go
            raise typer.Exit(ExitCode.PIPE_CLOSED) from error


app = PlainTyper(
    name="bitbench",
    cls=_Commands,
    help="The workbench for quantized LLM inference: quantize, run, measure, recommend.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
StudyFile = Annotated[Path, typer.Argument(help="The study file.", metavar="STUDY")]
Into = Annotated[
    str | None,
    typer.Option("--into", metavar="DIR", help="Results folder, or s3://BUCKET/STUDY [default: ./NAME of the study]."),
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


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("study.yaml"),
) -> None:
    """Write a commented study file to start from."""
    from bitbench.measure.workplace import Workplace
    from bitbench.study.starter import starter
    from bitbench.util.errors import UsageError
    from bitbench.util.safe_files import SafeFolder

    if path.exists():
        raise UsageError(f"{path} already exists; give another name, or remove it")
    files, name = SafeFolder.around(path)
    files.write(name, starter(Workplace().device))
    typer.echo(f"Wrote {path}. `bitbench plan {path}` shows what it would run.")


def plan(
    study: StudyFile,
    *,
    device: OnDevice = None,
    as_json: AsJson = False,
) -> None:
    """Show what a study would run and how long it may take.

    Prints the points, the variants and environments that are missing, and a time estimate. Runs nothing. Exit
    code 3: every point is refused.
    """
    from bitbench.cli.plan import answer_plan, exit_code_of, show_plan
    from bitbench.measure.trust import trust_in
    from bitbench.measure.workplace import Workplace

    at = Workplace(asked_device=chosen(device))
    answer = answer_plan(study, at)
    code = exit_code_of(answer.plan)
    if as_json:
        end_with_json(Described.PLAN, answer, code)
    show_plan(answer, trust_in(study, at.home))
    raise typer.Exit(code)


def run(
    study: StudyFile,
    *,
    into: Into = None,
    device: OnDevice = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wall time to spend, such as 10m; overrides the study's own.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow the URLs, keys, files and arguments that `bitbench plan` shows.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a page on 127.0.0.1 that shows progress and what is decided.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of that page [default: any free one].")] = 0,
    on: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Machines to run blocks on: local:N, ssh://HOST,HOST or ray://HEAD:PORT."),
    ] = None,
    insecure_cluster: InsecureCluster = False,
    allow_inconclusive: AllowInconclusive = False,
) -> None:
    """Run a study, or resume an interrupted one, and report.

    Trials that are recorded are not run again. With a budget, starts and rounds are planned from it, configs that
    are already decided are dropped, and the study ends early when everything is decided. The report is
    DIR/report/index.html. It asks before contacting other hosts, or running code that the file names. Exit
    code 1: a point misses an objective of the study. 2: inconclusive. 3: no point has a result.
    """
    from bitbench.cli.outcome import end_with_outcome
    from bitbench.cli.parsing import seconds
    from bitbench.cli.progress import RunDisplay
    from bitbench.cli.terminal import Terminal
    from bitbench.cli.trust import confirm
    from bitbench.measure.offers import executor_at, folder_at, watched
    from bitbench.measure.runner import measure_study
    from bitbench.measure.trust import trust_in
    from bitbench.measure.workplace import Workplace
    from bitbench.study.source import StudySource

    at, console = Workplace(asked_device=chosen(device)), Terminal()
    place = None if into is None else folder_at(into, at.home)
    budget_s = None if budget is None else seconds(budget, "--budget")
    executor = None if on is None else executor_at(on, without_token=insecure_cluster)
    source = StudySource.of(study)
    confirm(trust_in(source, at.home), console, trusts=trust)
    with RunDisplay(console) as display:
        page = watched(at.home, place, display, port=port, on_url=display.say_url) if watch else nullcontext(display)
        with page as observer:
            folder = measure_study(source, place, observer, at, budget_s=budget_s, on=executor)
    end_with_outcome(folder, at.home, console, allow_inconclusive=allow_inconclusive)


def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Skip the measurement of the machine's noise.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what this machine can run, and what is missing."""
    from bitbench.cli.doctor import print_doctor, show_doctor
    from bitbench.measure.workplace import default_home

    (print_doctor if as_json else show_doctor)(default_home(), measure=not quick)


def schema(
    of: Annotated[
        str, typer.Argument(help="study or recipe, or a command that has --json.", metavar="WHAT")
    ] = Described.STUDY,
) -> None:
    """Print the JSON Schema of a file to write, or of an answer."""
    import json

    from bitbench.cli.json_answers import answer_schema
    from bitbench.quantize.catalog import recipe_schema
    from bitbench.study.study_file import study_schema

    of_files = {str(Described.STUDY): study_schema, str(Described.RECIPE): recipe_schema}
    found = of_files[of]() if of in of_files else answer_schema(of)
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))


# `--help` lists them by panel, in this order; commands of features say their panel themselves.
PANELS = {
    Panel.MEASURE: (quick.quick, load.load, run),
    Panel.DECIDE: (recommend.recommend, compare.compare, report.report),
    Panel.QUANTIZE: (quantize.recipes, quantize.quantize, quality.quality),
    Panel.SET_UP: (doctor, init, plan),
}
for _panel, _commands in PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
for _name, _group in {"env": environments.app, "model": models.app, "variant": quantize.app}.items():
    app.add_typer(_group, name=_name, rich_help_panel=Panel.SET_UP)
app.command(hidden=True)(schema)  # rare
