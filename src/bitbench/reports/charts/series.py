"""Workloads that are the same but for one thing, so that a line may join them."""

from collections.abc import Callable, Sequence

from bitbench.reports.grouping import grouped
from bitbench.reports.sections.sweep import level
from bitbench.study.workload import Workload


def by_load(workloads: Sequence[Workload]) -> list[list[Workload]]:
    """Groups of at least two that differ only in how much is asked at once, by rising load."""
    return _groups(workloads, {"concurrency", "arrival"}, level)


def by_input_length(workloads: Sequence[Workload]) -> list[list[Workload]]:
    """Groups of at least two that differ only in the length of the prompt, by rising length."""
    fixed = [
        workload
        for workload in workloads
        if isinstance(workload.input_tokens, int) and "input_tokens" not in workload.unknown
    ]
    return _groups(fixed, {"input_tokens"}, input_length)


def input_length(workload: Workload) -> float:
    return float(workload.input_tokens) if isinstance(workload.input_tokens, int) else 0.0


def _groups(
    workloads: Sequence[Workload], differing: set[str], place: Callable[[Workload], float]
) -> list[list[Workload]]:
    kept_out = {"name", "requests", "duration", *differing}

    def same(workload: Workload) -> str:
        return f"{workload.model_dump(exclude=kept_out)} {workload.arrival.kind}"

    ordered = [sorted(group, key=place) for group in grouped(workloads, same).values()]
    return [group for group in ordered if len({place(one) for one in group}) > 1]
