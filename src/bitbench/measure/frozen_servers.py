"""Instances in memory together: one has its turn, the others are frozen, and a probe tells the machine's speed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bitbench.measure.machine.busy import cores_of
from bitbench.measure.machine.speed import SpeedProbe
from bitbench.measure.trial import ReadyInstance
from bitbench.ports import Observer
from bitbench.study.plan import Config

# Of a core: an idle transformers server takes none, an idle vLLM one percent; more would be seen in the figures.
MOST_IDLE_CORES = 0.02


@dataclass
class TurnConditions:
    """What was around a trial; the reading after it is known when its turn is over."""

    residents: int  # others in memory
    probe_before_s: float | None = None
    probe_after_s: float | None = None
    idle_cores: float | None = None  # that those which cannot be frozen kept busy


class Residents:
    """`can_freeze`: by config. An instance that is alone is left as it is: no freezing, no probe."""

    def __init__(self, can_freeze: Mapping[Config, bool], observer: Observer) -> None:
        self._can_freeze = can_freeze
        self._observer = observer
        self._present: dict[str, ReadyInstance] = {}
        self._probe = SpeedProbe() if len(can_freeze) > 1 else None
        self._reading_s: float | None = None
        self._has_warned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for ready in self._present.values():
            ready.instance.thaw()  # so that they can end by themselves

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._present

    def join(self, ready: ReadyInstance) -> None:
        self._present[ready.id] = ready

    def leave(self, ready: ReadyInstance) -> None:
        """Its shift is over, or it cannot be trusted any more: it is ended, and the others go on."""
        if self._present.pop(ready.id, None) is not None:
            ready.instance.stop()

    @contextmanager
    def turn(
        self, ready: ReadyInstance, touch: Callable[[ReadyInstance], None] | None = None
    ) -> Iterator[TurnConditions]:
        """`touch` wakes it up before it is measured: caches, clocks, the first request after a thaw."""
        turn = TurnConditions(residents=len(self._present) - 1)
        if self._probe is None:
            yield turn
            return
        turn.probe_before_s = self._read() if touch and self._reading_s is None else self._reading_s
        turn.idle_cores = self._idle_cores(ready) if touch else None
        ready.instance.thaw()
        if touch is not None:
            touch(ready)
        try:
            yield turn
        finally:
            if self._can_freeze[ready.config]:
                ready.instance.freeze()
            self._reading_s = self._read() if touch else None
            turn.probe_after_s = self._reading_s

    def _read(self) -> float | None:
        return self._probe.read() if self._probe else None

    def _idle_cores(self, ready: ReadyInstance) -> float | None:
        """None where all others are frozen."""
        others = [other for other in self._present.values() if other is not ready]
        running = [other for other in others if not self._can_freeze[other.config]]
        if not running:
            return None
        cores = cores_of([other.instance.pid for other in running if other.instance.pid is not None])
        if cores > MOST_IDLE_CORES and not self._has_warned:
            self._has_warned = True
            self._observer.warn(f"idle engines keep {cores:.2f} of a core busy; `schedule: visits` avoids that")
        return cores
