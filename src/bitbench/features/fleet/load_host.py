"""The actor that sends one machine's part of a load."""

import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Event

import numpy as np
import ray

from bitbench.loadgen.client import WorkerPart
from bitbench.loadgen.inputs import hash_input_files
from bitbench.loadgen.progress import Snapshot
from bitbench.loadgen.workers import LoadWorkers
from bitbench.ports import LoadJob, LoadResult
from bitbench.util.errors import LoadError
from bitbench.util.version import __version__


def plan_facts(job: LoadJob) -> dict[str, str]:
    """Return the facts that decide the plan of requests, which must be equal on all machines. Raise
    OSError if an input file cannot be read."""
    return {
        "bitbench": __version__,
        "numpy": np.__version__,
        **hash_input_files([job.workload], job.folder),
    }


class LoadHost:
    """An actor that ends with its driver. Ray calls `run` in one thread, and the rest in
    another."""

    def __init__(self) -> None:
        self._load = LoadWorkers()
        self._load.__enter__()
        self._ready = Event()
        self._go = Event()
        self._zero_s = 0.0
        self._snapshots: Sequence[Snapshot] = ()

    @ray.method(concurrency_group="signs")  # type: ignore[untyped-decorator, unused-ignore]
    def clock_ns(self) -> int:
        """Return this machine's monotonic clock."""
        return time.monotonic_ns()

    @ray.method(concurrency_group="signs")  # type: ignore[untyped-decorator, unused-ignore]
    def state(self) -> tuple[bool, Sequence[Snapshot]]:
        """Return whether everything is prepared, and the workers' progress."""
        return self._ready.is_set(), self._snapshots

    @ray.method(concurrency_group="signs")  # type: ignore[untyped-decorator, unused-ignore]
    def go(self, zero_ns: int) -> None:
        """Start sending at this time of the machine's clock."""
        self._zero_s = zero_ns / 1e9
        self._go.set()

    def run(self, job: LoadJob, part: WorkerPart, same: dict[str, str]) -> LoadResult:
        """Send this machine's part and return its result. Raise LoadError if its facts differ from
        `same`, since it would send other requests."""
        here = plan_facts(job)
        differing = sorted(name for name in same if here.get(name) != same[name])
        if differing:
            raise LoadError(f"it is not set up like the driver: {', '.join(differing)}")
        try:
            result = self._load.run(
                replace(job, rows_folder=None),
                part=part,
                choose_zero=self._choose_zero,
                on_snapshots=self._note,
            )
            return replace(result, rows=result.rows.load_parts())
        finally:  # here, since `state` is called before the next job begins
            self._ready.clear()
            self._go.clear()
            self._snapshots = ()

    def _choose_zero(self) -> float:
        self._ready.set()
        self._go.wait()
        return self._zero_s

    def _note(self, snapshots: Sequence[Snapshot]) -> None:
        self._snapshots = snapshots
