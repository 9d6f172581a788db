"""`bitbench load --on ray://…`: a load client whose machines each send their part of one plan of
requests, on their own clocks."""

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from bitbench.features.fleet.cluster import (
    ClusterAddress,
    connect_cluster,
    get_first_line,
    make_actor,
    parse_cluster_address,
    require_places,
)
from bitbench.loadgen.client import WorkerPart
from bitbench.loadgen.progress import sum_progress_snapshots
from bitbench.loadgen.workers import merge_worker_results
from bitbench.ports import LoadJob, LoadResult
from bitbench.records.trial import LoadMachine, LoadProgress
from bitbench.util.errors import FleetError, LoadError, UsageError

EXCHANGES = 50  # per comparison of clocks, with more the bound hardly gets narrower
LEAD_S = 0.25  # least time between "all are ready" and time zero, more with slow messages
START_S = 90.0  # time for a machine's first answer
SILENT_S = 20.0  # a machine that is silent for so long is lost
_POLL_S = 0.25


@dataclass
class ClockComparison:
    """The offset of another machine's clock from this one, with bounds for any message times.

    The clock was read after the question was sent, and before its answer arrived.
    """

    least_ns: float = -math.inf
    most_ns: float = math.inf

    def add(self, asked_ns: int, read_ns: int, arrived_ns: int) -> None:
        self.least_ns = max(self.least_ns, read_ns - arrived_ns)
        self.most_ns = min(self.most_ns, read_ns - asked_ns)

    @property
    def offset_ns(self) -> int:
        return round((self.least_ns + self.most_ns) / 2)

    @property
    def bound_s(self) -> float:
        return abs(self.most_ns - self.least_ns) / 2e9


def ray_load_client(cluster: str, nodes: int | None, *, has_key: bool) -> "RayLoadClient":
    """Return a client that sends from so many machines, or from all if `nodes` is None. Raise
    UsageError."""
    if has_key and os.environ.get("RAY_USE_TLS") != "1":
        raise UsageError(
            "the endpoint's key would go to the Ray cluster in clear; "
            "set RAY_USE_TLS=1 on all of it"
        )
    return RayLoadClient(parse_cluster_address(cluster), nodes)


class RayLoadClient:
    """A `bitbench.ports.LoadClient` whose machines stay connected from job to job."""

    def __init__(self, address: ClusterAddress, count: int | None) -> None:
        self._address = address
        self._count = count
        self._stack = ExitStack()
        self._ray: Any = None
        self._hosts: dict[str, Any] = {}  # actors, by the machine's name

    def __enter__(self) -> Self:
        """Connect the machines. Raise FleetError or LoadError if one does not answer, since its
        part of the requests would be missing."""
        self._ray = self._stack.enter_context(connect_cluster(self._address))
        try:
            self._start_hosts()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for actor in self._hosts.values():
            self._ray.kill(actor, no_restart=True)
        self._stack.close()

    def run(
        self, job: LoadJob, on_progress: Callable[[LoadProgress], None] | None = None
    ) -> LoadResult:
        """Block until the trial has ended, and return its result. Raise LoadError, also if a
        machine is lost."""
        from bitbench.features.fleet.load_host import plan_facts

        facts = plan_facts(job)
        count = len(self._hosts)
        runs: dict[str, Any] = {}
        for index, (name, actor) in enumerate(self._hosts.items()):
            runs[name] = actor.run.remote(job, WorkerPart(index, count), facts)
        while not all(self._state(name, run)[0] for name, run in runs.items()):
            time.sleep(_POLL_S / 5)
        clocks = {name: self._compare_clock(name) for name in runs}
        lead_s = LEAD_S + 4 * max(clock.bound_s for clock in clocks.values())
        zero_ns = time.monotonic_ns() + round(lead_s * 1e9)
        started_at = datetime.now(UTC) + timedelta(seconds=lead_s)
        for name, clock in clocks.items():
            self._ask(name, "go", zero_ns + clock.offset_ns)
        self._watch(runs, on_progress)
        results = {name: self._get(name, run) for name, run in runs.items()}
        _refuse_unconnected(results)
        machines = [
            LoadMachine(name=name, requests=result.sums.requests, off_by_s=clocks[name].bound_s)
            for name, result in results.items()
        ]
        merged = merge_worker_results(list(results.values()))
        health = merged.health.model_copy(update={"nodes": tuple(machines)})
        return replace(merged, health=health, started_at=started_at.isoformat())

    def _start_hosts(self) -> None:
        from bitbench.features.fleet.load_host import LoadHost

        places = require_places(self._ray, self._address)
        if self._count is not None and len(places) < self._count:
            raise FleetError(
                f"--nodes asks for {self._count} machines, but the cluster has {len(places)}"
            )
        for place in places[: self._count]:
            self._hosts[place.name] = make_actor(self._ray, LoadHost, place)
        for name in self._hosts:
            self._ask(name, "clock_ns", timeout_s=START_S)

    def _watch(
        self, runs: dict[str, Any], on_progress: Callable[[LoadProgress], None] | None
    ) -> None:
        """Wait until all have ended, and report progress. Rows stay on their machines until then,
        since the transfer would disturb machines that still send."""
        progress: LoadProgress | None = None
        while self._ray.wait(
            list(runs.values()), num_returns=len(runs), timeout=_POLL_S, fetch_local=False
        )[1]:
            states = [self._state(name, run)[1] for name, run in runs.items()]
            if on_progress is not None and all(states):
                snapshots = [snapshot for state in states for snapshot in state]
                progress = sum_progress_snapshots(snapshots, progress)
                on_progress(progress)

    def _state(self, name: str, run: Any) -> tuple[bool, Sequence[Any]]:
        """Return whether the machine is prepared, and its progress. Raise LoadError if its part has
        failed."""
        if self._ray.wait([run], timeout=0, fetch_local=False)[0]:
            self._get(name, run)
        state: tuple[bool, Sequence[Any]] = self._ask(name, "state")
        return state

    def _ask(
        self, name: str, question: str, *arguments: object, timeout_s: float = SILENT_S
    ) -> Any:
        return self._get(name, getattr(self._hosts[name], question).remote(*arguments), timeout_s)

    def _get(self, name: str, future: Any, timeout_s: float | None = None) -> Any:
        """Return the value of a future. Raise LoadError if the machine failed or was lost."""
        try:
            return self._ray.get(future, timeout=timeout_s)
        except self._ray.exceptions.RayTaskError as error:
            raise LoadError(
                f"{name} cannot send its part of the requests: {get_first_line(error.cause)}"
            ) from None
        except self._ray.exceptions.RayError as error:
            raise LoadError(
                f"the machine {name} was lost ({get_first_line(error)}); "
                "the same command with --into resumes"
            ) from None

    def _compare_clock(self, name: str) -> ClockComparison:
        comparison = ClockComparison()
        for _ in range(EXCHANGES):
            asked_ns = time.monotonic_ns()
            read_ns = self._ask(name, "clock_ns")
            comparison.add(asked_ns, read_ns, time.monotonic_ns())
        return comparison


def _refuse_unconnected(results: dict[str, LoadResult]) -> None:
    """Raise LoadError for a machine that cannot connect to an endpoint that answers others, since
    that is not the endpoint's fault."""
    statuses = {name: set(result.sums.statuses) for name, result in results.items()}
    if any("ok" in seen for seen in statuses.values()):
        for name, seen in statuses.items():
            if seen == {"refused"}:
                raise LoadError(f"{name} has no way to the endpoint, other machines have")
