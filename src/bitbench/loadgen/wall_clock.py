"""Whether the wall clock was set while a trial ran.

The kernel stamps what it receives with the wall clock, and only its distance to the monotonic clock makes a time of
that stamp. A step between the stamp and its reading would be taken for time that an answer lay unread. Both clocks are
corrected alike, so their distance changes by a step only, or by a sleep of the machine, in which the monotonic one
stands still.
"""

import time
from collections.abc import Callable

# Of so many looks the one counts whose two readings were closest: a process that loses its core between them would
# see a step that is none.
_LOOKS = 5


class WallClock:
    """Begins to watch when it is made."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._distance_s = self._distance()

    def step_s(self) -> float:
        """By how much it has been set since then; forward is positive."""
        return self._distance() - self._distance_s

    def _distance(self) -> float:
        return min(self._look() for _ in range(_LOOKS))[1]

    def _look(self) -> tuple[float, float]:
        """How long it took, and how far the wall clock was ahead in the middle of it."""
        before = self._monotonic()
        wall = self._wall()
        after = self._monotonic()
        return after - before, wall - (before + after) / 2
