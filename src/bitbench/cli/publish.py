"""`bitbench publish` and `bitbench verify`: a study folder as one file that others can check, and the check."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.options import AsJson, end_with_json
from bitbench.ground.exit_codes import ExitCode
from bitbench.lab.choices import Described


def publish(
    folder: Annotated[Path, typer.Argument(help="The study folder.", metavar="FOLDER")],
    *,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="SSH key that signs, such as ~/.ssh/id_ed25519.")
    ] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Make a card without a signature.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The card [default: ./FOLDER.card].")
    ] = None,
    without_rows: Annotated[
        bool, typer.Option("--without-rows", help="Leave out request rows: smaller, but less can be checked.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make an evidence card: one signed file that others can check.

    It holds the facts, records, request rows and figures of a study, with their hashes; no path of this machine, no
    host name of a server, no log. The same folder gives the same bytes.
    """
    from bitbench.cli.terminal import Terminal
    from bitbench.lab.answers import PublishAnswer
    from bitbench.lab.publish import publish as make

    made = make(folder, output, key=key, unsigned=unsigned, rows=not without_rows)
    if as_json:
        answer = PublishAnswer(card=str(made.path), size=made.size, is_signed=made.is_signed, manifest=made.manifest)
        end_with_json(Described.PUBLISH, answer, ExitCode.DONE)
    signed = "signed" if made.is_signed else "not signed"
    Terminal().print(
        f"Wrote {made.path} ({made.size / 1000:,.0f} kB, {signed}). `bitbench verify {made.path}` checks it.",
        soft_wrap=True,
    )


def verify(
    card: Annotated[Path, typer.Argument(help="The evidence card.", metavar="CARD")],
    *,
    signers: Annotated[
        Path | None, typer.Option("--signers", metavar="FILE", help="Refuse other keys: lines of a name and a key.")
    ] = None,
    unpack: Annotated[
        Path | None, typer.Option("--unpack", metavar="DIR", help="Write the study folder, if every figure follows.")
    ] = None,
    allow_inconclusive: Annotated[
        bool, typer.Option("--allow-inconclusive", help="End with 0 where some figures could not be recomputed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check an evidence card: recompute each figure from its records.

    Exit code 1: a figure does not follow from the records. 2: some could not be recomputed. 65: the card is damaged,
    was changed after it was made, or is not signed as asked.
    """
    from bitbench.cli.terminal import Terminal
    from bitbench.lab.verify import verify as check
    from bitbench.report.answers.verify import verification_document
    from bitbench.report.document.terminal import render_whole

    with Terminal(stderr=True).status("recomputing every figure"):
        found = check(card, signers=signers, unpack_into=unpack)
    found = found.model_copy(update={"allow_inconclusive": allow_inconclusive})
    if as_json:
        end_with_json(Described.VERIFY, found, found.exit_code)
    render_whole(verification_document(found), Terminal())
    raise typer.Exit(found.exit_code)
