"""Runs the kernel bench: a job for the worker in an environment with torch, records back."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitbench.core.base import Json
from bitbench.core.kernel import KernelDevice, KernelMachine, KernelRun, KernelTiming
from bitbench.core.roof import ROOF_FORMAT, MachineRoof
from bitbench.errors import KernelError
from bitbench.isolated.job_process import WorkerFailed, run_job
from bitbench.kernels.case import Shape
from bitbench.kernels.registry import CaseSource, native_module, package_folders

_WORKER = Path(__file__).with_name("workers") / "kernel_worker.py"
# More than the last-level cache of a large server (384 MB), so that weights come from memory as they do in a model;
# on a device whose cache is larger than a quarter of it, the worker takes more.
COLD_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Effort:
    """How long to look at one shape and batch: rounds until the time is over, but not fewer or more than said."""

    point_s: float
    least_rounds: int
    most_rounds: int


FULL = Effort(point_s=4.0, least_rounds=15, most_rounds=200)
BRIEF = Effort(point_s=1.0, least_rounds=7, most_rounds=60)


@dataclass(frozen=True)
class KernelJob:
    shapes: tuple[Shape, ...]
    batches: tuple[int, ...]
    cases: tuple[CaseSource, ...]
    all_cases: bool  # also those that are left out unless named
    effort: Effort = FULL
    warm: bool = False
    seed: int = 0
    threads: int | None = None  # None: what torch chooses
    device: KernelDevice = KernelDevice.CPU


def run_kernels(job: KernelJob, python: Path, cpu_model: str, on_point: Callable[[str, int, int], None]) -> KernelRun:
    """Raises KernelError where the worker fails. `on_point` hears what was measured: its name, number, of how many."""
    machine: KernelMachine | None = None
    timings: list[KernelTiming] = []
    count, total = 0, len(job.shapes) * len(job.batches)
    waiting: dict[str, Json] = {}
    for event in _events(job, python):
        if event["event"] == "machine":
            machine = KernelMachine.model_validate(event | {"cpu_model": cpu_model, "warm": job.warm, "seed": job.seed})
        elif event["event"] == "case":
            waiting[event["name"]] = event
        elif event["event"] == "point":
            timings += [_timing(case, event["seconds"].get(name, ())) for name, case in waiting.items()]
            waiting, count = {}, count + 1
            on_point(f"{event['shape'][0]}x{event['shape'][1]}, batch {event['batch']}", count, total)
    if machine is None:
        raise KernelError("The kernel worker measured nothing; give at least one shape and one batch.")
    return KernelRun(machine=machine, timings=tuple(timings))


def measure_roof(python: Path, cpu_model: str | None, measured_at: str) -> MachineRoof:
    """What this machine can do at most, without any case; takes some ten seconds. Raises KernelError."""
    job = KernelJob(shapes=(), batches=(), cases=(), all_cases=False)
    machine = next((event for event in _events(job, python) if event["event"] == "machine"), None)
    if machine is None:
        raise KernelError("The kernel worker did not say what this machine can do.")
    readings = {name: {"values": values} for name, values in machine["readings"].items() if values}
    return MachineRoof.model_validate(
        {**machine, **readings, "cpu_model": cpu_model, "measured_at": measured_at, "format": ROOF_FORMAT}
    )


def _timing(case: Json, seconds: Sequence[float]) -> KernelTiming:
    return KernelTiming(
        case=case["name"],
        in_features=case["shape"][0],
        out_features=case["shape"][1],
        batch=case["batch"],
        labels=case["labels"],
        weight_bytes=case["weight_bytes"],
        error=case["error"],
        cause=case["cause"],
        seconds=tuple(seconds),
    )


def _events(job: KernelJob, python: Path) -> Iterator[Json]:
    with tempfile.TemporaryDirectory(prefix="bitbench-kernels-") as folder:
        log_file = Path(folder) / "worker.log"
        try:
            yield from run_job(_WORKER, python, _as_json(job), folder=Path(folder), log_file=log_file)
        except WorkerFailed as failure:
            told = failure.cause or _last_line(log_file, failure.exit_code)
            raise KernelError(f"The kernel worker failed: {told}") from None


def _as_json(job: KernelJob) -> Json:
    return {
        "packages": package_folders(job.cases),
        "native": native_module(),
        "cases": [[source.module, source.attribute] for source in job.cases],
        "all_cases": job.all_cases,
        "shapes": [[shape.in_features, shape.out_features] for shape in job.shapes],
        "batches": list(job.batches),
        "threads": job.threads,
        "device": job.device,
        "warm": job.warm,
        "cold_bytes": COLD_BYTES,
        "point_seconds": job.effort.point_s,
        "least_rounds": job.effort.least_rounds,
        "most_rounds": job.effort.most_rounds,
        "seed": job.seed,
    }


def _last_line(log_file: Path, exit_code: int) -> str:
    lines = log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    cause = f"it was killed by signal {-exit_code}" if exit_code < 0 else f"it ended with {exit_code}"
    return f"{cause}; its last words: {lines[-1]}" if lines else cause
