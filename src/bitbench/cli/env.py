"""`bitbench env`: the isolated environments that engines run in."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from bitbench.cli.help import PlainTyper
from bitbench.cli.options import OnDevice, parse_device_option
from bitbench.cli.terminal import Terminal
from bitbench.engines import environments
from bitbench.machine.workplace import Workplace, get_default_home
from bitbench.planning.readiness import (
    collect_environments,
    get_environment,
    list_main_versions,
)
from bitbench.util.units import show_bytes, show_duration

env = PlainTyper(help="Create and list the environments that engines run in.")


@env.command()
def create(
    name: Annotated[str, typer.Argument(help="A name from `bitbench env list`.")],
    *,
    find_links: Annotated[
        list[str] | None,
        typer.Option("--find-links", help="A folder or page with wheels, for the installer."),
    ] = None,
    index_url: Annotated[
        str | None, typer.Option("--index-url", help="The package index, for the installer.")
    ] = None,
    device: OnDevice = None,
) -> None:
    """Create an environment from its pinned lock file."""
    workplace = Workplace(asked_device=parse_device_option(device))
    console = Terminal()
    environment = get_environment(name)
    with console.status(Text(f"creating the environment {name}")) as status:

        def show_step(step: str) -> None:
            if console.is_terminal:
                status.update(Text(f"{name}: {step}"))
            else:
                console.print(step)

        made = environments.make_environment(
            environment,
            workplace.home,
            device=workplace.device,
            find_links=find_links or [],
            index_url=index_url,
            on_step=show_step,
        )
    size = show_bytes(made.size_bytes)
    console.print(f"{made.name}: {size} in {show_duration(made.seconds)}, at {made.path}")
    if made.prebuilt is not None:
        console.print(f"{made.prebuilt}.")


@env.command("list")
def list_() -> None:
    """List environments with their main packages and sizes."""
    by_name = collect_environments()
    table = Table("environment", "state", "main packages", "size", box=None, header_style="bold")
    for installed in environments.list_environments(get_default_home(), by_name):
        versions = list_main_versions(installed, by_name)
        packages = ", ".join(f"{package} {version}" for package, version in versions.items())
        state = "ready"
        if not installed.complete:
            state = f"not installed: bitbench env create {installed.name}"
        table.add_row(installed.name, state, packages, show_bytes(installed.size_bytes))
    Terminal().print(table)
