"""`bitbench publish` and `bitbench verify`: the commands that write a study as one file and check
one."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AsJson
from bitbench.cli.terminal import Terminal
from bitbench.features.publish.archive import publish_study
from bitbench.features.publish.checking import build_verification_document, verify_study
from bitbench.reports.document.terminal import render_whole_in_terminal
from bitbench.util.errors import ExitCode


def publish(
    folder: Annotated[Path, typer.Argument(help="The study folder.", metavar="FOLDER")],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file [default: ./FOLDER.tar.gz]."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a study as one file that others can check.

    It holds the facts, records, request rows and figures of a study, with the hash of each; no path
    of this machine, no host name of a server, no log. The same folder gives the same bytes.
    """
    published = publish_study(folder, output)
    if as_json:
        end_with_json("publish", published, ExitCode.DONE)
    size = f"{published.size / 1000:,.0f} kB"
    Terminal().print(
        f"Wrote {published.file} ({size}, SHA-256 {published.sha256}).", soft_wrap=True
    )
    Terminal().print(f"`bitbench verify {published.file}` checks it.", soft_wrap=True)


def verify(
    file: Annotated[Path, typer.Argument(help="What `bitbench publish` wrote.", metavar="FILE")],
    *,
    as_json: AsJson = False,
) -> None:
    """Check a published study by recomputing its figures.

    Exit code 1: a figure does not follow from the records. 2: some could not be recomputed. 65: the
    file is damaged, or was changed after it was made.
    """
    with Terminal(stderr=True).status("recomputing every figure"):
        verification = verify_study(file)
    if as_json:
        end_with_json("verify", verification, verification.exit_code)
    render_whole_in_terminal(build_verification_document(verification), Terminal())
    raise typer.Exit(verification.exit_code)
