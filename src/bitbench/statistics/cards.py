"""Which cells of many cards may be compared, and what keeps the others apart."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bitbench.core.found.card import (
    CARD_FACTS,
    CardCell,
    CardCells,
    CardComparison,
    CardEntry,
    CardGroup,
    LeftOut,
    NotCompared,
)
from bitbench.core.found.facts import Fact
from bitbench.core.recorded.host import HostFacts


class ReadCard(NamedTuple):
    name: str
    card_id: str
    signer: str | None
    cells: CardCells


class _Found(NamedTuple):
    card: ReadCard
    cell: CardCell


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
        for one in found:
            classes.setdefault(tuple(one.cell.facts.get(fact) for fact in facts), []).append(one)
        whole = sorted(classes.values(), key=len, reverse=True)
        groups += [_group(members, facts) for members in whole if _is_several(members)]
        apart += _apart(whole, facts)
    return CardComparison(cards=len(cards), groups=tuple(groups), not_compared=tuple(apart), left_out=tuple(left_out))


def _is_several(members: Sequence[_Found]) -> bool:
    """Two setups of one study are compared by its own report."""
    return len({one.card.name for one in members}) > 1


def machine(host: HostFacts) -> str:
    """`Intel(R) Xeon(R) Processor, 2 threads, 25.3 GB`, or its accelerators."""
    if host.accelerators:
        return ", ".join(str(one) for one in host.accelerators)
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
        entries=tuple(sorted((_entry(one) for one in members), key=_best_first)),
        unknown=tuple(fact for fact, value in agreed.items() if value is None),
    )


def _entry(one: _Found) -> CardEntry:
    cells = one.card.cells
    return CardEntry(
        card=one.card.name,
        signer=one.card.signer,
        machine=machine(cells.host),
        workload=one.cell.workload,
        kernels=one.cell.kernels,
        figure=one.cell.figures.get(cells.headline),
        phases=one.cell.phases,
    )


def _best_first(entry: CardEntry) -> tuple[float, str]:
    """By the share of the roof in the last phase that has one (decode); without any they come last, by name."""
    return (-entry.phases[-1].share if entry.phases else 1.0, entry.card)


def _apart(classes: Sequence[Sequence[_Found]], facts: Sequence[Fact]) -> Iterator[NotCompared]:
    for place, members in enumerate(classes):
        if _is_several(members):
            continue
        one = members[0]
        other = next((group[0].cell for index, group in enumerate(classes) if index != place), None)
        differs = {} if other is None else _differences(one.cell, other, facts)
        yield NotCompared(
            card=one.card.name,
            model=one.cell.model,
            recipe=one.cell.recipe,
            engine=one.cell.engine,
            workload=one.cell.workload,
            differs=differs,
        )


def _differences(one: CardCell, other: CardCell, facts: Sequence[Fact]) -> dict[Fact, tuple[str, str]]:
    return {
        fact: (one.facts.get(fact) or "unknown", other.facts.get(fact) or "unknown")
        for fact in facts
        if one.facts.get(fact) != other.facts.get(fact)
    }
