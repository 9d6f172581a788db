"""`bitbench init`: a commented study file to start from."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.machine.workplace import Workplace
from bitbench.study.study_file import format_starter
from bitbench.util.errors import UsageError
from bitbench.util.files import SafeFolder


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("study.yaml"),
) -> None:
    """Write a commented study file to start from."""
    if path.exists():
        raise UsageError(f"{path} already exists; give another name, or remove it")
    files, name = SafeFolder.around(path)
    files.write(name, format_starter(Workplace().device))
    typer.echo(f"Wrote {path}. `bitbench plan {path}` shows what it would run.")
