"""The commands of `bitbench`. Each is declared here or by a feature, and imported when it is
called."""

from typing import Annotated, Any

import typer

from bitbench import feature
from bitbench.cli.help import LazyCommand, PlainGroup, PlainTyper, help_order
from bitbench.feature import Command, Feature, Offer, Panel, Target
from bitbench.util.version import __version__


def _core(
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
        _core("quick", "Measure a server, or compare variants of a model.", Panel.MEASURE),
        _core(
            "load",
            "Measure a running OpenAI-compatible endpoint.",
            Panel.MEASURE,
            answer=".load:LoadAnswer",
            resumes=True,
        ),
        _core(
            "run",
            "Run a study, or resume an interrupted one, and report.",
            Panel.MEASURE,
            resumes=True,
        ),
        _core("join", "Join the blocks of a study into one folder, and report.", Panel.MEASURE),
        _core(
            "recommend",
            "Recommend which variant to run on which engine.",
            Panel.DECIDE,
            answer="bitbench:Recommendation",
        ),
        _core(
            "compare",
            "Compare two study folders, or two variants of one.",
            Panel.DECIDE,
            answer="bitbench:Comparison",
        ),
        _core("report", "Write the report of a study from its records.", Panel.DECIDE),
        _core("recipes", "List recipes and the engines that run them.", Panel.QUANTIZE),
        _core("quantize", "Create a quantized variant of a model.", Panel.QUANTIZE),
        _core(
            "quality",
            "Measure the quality that recipes lose, without timing.",
            Panel.QUANTIZE,
            resumes=True,
        ),
        _core(
            "doctor",
            "Show what this machine can run, and what is missing.",
            Panel.SET_UP,
            answer=".doctor:DoctorAnswer",
        ),
        _core("init", "Write a commented study file to start from.", Panel.SET_UP),
        _core(
            "plan",
            "Show what a study would run and how long it may take.",
            Panel.SET_UP,
            answer=".plan:PlanAnswer",
        ),
        _core("env", "Create and list the environments that engines run in.", Panel.SET_UP),
        _core("model", "Download and list models.", Panel.SET_UP),
        _core("variant", "List, show and remove quantized variants.", Panel.SET_UP),
        _core("schema", "Print the JSON Schema of a file to write, or of an answer."),
    ),
)


def all_commands() -> dict[str, tuple[Command, Offer]]:
    """Return the core's commands, then the features' commands. A core command wins over a feature's
    command of the same name."""
    core = {command.name: (command, Offer(CORE, command.run)) for command in CORE.commands}
    return {**core, **feature.commands_of_features(), **core}


class _Commands(PlainGroup):
    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        lazy = {name: LazyCommand(*declared) for name, declared in all_commands().items()}
        self.commands = help_order(lazy)


app = PlainTyper(
    name="bitbench",
    cls=_Commands,
    help="The workbench for quantized LLM inference: quantize, run, measure, recommend.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"bitbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """The workbench for quantized LLM inference: quantize, run, measure, recommend."""
