"""Compares the points of all evidence cards below a folder: which may be compared, and what keeps the others apart."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bitbench.analysis.results.facts import Fact
from bitbench.features.cards.card import read_card_points
from bitbench.features.cards.publish import ENDING
from bitbench.features.cards.types import (
    CARD_FACTS,
    CARD_FORMAT,
    CardComparison,
    CardEntry,
    CardGroup,
    CardPoint,
    CardPoints,
    LeftOut,
    NotCompared,
)
from bitbench.features.cards.verify import check_signature
from bitbench.records.lock import HostFacts
from bitbench.records.strict_reader import parse_record
from bitbench.util.errors import StoreError

READERS = 8  # threads; each waits for a file, or for ssh-keygen
MOST_CARDS = 100_000
LARGEST_POINTS_BYTES = 8 * 2**20  # of a card: several thousand points


class ReadCard(NamedTuple):
    name: str
    card_id: str
    signer: str | None
    points: CardPoints


class _Found(NamedTuple):
    card: ReadCard
    point: CardPoint


def query_cards(
    place: Path, *, allow: Sequence[Fact] = (), signers: Path | None = None, model: str | None = None
) -> CardComparison:
    """Each card's head and points are read and checked by their hashes, and by its signature where `signers` is given;
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
    return _compare_cards([_of_model(card, model) for card in cards.values()], allowed=allow, left_out=left_out)


def _read(path: Path, name: str, signers: Path | None) -> ReadCard:
    head, content = read_card_points(path)
    if len(content) > LARGEST_POINTS_BYTES:
        raise StoreError(f"its points take more than {LARGEST_POINTS_BYTES // 2**20} MiB")
    signer = check_signature(head, signers)
    points = parse_record(content, CardPoints, CARD_FORMAT, f"the points of {path}", "ask for the card again")
    return ReadCard(name, head.card_id, signer, points)


def _of_model(card: ReadCard, model: str | None) -> ReadCard:
    if model is None:
        return card
    points = tuple(point for point in card.points.points if point.model == model)
    return card._replace(points=card.points.model_copy(update={"points": points}))


def _below(place: Path) -> list[Path]:
    if not place.exists():
        raise StoreError(f"{place} does not exist; give a folder that contains cards (*{ENDING})")
    # Links are not followed: they would lead out of the folder that was given.
    below = (path for path in place.rglob(f"*{ENDING}") if path.is_file() and not path.is_symlink())
    paths = [place] if place.is_file() else sorted(below)
    if not paths:
        raise StoreError(f"{place} contains no card (*{ENDING}); `bitbench publish FOLDER` makes one")
    if len(paths) > MOST_CARDS:
        raise StoreError(f"{place} contains more than {MOST_CARDS:,} cards; give a folder with fewer")
    return paths


def _compare_cards(
    cards: Sequence[ReadCard], *, allowed: Sequence[Fact] = (), left_out: Sequence[LeftOut] = ()
) -> CardComparison:
    """Points of one model, recipe, engine and workload are one subject; those of a subject that agree in every fact
    are one group. A fact that is `allowed` may differ."""
    facts = [fact for fact in CARD_FACTS if fact not in allowed]
    subjects: dict[tuple[str, ...], list[_Found]] = {}
    for card in cards:
        for point in card.points.points:
            subjects.setdefault((*point.subject, card.points.primary_metric), []).append(_Found(card, point))
    groups: list[CardGroup] = []
    apart: list[NotCompared] = []
    for found in subjects.values():
        classes: dict[tuple[str | None, ...], list[_Found]] = {}
        for member in found:
            classes.setdefault(tuple(member.point.facts.get(fact) for fact in facts), []).append(member)
        whole = sorted(classes.values(), key=len, reverse=True)
        groups += [_group(members, facts) for members in whole if _is_several(members)]
        apart += _apart(whole, facts)
    return CardComparison(cards=len(cards), groups=tuple(groups), not_compared=tuple(apart), left_out=tuple(left_out))


def _is_several(members: Sequence[_Found]) -> bool:
    """Two setups of one study are compared by its own report."""
    return len({member.card.name for member in members}) > 1


def _card_machine(host: HostFacts) -> str:
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
    first = members[0].point
    agreed: Mapping[Fact, str | None] = {fact: first.facts.get(fact) for fact in facts}
    return CardGroup(
        model=first.model,
        recipe=first.recipe,
        engine=first.engine,
        shape=first.shape,
        primary_metric=members[0].card.points.primary_metric,
        facts=dict(agreed),
        entries=tuple(sorted((_entry(member) for member in members), key=_best_first)),
        unknown=tuple(fact for fact, value in agreed.items() if value is None),
    )


def _entry(member: _Found) -> CardEntry:
    points = member.card.points
    return CardEntry(
        card=member.card.name,
        signer=member.card.signer,
        machine=_card_machine(points.host),
        workload=member.point.workload,
        kernels=member.point.kernels,
        figure=member.point.figures.get(points.primary_metric),
        phases=member.point.phases,
    )


def _best_first(entry: CardEntry) -> tuple[float, str]:
    """By the share of the roof in the last phase that has one (decode); without any they come last, by name."""
    return (-entry.phases[-1].share.value if entry.phases else 1.0, entry.card)


def _apart(classes: Sequence[Sequence[_Found]], facts: Sequence[Fact]) -> Iterator[NotCompared]:
    for place, members in enumerate(classes):
        if _is_several(members):
            continue
        member = members[0]
        other = next((group[0].point for index, group in enumerate(classes) if index != place), None)
        differs = {} if other is None else _differences(member.point, other, facts)
        yield NotCompared(
            card=member.card.name,
            model=member.point.model,
            recipe=member.point.recipe,
            engine=member.point.engine,
            workload=member.point.workload,
            differs=differs,
        )


def _differences(point: CardPoint, other: CardPoint, facts: Sequence[Fact]) -> dict[Fact, tuple[str, str]]:
    return {
        fact: (point.facts.get(fact) or "unknown", other.facts.get(fact) or "unknown")
        for fact in facts
        if point.facts.get(fact) != other.facts.get(fact)
    }
