"""Contenders that do not fit into memory at once: who comes together, beside the baseline."""

from collections.abc import Callable, Sequence

from bitbench.study.plan import Contender

Shifts = tuple[tuple[Contender, ...], ...]


def shifts_beside(
    baseline: Contender, others: Sequence[Contender], fit: Callable[[Sequence[Contender]], bool]
) -> Shifts | None:
    """Each fits beside the baseline; in the order given, so that the same contenders meet in every block.

    None where one of them does not fit beside it: shifts and visits in one block would vary differently.
    """
    shifts: list[list[Contender]] = []
    for contender in others:
        if not fit([baseline, contender]):
            return None
        room = next((shift for shift in shifts if fit([baseline, *shift, contender])), None)
        if room is None:
            shifts.append([contender])
        else:
            room.append(contender)
    return tuple(map(tuple, shifts))
