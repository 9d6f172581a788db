"""Many questions at once: Holm's correction keeps the chance of any false answer below the allowed error."""

from collections.abc import Sequence


def tested_at(p_values: Sequence[float], error: float) -> list[float]:
    """The level at which Holm's procedure tests each, in the order given, where it may be wrong in this share of cases.

    An interval at 1 − level excludes "equal" exactly where the procedure rejects it, so that both say the same.
    """
    levels = [error] * len(p_values)
    level, rejects = error, True
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if rejects:  # the first that is not rejected ends the procedure
            level = error / (len(p_values) - step)
            rejects = p_values[place] < level
        levels[place] = level
    return levels


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the order given (Holm 1979, step down)."""
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - step) * p_values[place]))
        adjusted[place] = reached
    return adjusted
