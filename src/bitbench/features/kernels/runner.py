"""Find kernel cases and shapes by name, and run a job in the worker.

Cases are not imported here, because they import torch, which is in another environment. The worker
there gets the module of a case and the name in it.
"""

import importlib.util
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitbench.feature import Offer, collect_offers
from bitbench.features.kernels.case import KernelShape
from bitbench.features.kernels.computing import KernelMachine, KernelRun, KernelTiming
from bitbench.records.roof import ROOF_FORMAT, MachineRoof
from bitbench.study.base import Json
from bitbench.study.hardware import KernelDevice
from bitbench.util.errors import KernelError
from bitbench.util.isolated.job_process import WorkerFailed, run_short_job
from bitbench.util.model_files import read_safetensors_headers

CaseTarget = tuple[str, str]  # module and name in it


def list_case_targets(names: Sequence[str] | None = None) -> tuple[CaseTarget, ...]:
    """Return the module and name of all cases, or of the named ones.

    Raise KernelError for a name that no feature offers.
    """
    offers = collect_offers("kernel_cases")
    for name in names or ():
        if name not in offers:
            raise KernelError(
                f"Unknown kernel case {name}; known cases: {', '.join(sorted(offers))}."
            )
    chosen = sorted(offers) if names is None else dict.fromkeys(names)
    return tuple(_find_case_target(offers[name]) for name in chosen)


def _find_case_target(offer: Offer) -> CaseTarget:
    module, _, attribute = offer.target.partition(":")
    return importlib.util.resolve_name(module, offer.feature.package), attribute


def find_native_module() -> str | None:
    """Return the file of the native module, or None if it was not built."""
    spec = importlib.util.find_spec("bitbench._native")
    return None if spec is None else spec.origin


SEED_INPUTS = (1024, 2048, 4096, 8192, 16384)
SEED_OUTPUTS = (1024, 4096, 8192, 14336, 28672, 53248)
# Two shapes of the kernel table, for a short run or for CI.
QUICK = (KernelShape(1024, 1024), KernelShape(4096, 4096))

_PAIR = re.compile(r"(\d+)x(\d+)")


def parse_kernel_shapes(
    text: str, model_folder: Callable[[str], Path], *, quick: bool
) -> tuple[KernelShape, ...]:
    """Parse `kernel-table`, `model:ID` or `KxN,KxN` (inputs x outputs).

    Raise KernelError for anything else.
    """
    if text == "kernel-table":
        if quick:
            return QUICK
        return tuple(KernelShape(k, n) for n, k in itertools.product(SEED_OUTPUTS, SEED_INPUTS))
    kind, _, name = text.partition(":")
    if kind == "model" and name:
        return _list_linear_shapes(model_folder(name))
    shapes = [_parse_shape(part.strip()) for part in text.split(",")]
    valid = [shape for shape in shapes if shape is not None]
    if len(valid) != len(shapes):
        raise KernelError(
            f"{text!r} is not a set of shapes; use kernel-table, model:ID, or INPUTSxOUTPUTS such "
            "as 4096x4096"
        )
    return tuple(dict.fromkeys(valid))


def _parse_shape(text: str) -> KernelShape | None:
    """Return the shape, or None if the text is not two numbers above 0."""
    pair = _PAIR.fullmatch(text)
    if pair is None:
        return None
    shape = KernelShape(int(pair[1]), int(pair[2]))
    return shape if shape.in_features and shape.out_features else None


def _list_linear_shapes(folder: Path) -> tuple[KernelShape, ...]:
    """Return the shapes of a checkpoint's linear layers, each once.

    Embeddings are left out, since they are looked up and not multiplied. Raise KernelError if
    it lacks linear layers.
    """
    shapes = set()
    for name, tensor in read_safetensors_headers(folder).items():
        if name.endswith(".weight") and len(tensor.shape) == 2 and "embed" not in name:
            shapes.add(KernelShape(tensor.shape[1], tensor.shape[0]))
    if not shapes:
        raise KernelError(
            f"{folder} contains no linear layers in safetensors; give the folder of an unquantized "
            "model."
        )
    return tuple(sorted(shapes, key=lambda shape: (shape.out_features, shape.in_features)))


BASELINES = ("torch-linear", "torch-mv")
_WORKER = Path(__file__).with_name("workers") / "kernel_worker.py"
# More than the last-level cache of a large server (384 MB), so that weights come from memory as in
# a model. The worker takes more on a device whose cache is larger than a quarter of it.
COLD_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Effort:
    """The number of passes over all points, and the rounds per pass and point.

    A point is a shape and a batch. Its rounds go on until the time is over, within the limits.
    """

    passes: int
    point_s: float
    least_rounds: int
    most_rounds: int


# A shared machine is slower for seconds at a time, and more so for some kernels than for others.
# So each point is timed in more than one pass.
FULL = Effort(passes=3, point_s=2.5, least_rounds=11, most_rounds=100)
BRIEF = Effort(passes=1, point_s=1.0, least_rounds=7, most_rounds=60)


@dataclass(frozen=True)
class KernelOptions:
    """The options of a run. Without `cases`, it times all cases that this machine can run.

    `shapes` is `kernel-table`, `model:NAME` or `KxN,…`.
    """

    shapes: str = "kernel-table"
    batches: tuple[int, ...] = (1,)
    against: tuple[str, ...] = BASELINES
    cases: tuple[str, ...] | None = None
    device: KernelDevice = KernelDevice.CPU
    quick: bool = False
    seed: int = 0


@dataclass(frozen=True)
class KernelJob:
    """Options with their names resolved to shapes and cases."""

    options: KernelOptions
    shapes: tuple[KernelShape, ...]
    cases: tuple[CaseTarget, ...]
    effort: Effort = FULL


def run_kernels(
    job: KernelJob, python: Path, cpu_model: str, on_point: Callable[[str, int, int], None]
) -> KernelRun:
    """Run the job in the worker and return its records.

    `on_point` gets the name and the number of each measured point, and the number of all points.
    Raise KernelError if the worker fails.
    """
    machine: KernelMachine | None = None
    timings: dict[tuple[str, int, int, int], KernelTiming] = {}
    count = 0
    total = job.effort.passes * len(job.shapes) * len(job.options.batches)
    cases: dict[str, Json] = {}  # of the point that comes next
    for event in _iter_events(job, python):
        if event["event"] == "machine":
            machine = KernelMachine.model_validate(
                event | {"cpu_model": cpu_model, "seed": job.options.seed}
            )
        elif event["event"] == "case":
            cases[event["name"]] = event
        elif event["event"] == "point":
            for name, case in cases.items():
                key = (name, *event["shape"], event["batch"])
                seconds = event["seconds"].get(name, ())
                timings[key] = _add_pass(timings.get(key), _parse_timing(case), seconds)
            cases = {}
            count += 1
            inputs, outputs = event["shape"]
            on_point(f"{inputs}x{outputs}, batch {event['batch']}", count, total)
    if machine is None:
        raise KernelError(
            "The kernel worker measured nothing; give at least one shape and one batch."
        )
    return KernelRun(
        machine=machine, timings=_sort_timings(timings.values(), job), against=job.options.against
    )


def measure_roof(python: Path, cpu_model: str | None, measured_at: str) -> MachineRoof:
    """Return the roofline of this machine, by a run without cases. Raise KernelError."""
    no_cases = KernelJob(KernelOptions(), shapes=(), cases=())
    machines = (event for event in _iter_events(no_cases, python) if event["event"] == "machine")
    machine = next(machines, None)
    if machine is None:
        raise KernelError("The kernel worker returned no roofline of this machine.")
    readings = {name: {"values": values} for name, values in machine["readings"].items() if values}
    return MachineRoof.model_validate(
        {
            **machine,
            **readings,
            "cpu_model": cpu_model,
            "measured_at": measured_at,
            "format": ROOF_FORMAT,
        }
    )


def _parse_timing(case: Json) -> KernelTiming:
    return KernelTiming(
        case=case["name"],
        in_features=case["shape"][0],
        out_features=case["shape"][1],
        batch=case["batch"],
        labels=case["labels"],
        weight_bytes=case["weight_bytes"],
        error=case["error"],
        cause=case["cause"],
    )


def _add_pass(
    earlier: KernelTiming | None, latest: KernelTiming, seconds: Sequence[float]
) -> KernelTiming:
    """Return the timing with the rounds of one more pass.

    A case that fails in one pass has no times at all, because ratios pair each round with a round
    of another case.
    """
    timing = earlier or latest
    if timing.cause is not None:
        return timing
    if latest.cause is not None:
        return latest
    return timing.model_copy(
        update={
            "seconds": (*timing.seconds, *seconds),
            "pass_rounds": (*timing.pass_rounds, len(seconds)),
        }
    )


def _sort_timings(timings: Iterable[KernelTiming], job: KernelJob) -> tuple[KernelTiming, ...]:
    """Return the timings in the order of the job's shapes and batches. The worker shuffles them."""
    shapes = [(shape.in_features, shape.out_features) for shape in job.shapes]

    def position(timing: KernelTiming) -> tuple[int, int]:
        shape = shapes.index((timing.in_features, timing.out_features))
        return shape, job.options.batches.index(timing.batch)

    return tuple(sorted(timings, key=position))


def _iter_events(job: KernelJob, python: Path) -> Iterator[Json]:
    """Yield the worker's events. Raise KernelError if it fails."""
    try:
        yield from run_short_job(_WORKER, python, _make_job_json(job))
    except WorkerFailed as failure:
        raise KernelError(f"The kernel worker failed: {failure}") from None


def _make_job_json(job: KernelJob) -> Json:
    options = job.options
    return {
        "native": find_native_module(),
        "cases": list(job.cases),
        "against": list(options.against),
        "all_cases": options.cases is not None,  # also cases that only run if they are named
        "shapes": [[shape.in_features, shape.out_features] for shape in job.shapes],
        "batches": list(options.batches),
        "device": options.device,
        "cold_bytes": COLD_BYTES,
        "passes": job.effort.passes,
        "point_seconds": job.effort.point_s,
        "least_rounds": job.effort.least_rounds,
        "most_rounds": job.effort.most_rounds,
        "seed": options.seed,
    }
