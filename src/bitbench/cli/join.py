"""`bitbench join PART... --into STUDY`: the blocks of a study, measured apart, in one folder."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.options import AllowInconclusive
from bitbench.cli.outcome import end_with_outcome
from bitbench.cli.terminal import Terminal
from bitbench.machine.workplace import get_default_home
from bitbench.running.blocks import join_parts


def join(
    parts: Annotated[
        list[Path], typer.Argument(help="Folders that `run --block` filled.", metavar="PART…")
    ],
    *,
    into: Annotated[
        Path, typer.Option("--into", metavar="DIR", help="Results folder of the whole study.")
    ],
    allow_inconclusive: AllowInconclusive = False,
) -> None:
    """Join the blocks of a study into one folder, and report.

    Refuses parts of another study or of another class of machine. The same command again adds only
    what is new, so it may run while tasks are still at work. Its exit code is that of `bitbench
    run`.
    """
    folder = join_parts(parts, into)
    end_with_outcome(folder, get_default_home(), Terminal(), allow_inconclusive=allow_inconclusive)
