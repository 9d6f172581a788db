"""Runs the kernel bench: a job for the worker in an environment with torch, records back."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitbench.features.kernels.case import KernelShape
from bitbench.features.kernels.registry import CaseSource, native_module, package_folders
from bitbench.features.kernels.types import KernelMachine, KernelRun, KernelTiming
from bitbench.records.roof import ROOF_FORMAT, MachineRoof
from bitbench.study.base import Json
from bitbench.study.kernel_device import KernelDevice
from bitbench.util.errors import KernelError
from bitbench.util.isolated.job_process import WorkerFailed, run_short_job

_WORKER = Path(__file__).with_name("workers") / "kernel_worker.py"
# More than the last-level cache of a large server (384 MB), so that weights come from memory as they do in a model;
# on a device whose cache is larger than a quarter of it, the worker takes more.
COLD_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Effort:
    """How often to pass over all shapes and batches, and how long to look at each of them at a time: rounds until the
    time is over, but not fewer or more than said."""

    passes: int
    point_s: float
    least_rounds: int
    most_rounds: int


# A shared machine is slower for seconds on end, and not for every kernel alike: a point is looked at more than once.
FULL = Effort(passes=3, point_s=2.5, least_rounds=11, most_rounds=100)
BRIEF = Effort(passes=1, point_s=1.0, least_rounds=7, most_rounds=60)


@dataclass(frozen=True)
class KernelJob:
    shapes: tuple[KernelShape, ...]
    batches: tuple[int, ...]
    cases: tuple[CaseSource, ...]
    all_cases: bool  # also those that are left out unless named
    effort: Effort = FULL
    warm: bool = False
    seed: int = 0
    threads: int | None = None  # None: what torch chooses
    device: KernelDevice = KernelDevice.CPU
    isas: tuple[str, ...] = ()  # one case for each where a case has several; empty: the best one


def run_kernels(job: KernelJob, python: Path, cpu_model: str, on_point: Callable[[str, int, int], None]) -> KernelRun:
    """Raises KernelError where the worker fails. `on_point` hears what was measured: its name, number, of how many."""
    machine: KernelMachine | None = None
    timings: dict[tuple[str, int, int, int], KernelTiming] = {}
    count, total = 0, job.effort.passes * len(job.shapes) * len(job.batches)
    waiting: dict[str, Json] = {}
    for event in _events(job, python):
        if event["event"] == "unusable":
            job.cases[event["case"]].warn_that_unusable(event["cause"])
        elif event["event"] == "machine":
            machine = KernelMachine.model_validate(event | {"cpu_model": cpu_model, "warm": job.warm, "seed": job.seed})
        elif event["event"] == "case":
            waiting[event["name"]] = event
        elif event["event"] == "point":
            for name, case in waiting.items():
                key = (name, *event["shape"], event["batch"])
                timings[key] = _with_pass(timings.get(key), _timing(case), event["seconds"].get(name, ()))
            waiting, count = {}, count + 1
            on_point(f"{event['shape'][0]}x{event['shape'][1]}, batch {event['batch']}", count, total)
    if machine is None:
        raise KernelError("The kernel worker measured nothing; give at least one shape and one batch.")
    return KernelRun(machine=machine, timings=_in_order(timings.values(), job))


def measure_roof(python: Path, cpu_model: str | None, measured_at: str) -> MachineRoof:
    """The readings of the bench without any case. Raises KernelError."""
    job = KernelJob(shapes=(), batches=(), cases=(), all_cases=False)
    machine = next((event for event in _events(job, python) if event["event"] == "machine"), None)
    if machine is None:
        raise KernelError("The kernel worker returned no roofline of this machine.")
    readings = {name: {"values": values} for name, values in machine["readings"].items() if values}
    return MachineRoof.model_validate(
        {**machine, **readings, "cpu_model": cpu_model, "measured_at": measured_at, "format": ROOF_FORMAT}
    )


def _timing(case: Json) -> KernelTiming:
    return KernelTiming(
        case=case["name"],
        in_features=case["shape"][0],
        out_features=case["shape"][1],
        batch=case["batch"],
        labels=case["labels"],
        isa=case["isa"],
        weight_bytes=case["weight_bytes"],
        error=case["error"],
        cause=case["cause"],
    )


def _with_pass(known: KernelTiming | None, found: KernelTiming, seconds: Sequence[float]) -> KernelTiming:
    """Who gave a wrong result in one pass has no times at all: ratios pair each round with one of another case."""
    timing = known or found
    for either in (timing, found):
        if either.cause is not None:
            return either
    return timing.model_copy(
        update={"seconds": (*timing.seconds, *seconds), "pass_rounds": (*timing.pass_rounds, len(seconds))}
    )


def _in_order(timings: Iterable[KernelTiming], job: KernelJob) -> tuple[KernelTiming, ...]:
    """As the job names shapes and batches; the worker takes them at random."""
    shapes = [(shape.in_features, shape.out_features) for shape in job.shapes]

    def place(timing: KernelTiming) -> tuple[int, int]:
        return shapes.index((timing.in_features, timing.out_features)), job.batches.index(timing.batch)

    return tuple(sorted(timings, key=place))


def _events(job: KernelJob, python: Path) -> Iterator[Json]:
    try:
        yield from run_short_job(_WORKER, python, _as_json(job))
    except WorkerFailed as failure:
        raise KernelError(f"The kernel worker failed: {failure}") from None


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
        "isas": list(job.isas),
        "warm": job.warm,
        "cold_bytes": COLD_BYTES,
        "passes": job.effort.passes,
        "point_seconds": job.effort.point_s,
        "least_rounds": job.effort.least_rounds,
        "most_rounds": job.effort.most_rounds,
        "seed": job.seed,
    }
