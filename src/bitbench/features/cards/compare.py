"""Compares the cells of all evidence cards below a folder: which may be compared, and what keeps the others apart."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bitbench.analysis.results.facts import Fact
from bitbench.features.cards.file import read_first_part
from bitbench.features.cards.publish import ENDING
from bitbench.features.cards.types import (
    CARD_FACTS,
    CARD_FORMAT,
    CardCell,
    CardCells,
    CardComparison,
    CardEntry,
    CardGroup,
    LeftOut,
    NotCompared,
)
from bitbench.features.cards.verify import check_signature
from bitbench.records.host import HostFacts
from bitbench.records.strict_reader import parse
from bitbench.util.errors import StoreError

READERS = 8  # threads; each waits for a file, or for ssh-keygen
MOST_CARDS = 100_000
LARGEST_CELLS_BYTES = 8 * 2**20  # of a card: several thousand cells


class ReadCard(NamedTuple):
    name: str
    card_id: str
    signer: str | None
    cells: CardCells


class _Found(NamedTuple):
    card: ReadCard
    cell: CardCell


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
    for card in found:
        if isinstance(card, LeftOut):
            left_out.append(card)
        elif (first := cards.setdefault(card.card_id, card)) is not card:
            left_out.append(LeftOut(card=card.name, why=f"it is the same card as {first.name}"))
    return compare_cards([_of_model(card, model) for card in cards.values()], allowed=allow, left_out=left_out)


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


def compare_cards(
    cards: Sequence[ReadCard], *, allowed: Sequence[Fact] = (), left_out: Sequence[LeftOut] = ()
) -> CardComparison:
    """Cells of one model, recipe, engine and workload are one subject; those of a subject that agree in every fact
    are one group. A fact that is `allowed` may differ."""
    facts = [fact for fact in CARD_FACTS if fact not in allowed]
    subjects: dict[tuple[str, ...], list[_Found]] = {}
    for card in cards:
        for cell in card.cells.cells:
            subjects.setdefault((*cell.subject, card.cells.headline), []).append(_Found(card, cell))
    groups: list[CardGroup] = []
    apart: list[NotCompared] = []
    for found in subjects.values():
        classes: dict[tuple[str | None, ...], list[_Found]] = {}
        for member in found:
            classes.setdefault(tuple(member.cell.facts.get(fact) for fact in facts), []).append(member)
        whole = sorted(classes.values(), key=len, reverse=True)
        groups += [_group(members, facts) for members in whole if _is_several(members)]
        apart += _apart(whole, facts)
    return CardComparison(cards=len(cards), groups=tuple(groups), not_compared=tuple(apart), left_out=tuple(left_out))


def _is_several(members: Sequence[_Found]) -> bool:
    """Two setups of one study are compared by its own report."""
    return len({member.card.name for member in members}) > 1


def machine(host: HostFacts) -> str:
    """`Intel(R) Xeon(R) Processor, 2 threads, 25.3 GB`, or its accelerators."""
    if host.accelerators:
        return ", ".join(str(accelerator) for accelerator in host.accelerators)
    known = [host.cpu_model or "unknown processor"]
    if host.threads is not None:
        known.append(f"{host.threads} threads")
    if host.memory_bytes is not None:
        known.append(f"{host.memory_bytes / 1e9:.0f} GB")
    return ", ".join(known)


def _group(members: Sequence[_Found], facts: Sequence[Fact]) -> CardGroup:
    first = members[0].cell
    agreed: Mapping[Fact, str | None] = {fact: first.facts.get(fact) for fact in facts}
    return CardGroup(
        model=first.model,
        recipe=first.recipe,
        engine=first.engine,
        shape=first.shape,
        headline=members[0].card.cells.headline,
        facts=dict(agreed),
        entries=tuple(sorted((_entry(member) for member in members), key=_best_first)),
        unknown=tuple(fact for fact, value in agreed.items() if value is None),
    )


def _entry(member: _Found) -> CardEntry:
    cells = member.card.cells
    return CardEntry(
        card=member.card.name,
        signer=member.card.signer,
        machine=machine(cells.host),
        workload=member.cell.workload,
        kernels=member.cell.kernels,
        figure=member.cell.figures.get(cells.headline),
        phases=member.cell.phases,
    )


def _best_first(entry: CardEntry) -> tuple[float, str]:
    """By the share of the roof in the last phase that has one (decode); without any they come last, by name."""
    return (-entry.phases[-1].share if entry.phases else 1.0, entry.card)


def _apart(classes: Sequence[Sequence[_Found]], facts: Sequence[Fact]) -> Iterator[NotCompared]:
    for place, members in enumerate(classes):
        if _is_several(members):
            continue
        member = members[0]
        other = next((group[0].cell for index, group in enumerate(classes) if index != place), None)
        differs = {} if other is None else _differences(member.cell, other, facts)
        yield NotCompared(
            card=member.card.name,
            model=member.cell.model,
            recipe=member.cell.recipe,
            engine=member.cell.engine,
            workload=member.cell.workload,
            differs=differs,
        )


def _differences(cell: CardCell, other: CardCell, facts: Sequence[Fact]) -> dict[Fact, tuple[str, str]]:
    return {
        fact: (cell.facts.get(fact) or "unknown", other.facts.get(fact) or "unknown")
        for fact in facts
        if cell.facts.get(fact) != other.facts.get(fact)
    }
