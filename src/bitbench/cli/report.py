"""`bitbench report`: the report of a study from its records, or its records in a published
format."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.api.results import format_study
from bitbench.cli.options import AllowInconclusive
from bitbench.cli.outcome import end_with_outcome
from bitbench.cli.terminal import Terminal
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.reports.formats import list_formats
from bitbench.reports.write import StudyReport
from bitbench.util.errors import UsageError
from bitbench.util.files import SafeFolder


def _check_format(name: str) -> str:
    """Return the name of a format. Raise BadParameter for an unknown one."""
    names = list_formats()
    if name not in names:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, names))}.")
    return name


def report(
    folder: Annotated[
        Path, typer.Argument(help="A folder filled by bitbench.", metavar="STUDY_DIR")
    ],
    *,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            parser=_check_format,
            metavar=f"<{'|'.join(list_formats())}>",
            help="The output format [default: index.html, report.md, and tables in the terminal].",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file to write [default: the terminal]."
        ),
    ] = None,
    allow_inconclusive: AllowInconclusive = False,
) -> None:
    """Write the report of a study from its records.

    With --format: one of the published table formats, or the records as data. Without it the exit
    code is that of `bitbench run`.
    """
    if form is None and output is not None:
        raise UsageError(
            "--output needs --format; without it the report is written to STUDY_DIR/report"
        )
    if form is None:
        study = StudyFolder.existing(folder)
        end_with_outcome(
            study, get_default_home(), Terminal(), allow_inconclusive=allow_inconclusive
        )
    else:
        _write_format(folder, form, output)


def _write_format(folder: Path, form: str, output: Path | None) -> None:
    """Write the study in this format to a file, or print it."""
    text = format_study(StudyReport(StudyFolder(folder), get_default_home()), form)
    if output is None:
        typer.echo(text, nl=False)
        return
    files, name = SafeFolder.around(output, folder)
    files.write(name, text)
    typer.echo(f"{form}: {output}")
