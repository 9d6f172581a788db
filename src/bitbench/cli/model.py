"""`bitbench model`: models that bitbench downloads, from a hub or from its catalog, or creates."""

import time
from typing import Annotated

import typer
from rich.status import Status
from rich.table import Table
from rich.text import Text

from bitbench.cli.help import PlainTyper
from bitbench.cli.terminal import Terminal
from bitbench.machine.workplace import get_default_home
from bitbench.models import library
from bitbench.planning.readiness import make_model_ready
from bitbench.util.units import show_bytes

model = PlainTyper(help="Download and list models.")

_LINE_EVERY_S = 10.0  # interval of progress lines in a log


@model.command()
def get(
    name: Annotated[
        str, typer.Argument(help="ORG/NAME@REVISION on the hub, or a name of `model list`.")
    ],
) -> None:
    """Download a model, or create it."""
    console = Terminal()
    action = "downloading" if library.find_source(name) is None else "writing"
    with console.status(Text(f"{action} {name}")) as status:
        steps = Steps(console, status, name)
        sentences = make_model_ready(
            name, get_default_home(), on_step=steps.step, on_progress=steps.progress
        )
    for sentence in sentences:
        console.print(sentence, soft_wrap=True)


class Steps:
    """A display of progress: a line that changes in a terminal, and separate lines in a log."""

    def __init__(self, console: Terminal, status: Status, name: str) -> None:
        self._console = console
        self._status = status
        self._name = name
        self._printed_at = time.monotonic()

    def step(self, text: str) -> None:
        """Show a step."""
        if self._console.is_terminal:
            self._status.update(Text(f"{self._name}: {text}"))
        else:
            self._console.print(text)

    def now_and_then(self, text: str) -> None:
        """Show one of many steps. A log gets a line every ten seconds."""
        if self._console.is_terminal or time.monotonic() - self._printed_at > _LINE_EVERY_S:
            self._printed_at = time.monotonic()
            self.step(text)

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        """Show the progress of a download."""
        self.now_and_then(f"{show_bytes(done_bytes)} of {show_bytes(total_bytes)}")


@model.command("list")
def list_() -> None:
    """List downloaded models, and those that can be downloaded."""
    table = Table(
        "model", "state", "parameters", "size", "description", box=None, header_style="bold"
    )
    for entry in library.list_models(get_default_home()):
        state = "ready" if entry.path else f"not downloaded: bitbench model get {entry.name}"
        parameters = f"{entry.parameters / 1e6:,.0f} M" if entry.parameters else "–"
        table.add_row(
            entry.name, state, parameters, show_bytes(entry.size_bytes), entry.description
        )
    console = Terminal()
    console.print(table)
    for source in library.sources():
        console.print(source.models)
