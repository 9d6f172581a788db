"""Many questions at once: Holm's correction keeps the chance of any false answer below the allowed error."""

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the order given (Holm 1979, step down)."""
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - step) * p_values[place]))
        adjusted[place] = reached
    return adjusted
