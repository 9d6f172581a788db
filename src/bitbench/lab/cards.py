"""Compares the cells of all evidence cards below a folder."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bitbench.core.found.card import CardCells, CardComparison, LeftOut
from bitbench.core.found.facts import Fact
from bitbench.core.recorded.card import CARD_FORMAT
from bitbench.ground.errors import StoreError
from bitbench.lab.publish import ENDING
from bitbench.lab.verify import check_signature
from bitbench.statistics.cards import ReadCard, compare_cards
from bitbench.store.card_file import read_first_part
from bitbench.store.records import parse

READERS = 8  # threads; each waits for a file, or for ssh-keygen
MOST_CARDS = 100_000
LARGEST_CELLS_BYTES = 8 * 2**20  # of a card: several thousand cells


def query_cards(
    place: Path, *, allow: Sequence[Fact] = (), signers: Path | None = None, model: str | None = None
) -> CardComparison:
    """Each card's head and cells are read and checked by their hashes, and by its signature where `signers` is given;
    its records are not: `bitbench verify` does that for one card. A card that cannot be read is left out and named."""
    paths = _below(place)

    def read(path: Path) -> ReadCard | LeftOut:
        name = str(path.relative_to(place)) if path != place else path.name
        try:
            return _read(path, name, signers)
        except StoreError as error:
            return LeftOut(card=name, why=str(error))

    with ThreadPoolExecutor(READERS) as readers:
        found = list(readers.map(read, paths))
    cards: dict[str, ReadCard] = {}
    left_out: list[LeftOut] = []
    for one in found:
        if isinstance(one, LeftOut):
            left_out.append(one)
        elif (first := cards.setdefault(one.card_id, one)) is not one:
            left_out.append(LeftOut(card=one.name, why=f"it is the same card as {first.name}"))
    return compare_cards([_of_model(one, model) for one in cards.values()], allowed=allow, left_out=left_out)


def _read(path: Path, name: str, signers: Path | None) -> ReadCard:
    head, content = read_first_part(path)
    if len(content) > LARGEST_CELLS_BYTES:
        raise StoreError(f"its cells take more than {LARGEST_CELLS_BYTES // 2**20} MiB")
    signer = check_signature(head, signers)
    cells = parse(content, CardCells, CARD_FORMAT, f"the cells of {path}", "ask for the card again")
    return ReadCard(name, head.card_id, signer, cells)


def _of_model(card: ReadCard, model: str | None) -> ReadCard:
    if model is None:
        return card
    cells = tuple(cell for cell in card.cells.cells if cell.model == model)
    return card._replace(cells=card.cells.model_copy(update={"cells": cells}))


def _below(place: Path) -> list[Path]:
    if not place.exists():
        raise StoreError(f"{place} does not exist; give a folder that contains cards (*{ENDING})")
    paths = [place] if place.is_file() else sorted(_cards_in(place))
    if not paths:
        raise StoreError(f"{place} contains no card (*{ENDING}); `bitbench publish FOLDER` makes one")
    if len(paths) > MOST_CARDS:
        raise StoreError(f"{place} contains more than {MOST_CARDS:,} cards; give a folder with fewer")
    return paths


def _cards_in(place: Path) -> Iterator[Path]:
    """Links are not followed: they would lead out of the folder that was given."""
    return (path for path in place.rglob(f"*{ENDING}") if path.is_file() and not path.is_symlink())
