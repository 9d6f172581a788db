"""The Pareto front: no other config is at least as good in every measure and significantly better in one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reach:
    """One measure of one config, turned so that more is better, and the range in which it may lie."""

    value: float
    low: float
    high: float


def on_front(configs: Sequence[Sequence[Reach]]) -> list[bool]:
    """For each config (the same measures in the same order). One that is worse only within noise stays on it."""
    return [not any(_beats(other, config) for other in configs if other is not config) for config in configs]


def _beats(other: Sequence[Reach], one: Sequence[Reach]) -> bool:
    pairs = list(zip(other, one, strict=True))
    return all(a.value >= b.value for a, b in pairs) and any(a.low > b.high for a, b in pairs)
