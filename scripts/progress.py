"""What a script that measures for minutes says meanwhile."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from bitbench.util.units import show_about

T = TypeVar("T")


def counted(steps: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Passes on each step once it is done; prints how many are, and about how long the others will take."""
    began = time.monotonic()
    for number, step in enumerate(steps, 1):
        left_s = (time.monotonic() - began) / number * (total - number)
        rest = f", {show_about(left_s)} left" if number < total else ""
        print(f"{what} {number} of {total}{rest}", file=sys.stderr, flush=True)
        yield step
