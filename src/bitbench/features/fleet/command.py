"""`bitbench fleet`: the machines of a running study, or those behind an address."""

from typing import Annotated

import typer

from bitbench.cli.options import InsecureCluster
from bitbench.cli.terminal import Terminal
from bitbench.features.fleet.driver import fleet_driver_state
from bitbench.features.fleet.words import fleet_document
from bitbench.reports.document.terminal import render_whole_in_terminal


def fleet(
    where: Annotated[
        str, typer.Argument(help="A study folder, or local:N, ssh://HOST,HOST or ray://HEAD:PORT.", metavar="WHERE")
    ],
    *,
    insecure_cluster: InsecureCluster = False,
) -> None:
    """Show machines, what each runs, progress and the time left."""
    render_whole_in_terminal(fleet_document(fleet_driver_state(where, without_token=insecure_cluster)), Terminal())
