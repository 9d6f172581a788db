"""Compares what is stated with what was computed again, number by number: of a card, or of another machine."""

import json
import math

from bitbench.study.base import Json

# Sums of the same doubles in another order differ by a few units in the last of 16 digits; a bootstrap takes the
# difference of such sums. What a person would read differs only from a million times as much on.
TOLERANCE = 1e-9
_NOT_STATED = "not stated"


def compare_values(stated: Json, computed: Json, where: str = "", *, whole: bool = False) -> tuple[int, list[str]]:
    """Return how many numbers were compared, and each place where the two differ, with both values. What is not stated
    is no difference, unless it must be the `whole`."""
    if isinstance(stated, dict) and isinstance(computed, dict):
        pairs = [
            (stated.get(name, _NOT_STATED), computed[name], f"{where}.{name}" if where else str(name))
            for name in sorted(computed if whole else stated.keys() & computed.keys())
        ]
    elif isinstance(stated, list) and isinstance(computed, list) and len(stated) == len(computed):
        pairs = [(*both, f"{where}[{index}]") for index, both in enumerate(zip(stated, computed, strict=True))]
    else:
        is_number = _is_number(computed) or _is_number(stated)
        is_equal = _is_equal(stated, computed)
        return int(is_number), [] if is_equal else [f"{where}: {_shown(stated)}, not {_shown(computed)}"]
    compared, different = 0, list[str]()
    for left, right, place in pairs:
        count, differences = compare_values(left, right, place, whole=whole)
        compared += count
        different += differences
    return compared, different


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_equal(stated: object, computed: object) -> bool:
    if isinstance(stated, bool) or isinstance(computed, bool):
        return stated is computed
    if isinstance(stated, int | float) and isinstance(computed, int | float):
        return math.isclose(stated, computed, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-3)
    return stated == computed


def _shown(value: object) -> str:
    return json.dumps(value)[:60]
