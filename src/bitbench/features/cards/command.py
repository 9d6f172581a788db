"""`bitbench publish`, `bitbench verify` and `bitbench cards`: make a card, check one, compare many."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.analysis.results.facts import Fact
from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AsJson
from bitbench.cli.terminal import Terminal
from bitbench.features.cards.compare import query_cards
from bitbench.features.cards.publish import publish as make
from bitbench.features.cards.verify import verify as check
from bitbench.features.cards.words import cards_document, verification_document
from bitbench.reports.document.terminal import render_whole_in_terminal
from bitbench.util.errors import ExitCode

Signers = Annotated[
    Path | None, typer.Option("--signers", metavar="FILE", help="Refuse other keys: lines of a name and a key.")
]


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
    """Make an evidence card, a signed file others can check.

    It holds the facts, records, request rows and figures of a study, with their hashes; no path of this machine, no
    host name of a server, no log. The same folder gives the same bytes.
    """
    made = make(folder, output, key=key, unsigned=unsigned, rows=not without_rows)
    if as_json:
        end_with_json("publish", made, ExitCode.DONE)
    signed = "signed" if made.is_signed else "not signed"
    Terminal().print(
        f"Wrote {made.card} ({made.size / 1000:,.0f} kB, {signed}). `bitbench verify {made.card}` checks it.",
        soft_wrap=True,
    )


def verify(
    card: Annotated[Path, typer.Argument(help="The evidence card.", metavar="CARD")],
    *,
    signers: Signers = None,
    unpack: Annotated[
        Path | None, typer.Option("--unpack", metavar="DIR", help="Write the study folder, if every figure follows.")
    ] = None,
    allow_inconclusive: Annotated[
        bool, typer.Option("--allow-inconclusive", help="End with 0 where some figures could not be recomputed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check an evidence card by recomputing its figures.

    Exit code 1: a figure does not follow from the records. 2: some could not be recomputed. 65: the card is damaged,
    was changed after it was made, or is not signed as asked.
    """
    with Terminal(stderr=True).status("recomputing every figure"):
        found = check(card, signers=signers, unpack_into=unpack)
    found = found.model_copy(update={"allow_inconclusive": allow_inconclusive})
    if as_json:
        end_with_json("verify", found, found.exit_code)
    render_whole_in_terminal(verification_document(found), Terminal())
    raise typer.Exit(found.exit_code)


def cards(
    place: Annotated[Path, typer.Argument(help="A folder with cards, or one card.", metavar="FOLDER")] = Path(),
    *,
    allow: Annotated[list[Fact] | None, typer.Option("--allow", help="Ignore this mismatch between cards.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only points of this model.")] = None,
    signers: Signers = None,
    as_json: AsJson = False,
) -> None:
    """Compare the evidence cards below a folder.

    Points of one model, recipe, engine and workload that agree in every fact stand side by side, by their share of the
    machine's roof. Exit code 3: no two cards have a point in common.
    """
    found = query_cards(place, allow=allow or (), signers=signers, model=model)
    if as_json:
        end_with_json("cards", found, found.exit_code)
    render_whole_in_terminal(cards_document(found), Terminal())
    raise typer.Exit(found.exit_code)
