"""How far a run is, and what it has decided."""

from dataclasses import dataclass

from bitbench.util.units import show_duration


@dataclass(frozen=True)
class RunProgress:
    """`trials_planned` is the least that is asked for; None where a budget decides. `remaining_s`: None, unknown."""

    trials_done: int = 0
    trials_planned: int | None = None
    remaining_s: float | None = None
    activity: str = "preparing"
    ended: str | None = None  # one sentence; None while it runs

    @property
    def headline(self) -> str:
        """`12 of 36 trials, about 2 min left`"""
        if self.ended is not None:
            return self.ended
        planned = f" of {self.trials_planned:,}" if self.trials_planned else ""
        left = "" if self.remaining_s is None else f", about {show_duration(self.remaining_s)} left"
        return f"{self.trials_done:,}{planned} trials{left}"


@dataclass(frozen=True)
class Questions:
    """Those of one workload."""

    workload: str
    decided: str
    still_open: str
