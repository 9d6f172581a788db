"""How many rounds a block of a study with a budget has: a pure function of the records.

Planned are the fewest that were right after any of the block's starts and, of the first block, trials: what these took
is a better estimate than what was known before, but may only shorten the block. After each round that all have, the
clock is looked at, and nothing else: a round that would not end in time is not begun, and where no other block fits,
the rounds go on while they do. Records are read in the order in which they ended: a run that was interrupted, which
finds them in another order, must come to the same.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from bitbench.analysis.elapsed import ended_s
from bitbench.measure.estimate import Estimator
from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.study.plan import Point


@dataclass(frozen=True)
class Room:
    """What is left of the budget after a round."""

    left_s: float  # without what is kept back
    is_last: bool  # no other block fits


class BlockRounds:
    def __init__(
        self,
        points: Collection[Point],
        gone: Collection[Point],
        known: Callable[[], Estimator],
        rounds_for: Callable[[Estimator], int],
        room_at: Callable[[float, int], Room],
        *,
        most: int,
    ) -> None:
        """`points`: all that are open in this block; `gone`: those of them that failed before it. `known`: an estimator
        with what was known before this block. `room_at`: a time of the wall clock, after so many rounds. `most`:
        rounds, whatever is left."""
        self._points, self._gone = points, gone
        self._known, self._rounds_for, self._room_at = known, rounds_for, room_at
        self._most = most
        self._read: list[TrialRecord | InstanceRecord] = []
        self._new: list[TrialRecord | InstanceRecord] = []
        self._begin()

    def _begin(self) -> None:
        self._estimator = self._known()
        self._rounds = self._rounds_for(self._estimator)
        self._turns = _Turns(self._points, self._gone)
        self._complete = 0  # rounds that all have

    def add(self, record: TrialRecord | InstanceRecord) -> None:
        self._new.append(record)

    def rounds(self) -> int:
        if self._new:
            self._new.sort(key=ended_s)
            if self._read and ended_s(self._new[0]) < ended_s(self._read[-1]):
                self._new = sorted([*self._read, *self._new], key=ended_s)
                self._read = []
                self._begin()
            for record in self._new:
                self._continue_with(record)
            self._read += self._new
            self._new = []
        return self._rounds

    def _continue_with(self, record: TrialRecord | InstanceRecord) -> None:
        # Trials of later blocks hardly change what is known of trials, and cost a plan each.
        if record.block == 0 or isinstance(record, InstanceRecord):
            self._estimator.add(record)
            self._rounds = min(self._rounds, max(self._complete, self._rounds_for(self._estimator)))
        if isinstance(record, TrialRecord) and record.kind == "measured":
            self._turns.add(record)
            if self._complete < self._rounds and self._turns.all_have(self._complete + 1):
                self._complete += 1
                room = self._room_at(ended_s(record), self._complete)
                fits = self._turns.round_s <= room.left_s
                if not fits:
                    self._rounds = self._complete
                elif room.is_last and self._complete == self._rounds < self._most:
                    self._rounds += 1


class _Turns:
    """The measured trials of a block, as they came."""

    def __init__(self, points: Collection[Point], gone: Collection[Point]) -> None:
        self._points, self._gone = points, gone
        self._last: dict[Point, TrialRecord] = {}
        self._failed: set[Point] = set()  # by their last trial
        self._counted: Counter[Point] = Counter()
        self._having: Counter[int] = Counter()  # points with at least so many that count
        self._began_s: float | None = None
        self._ended_s = 0.0

    def add(self, trial: TrialRecord) -> None:
        point = trial.point
        if point not in self._points:
            return
        self._last[point] = trial
        self._ended_s = ended_s(trial)
        if self._began_s is None:
            self._began_s = self._ended_s - (trial.duration_s or 0.0)
        if trial.outcome is not Outcome.OK:
            self._failed.add(point)
            return
        self._failed.discard(point)
        self._counted[point] += 1
        self._having[self._counted[point]] += 1

    @property
    def round_s(self) -> float:
        """With all that lies between trials, and with those that had to be repeated."""
        return (self._ended_s - (self._began_s or 0.0)) / max(self._counted.values())

    def all_have(self, rounds: int) -> bool:
        """Whether each point that did not fail has so many, and could have one more without a start: all of them had a
        trial in the same round, or belong to one config. Those of another shift, or visit, are gone."""
        if self._having[rounds] + len(self._failed) + len(self._gone) < len(self._points):
            return False  # as after most trials
        present = [point for point in self._points if point in self._last or point not in self._gone]
        going = [point for point in present if point not in self._failed]
        if not going or any(self._counted[point] < rounds for point in going):
            return False
        latest = {self._last[point].round for point in going}
        return len(latest) == 1 and (None not in latest or len({point.config for point in going}) == 1)
