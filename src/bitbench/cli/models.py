"""`bitbench model`: models that bitbench can download without a hub."""

from typing import Annotated

import typer

app = typer.Typer(help="Download and list models.", no_args_is_help=True)


@app.command()
def get(name: Annotated[str, typer.Argument(help="A name from `bitbench model list`.")]) -> None:
    """Download a model and convert it to a bf16 checkpoint."""
    from rich.text import Text

    from bitbench import environments
    from bitbench.cli.terminal import Terminal
    from bitbench.lab.study import Lab
    from bitbench.models import library

    lab, console = Lab(), Terminal()
    with console.status(Text(f"downloading {name}")) as status:
        path = library.fetch(
            name,
            lab.home,
            python=environments.python_of(library.ENVIRONMENT, lab.home),
            on_step=lambda step: status.update(Text(f"{name}: {step}")) if console.is_terminal else console.print(step),
        )
    console.print(f"{name} is at {path}", soft_wrap=True)


@app.command("list")
def list_() -> None:
    """List downloaded models, and those that can be downloaded."""
    from rich.table import Table

    from bitbench.cli.terminal import Terminal
    from bitbench.ground.units import show_bytes
    from bitbench.lab.study import Lab
    from bitbench.models import library

    table = Table("model", "state", "parameters", "size", "description", box=None, header_style="bold")
    for model in library.list_models(Lab().home):
        state = "ready" if model.path else f"not downloaded: bitbench model get {model.name}"
        parameters = f"{model.parameters / 1e6:,.0f} M" if model.parameters else "–"
        table.add_row(model.name, state, parameters, show_bytes(model.size_bytes), model.description)
    Terminal().print(table)
