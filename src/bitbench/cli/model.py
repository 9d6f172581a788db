"""`bitbench model`: models that bitbench downloads, from a hub or from its catalog, or creates."""

import time
from typing import Annotated

import typer
from rich.status import Status
from rich.table import Table
from rich.text import Text

from bitbench.cli.help import PlainTyper
from bitbench.cli.terminal import Terminal
from bitbench.machine.workplace import default_home
from bitbench.models import library
from bitbench.planning.readiness import make_model_ready
from bitbench.util.units import show_bytes

model = PlainTyper(help="Download and list models.")

_LINE_EVERY_S = 10.0  # of a download or a quantization, in a log


@model.command()
def get(
    name: Annotated[
        str, typer.Argument(help="ORG/NAME@REVISION on the hub, or a name of `model list`.")
    ],
) -> None:
    """Download a model, or create it."""
    console = Terminal()
    with console.status(
        Text(f"{'downloading' if library.source_of(name) is None else 'writing'} {name}")
    ) as status:
        steps = Steps(console, status, name)
        said = make_model_ready(
            name, default_home(), on_step=steps.step, on_progress=steps.progress
        )
    for sentence in said:
        console.print(sentence, soft_wrap=True)


class Steps:
    """In a terminal a line that changes; elsewhere a line for each step, and now and then one of what takes long."""

    def __init__(self, console: Terminal, status: Status, name: str) -> None:
        self._console, self._status, self._name = console, status, name
        self._printed_at = time.monotonic()

    def step(self, words: str) -> None:
        if self._console.is_terminal:
            self._status.update(Text(f"{self._name}: {words}"))
        else:
            self._console.print(words)

    def now_and_then(self, words: str) -> None:
        """A step of many: a log gets a line of it every ten seconds."""
        if self._console.is_terminal or time.monotonic() - self._printed_at > _LINE_EVERY_S:
            self._printed_at = time.monotonic()
            self.step(words)

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        self.now_and_then(f"{show_bytes(done_bytes)} of {show_bytes(total_bytes)}")


@model.command("list")
def list_() -> None:
    """List downloaded models, and those that can be downloaded."""
    table = Table(
        "model", "state", "parameters", "size", "description", box=None, header_style="bold"
    )
    for known in library.list_models(default_home()):
        state = "ready" if known.path else f"not downloaded: bitbench model get {known.name}"
        parameters = f"{known.parameters / 1e6:,.0f} M" if known.parameters else "–"
        table.add_row(
            known.name, state, parameters, show_bytes(known.size_bytes), known.description
        )
    console = Terminal()
    console.print(table)
    for source in library.sources():
        console.print(source.models)
