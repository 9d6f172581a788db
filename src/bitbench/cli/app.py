"""The commands of `bitbench`. Each is declared here or by a feature, and imported when it is
called."""

from typing import Annotated, Any

import typer

from bitbench import feature
from bitbench.cli.help import LazyCommand, PlainGroup, PlainTyper, sort_by_panel
from bitbench.feature import Command, Feature, Offer, Panel, Target
from bitbench.util.version import __version__


def _make_core_command(
    name: str,
    text: str,
    panel: Panel | None = None,
    *,
    answer: Target | None = None,
    resumes: bool = False,
) -> Command:
    """Return a command or a group of commands that is NAME in `cli/NAME.py`."""
    return Command(name, f".{name}:{name}", text, panel, answer, resumes)


CORE = Feature(
    name="core",
    package="bitbench.cli",
    commands=(  # in the order of --help, a panel lists them before the features' commands
        _make_core_command(
            "quick", "Measure a server, or compare variants of a model.", Panel.MEASURE
        ),
        _make_core_command(
            "load",
            "Measure a running OpenAI-compatible endpoint.",
            Panel.MEASURE,
            answer=".load:LoadAnswer",
            resumes=True,
        ),
        _make_core_command(
            "run",
            "Run a study, or resume an interrupted one, and report.",
            Panel.MEASURE,
            resumes=True,
        ),
        _make_core_command(
            "join", "Join the blocks of a study into one folder, and report.", Panel.MEASURE
        ),
        _make_core_command(
            "recommend",
            "Recommend which variant to run on which engine.",
            Panel.DECIDE,
            answer="bitbench:Recommendation",
        ),
        _make_core_command(
            "compare",
            "Compare two study folders, or two variants of one.",
            Panel.DECIDE,
            answer="bitbench:Comparison",
        ),
        _make_core_command("report", "Write the report of a study from its records.", Panel.DECIDE),
        _make_core_command(
            "recipes", "List recipes and the engines that run them.", Panel.QUANTIZE
        ),
        _make_core_command("quantize", "Create a quantized variant of a model.", Panel.QUANTIZE),
        _make_core_command(
            "quality",
            "Measure the quality that recipes lose, without timing.",
            Panel.QUANTIZE,
            resumes=True,
        ),
        _make_core_command(
            "doctor",
            "Show what this machine can run, and what is missing.",
            Panel.SET_UP,
            answer=".doctor:DoctorAnswer",
        ),
        _make_core_command("init", "Write a commented study file to start from.", Panel.SET_UP),
        _make_core_command(
            "plan",
            "Show what a study would run and how long it may take.",
            Panel.SET_UP,
            answer=".plan:PlanAnswer",
        ),
        _make_core_command(
            "env", "Create and list the environments that engines run in.", Panel.SET_UP
        ),
        _make_core_command("model", "Download and list models.", Panel.SET_UP),
        _make_core_command("variant", "List, show and remove quantized variants.", Panel.SET_UP),
        _make_core_command("schema", "Print the JSON Schema of a file to write, or of an answer."),
    ),
)


def collect_commands() -> dict[str, tuple[Command, Offer]]:
    """Return the core's commands, then the features' commands. A core command wins over a feature's
    command of the same name."""
    core = {command.name: (command, Offer(CORE, command.run)) for command in CORE.commands}
    return {**core, **feature.collect_feature_commands(), **core}


class _Commands(PlainGroup):
    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        lazy = {name: LazyCommand(*declared) for name, declared in collect_commands().items()}
        self.commands = sort_by_panel(lazy)


app = PlainTyper(
    name="bitbench",
    cls=_Commands,
    help="The workbench for quantized LLM inference: quantize, run, measure, recommend.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"bitbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """The workbench for quantized LLM inference: quantize, run, measure, recommend."""
