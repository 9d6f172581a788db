"""The command `bitbench import`, which turns other tools' result files into a study folder."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from bitbench.cli.outcome import show_outcome, write_outcome
from bitbench.cli.terminal import Terminal
from bitbench.features.interop.files import import_files
from bitbench.features.interop.readers.reading import ImportedStarts, Tool
from bitbench.machine.workplace import get_default_home
from bitbench.reports.document.words import format_plain_words
from bitbench.util.errors import ExitCode


def import_results(
    files: Annotated[
        list[Path], typer.Argument(help="Result files of one tool.", metavar="FILE...")
    ],
    tool: Annotated[Tool, typer.Option("--from", help="The tool that wrote them.")],
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", help="Results folder [default: ./NAME of the file]."),
    ] = None,
    starts: Annotated[
        ImportedStarts,
        typer.Option(
            "--starts", help="What was one start of the engine: each file, each run, or everything."
        ),
    ] = ImportedStarts.PER_FILE,
) -> None:
    """Turn other tools' results into a study folder.

    Values missing from a file are shown as –. The report lists what was assumed or skipped.
    """
    console = Terminal()
    folder = import_files(files, tool, starts, into)
    reported = write_outcome(folder, get_default_home())
    show_outcome(reported, console, ExitCode.DONE)
    summary = reported.summary
    notes = summary.imported_from.notes if summary.imported_from else ()
    for note in notes:
        console.print(Text(f"• {format_plain_words(note)}", style="dim"))
