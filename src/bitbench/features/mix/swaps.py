"""Which models are made to find out what types of tensors cost: one swap at a time, and one type everywhere."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bitbench.features.mix.types import TensorGroup


@dataclass(frozen=True)
class Swap:
    """The unquantized model with these groups, all of one kind, in another type."""

    groups: tuple[TensorGroup, ...]
    type: str

    @property
    def name(self) -> str:
        """`swap-ffn_down-0to7-q4_0`, as recipes may be called."""
        first, last = self.groups[0].first, self.groups[-1].last
        place = "" if first is None else f"-{first}to{last}"
        return f"swap-{self.groups[0].kind}{place}-{self.type}"

    @property
    def types(self) -> dict[TensorGroup, str]:
        return dict.fromkeys(self.groups, self.type)


def plan_swaps(groups: Sequence[TensorGroup], *, thorough: bool) -> list[Swap]:
    """Each group in the smallest type that fits it, and each kind as a whole in the others; `thorough`: each group in
    each."""
    return [swap for own in by_kind(groups).values() for swap in _of_kind(own, thorough=thorough)]


def _of_kind(groups: Sequence[TensorGroup], *, thorough: bool) -> Iterator[Swap]:
    for group in groups:
        for type in group.types if thorough else group.types[:1]:
            yield Swap((group,), type)
    if thorough:
        return
    for type in dict.fromkeys(type for group in groups for type in group.types[1:]):
        together = tuple(group for group in groups if type in group.types[1:])
        yield Swap(together, type)


def by_kind(groups: Sequence[TensorGroup]) -> dict[str, list[TensorGroup]]:
    found: dict[str, list[TensorGroup]] = {}
    for group in groups:
        found.setdefault(group.kind, []).append(group)
    return found


def uniform(groups: Sequence[TensorGroup], types: Sequence[str], wanted: str) -> dict[TensorGroup, str]:
    """This type wherever it fits; elsewhere the next larger one of `types` that does, or the largest."""
    order = {type: place for place, type in enumerate(types)}

    def of(group: TensorGroup) -> str:
        larger = [type for type in group.types if order[type] >= order[wanted]]
        return larger[0] if larger else group.types[-1]

    return {group: of(group) for group in groups}


def plan_uniform(groups: Sequence[TensorGroup], types: Sequence[str]) -> Mapping[str, dict[TensorGroup, str]]:
    """By type; types that fit no group are not in it."""
    fitting = [type for type in types if any(type in group.types for group in groups)]
    return {type: uniform(groups, types, type) for type in fitting}
