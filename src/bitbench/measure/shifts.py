"""Configs that do not fit into memory at once: who comes together, beside the baseline."""

from collections.abc import Callable, Sequence

from bitbench.study.plan import Config

Shifts = tuple[tuple[Config, ...], ...]


def shifts_beside(baseline: Config, others: Sequence[Config], fit: Callable[[Sequence[Config]], bool]) -> Shifts | None:
    """Each fits beside the baseline; in the order given, so that the same configs meet in every block.

    None where one of them does not fit beside it: shifts and visits in one block would vary differently.
    """
    shifts: list[list[Config]] = []
    for config in others:
        if not fit([baseline, config]):
            return None
        room = next((shift for shift in shifts if fit([baseline, *shift, config])), None)
        if room is None:
            shifts.append([config])
        else:
            room.append(config)
    return tuple(map(tuple, shifts))
