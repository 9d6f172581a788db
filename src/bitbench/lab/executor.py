"""Where the blocks of a study run that several machines share: the port, and the work of one block.

The driver asks a run for one result after the other. It asks for the next only when the last is on disk, and may ask
for the same one again: nothing is lost with the driver, and nothing is written twice.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bitbench.core.cell import Plan
from bitbench.core.order import Order
from bitbench.core.ports import Observer
from bitbench.core.recorded.host import HostFacts
from bitbench.core.recorded.trial import InstanceRecord
from bitbench.ground.errors import StoreError
from bitbench.lab.bench import Bench
from bitbench.lab.group import Draft, GroupRunner
from bitbench.planning.schedule import Progress


@dataclass(frozen=True)
class Machine:
    """One that can take a block."""

    name: str
    facts: HostFacts


class Ended:
    """Nothing is left of the block."""


ENDED = Ended()


class RunLost(Exception):
    """The machine went away, or could not go on; says how. Not the engine's doing."""


class RunRefused(Exception):
    """The machine does not begin; says why. `is_passing`: it may later."""

    def __init__(self, why: str, *, is_passing: bool) -> None:
        super().__init__(why)
        self.is_passing = is_passing


class BlockRun(Protocol):
    """One order on one machine."""

    def next(self, seq: int) -> Draft | Ended | None:
        """The result of this number, from 0 on, once those before it are on disk; None where it has not come yet.
        Raises RunLost and RunRefused."""

    def ping(self) -> str:
        """What it is doing, as far as it was heard."""

    def stop(self) -> None:
        """End it, and its engines. Safe to call twice."""


class Executor(Protocol):
    def machines(self) -> Sequence[Machine]:
        """Those that could take a block now. Raises FleetError where none will ever again."""

    def start(self, order: Order, machine: Machine) -> BlockRun: ...

    def knows(self, host: str) -> bool:
        """Whether a block that was begun on this host can be resumed there, now or later."""

    def lost(self, machine: Machine, cause: str) -> None:
        """Keep it out for a while, or for good."""

    def refused(self, machine: Machine, why: str, *, is_passing: bool) -> None:
        """Likewise, by what it said."""

    def wait(self) -> None:
        """Until something arrives, or a moment has passed."""


@dataclass(frozen=True)
class BlockWork:
    """Runs what is left of one block, group by group. Whoever drives it adds each draft to `progress`."""

    plan: Plan
    bench: Bench
    progress: Progress
    observer: Observer
    new_instance: Callable[[], tuple[str, Path]]
    logs: Path

    def drafts(self, block: int) -> Generator[Draft, None, None]:
        with self.bench.starts.block() if self.bench.starts else nullcontext():
            yield from self._drafts(block)

    def _drafts(self, block: int) -> Generator[Draft, None, None]:
        while (group := self.progress.next_group()) is not None and group.block == block:
            self.observer.group_started(group, None)
            results = 0
            for draft in GroupRunner(
                group, self.plan, self.bench, self.progress, self.observer, self.new_instance
            ).run():
                yield draft
                results += not isinstance(draft, InstanceRecord)
            if results == 0 and self.progress.next_group() == group:
                raise StoreError(f"{group.name} left no trial; see the logs in {self.logs}")
