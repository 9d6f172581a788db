"""Kernel cases by name, shapes, and a job for the worker in an environment with torch.

They are not imported here: a case imports torch, which lives in another environment. The worker there needs the module
and the name in it.
"""

import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitbench.feature import Offer, offered
from bitbench.features.kernels.case import KernelShape
from bitbench.features.kernels.computing import KernelMachine, KernelRun, KernelTiming
from bitbench.records.roof import ROOF_FORMAT, MachineRoof
from bitbench.study.base import Json
from bitbench.study.hardware import KernelDevice
from bitbench.util.errors import KernelError
from bitbench.util.isolated.job_process import WorkerFailed, run_short_job
from bitbench.util.model_files import read_safetensors_headers

CaseTarget = tuple[str, str]  # module and name in it


def case_targets(names: Sequence[str] | None = None) -> tuple[CaseTarget, ...]:
    """Return where all cases are, or the named ones; raise KernelError for a name that no feature offers."""
    known = offered("kernel_cases")
    for name in names or ():
        if name not in known:
            raise KernelError(
                f"Unknown kernel case {name}; known cases: {', '.join(sorted(known))}."
            )
    wanted = sorted(known) if names is None else dict.fromkeys(names)
    return tuple(_case_target(known[name]) for name in wanted)


def _case_target(offer: Offer) -> CaseTarget:
    module, _, attribute = offer.target.partition(":")
    return importlib.util.resolve_name(module, offer.feature.package), attribute


def native_module() -> str | None:
    """Return the file of the native module; None where it was not built."""
    spec = importlib.util.find_spec("bitbench._native")
    return None if spec is None else spec.origin


SEED_INPUTS = (1024, 2048, 4096, 8192, 16384)
SEED_OUTPUTS = (1024, 4096, 8192, 14336, 28672, 53248)
QUICK = (
    KernelShape(1024, 1024),
    KernelShape(4096, 4096),
)  # of the kernel table's, for a look or for CI

_PAIR = re.compile(r"(\d+)x(\d+)")


def kernel_runner_shapes(
    text: str, model_folder: Callable[[str], Path], *, quick: bool
) -> tuple[KernelShape, ...]:
    """Read `kernel-table`, `model:ID` or `KxN,KxN` (inputs x outputs). Raises KernelError for anything else."""
    if text == "kernel-table":
        return (
            QUICK if quick else tuple(KernelShape(k, n) for n in SEED_OUTPUTS for k in SEED_INPUTS)
        )
    kind, _, name = text.partition(":")
    if kind == "model" and name:
        return _linear_shapes(model_folder(name))
    pairs = [_PAIR.fullmatch(part.strip()) for part in text.split(",")]
    shapes = [KernelShape(int(pair[1]), int(pair[2])) for pair in pairs if pair]
    if len(shapes) != len(pairs) or any(
        min(shape.in_features, shape.out_features) == 0 for shape in shapes
    ):
        raise KernelError(
            f"{text!r} is not a set of shapes; use kernel-table, model:ID, or INPUTSxOUTPUTS such as 4096x4096"
        )
    return tuple(dict.fromkeys(shapes))


def _linear_shapes(folder: Path) -> tuple[KernelShape, ...]:
    """The shapes of a checkpoint's linear layers, each once; an embedding is looked up, not multiplied."""
    found = {
        KernelShape(tensor.shape[1], tensor.shape[0])
        for name, tensor in read_safetensors_headers(folder).items()
        if name.endswith(".weight") and len(tensor.shape) == 2 and "embed" not in name
    }
    if not found:
        raise KernelError(
            f"{folder} contains no linear layers in safetensors; give the folder of an unquantized model."
        )
    return tuple(sorted(found, key=lambda shape: (shape.out_features, shape.in_features)))


BASELINES = ("torch-linear", "torch-mv")
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
class KernelOptions:
    """`shapes` is `kernel-table`, `model:NAME` or `KxN,…`; without `cases` all that this machine can run are timed."""

    shapes: str = "kernel-table"
    batches: tuple[int, ...] = (1,)
    against: tuple[str, ...] = BASELINES
    cases: tuple[str, ...] | None = None
    device: KernelDevice = KernelDevice.CPU
    quick: bool = False
    seed: int = 0


@dataclass(frozen=True)
class KernelJob:
    """Options with what their names stand for."""

    options: KernelOptions
    shapes: tuple[KernelShape, ...]
    cases: tuple[CaseTarget, ...]
    effort: Effort = FULL


def run_kernels(
    job: KernelJob, python: Path, cpu_model: str, on_point: Callable[[str, int, int], None]
) -> KernelRun:
    """Raises KernelError where the worker fails. `on_point` hears what was measured: its name, number, of how many."""
    machine: KernelMachine | None = None
    timings: dict[tuple[str, int, int, int], KernelTiming] = {}
    count, total = 0, job.effort.passes * len(job.shapes) * len(job.options.batches)
    waiting: dict[str, Json] = {}
    for event in _events(job, python):
        if event["event"] == "machine":
            machine = KernelMachine.model_validate(
                event | {"cpu_model": cpu_model, "seed": job.options.seed}
            )
        elif event["event"] == "case":
            waiting[event["name"]] = event
        elif event["event"] == "point":
            for name, case in waiting.items():
                key = (name, *event["shape"], event["batch"])
                timings[key] = _with_pass(
                    timings.get(key), _timing(case), event["seconds"].get(name, ())
                )
            waiting, count = {}, count + 1
            on_point(
                f"{event['shape'][0]}x{event['shape'][1]}, batch {event['batch']}", count, total
            )
    if machine is None:
        raise KernelError(
            "The kernel worker measured nothing; give at least one shape and one batch."
        )
    return KernelRun(
        machine=machine, timings=_in_order(timings.values(), job), against=job.options.against
    )


def measure_roof(python: Path, cpu_model: str | None, measured_at: str) -> MachineRoof:
    """The readings of the bench without any case. Raises KernelError."""
    nothing = KernelJob(KernelOptions(), shapes=(), cases=())
    machine = next(
        (event for event in _events(nothing, python) if event["event"] == "machine"), None
    )
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


def _timing(case: Json) -> KernelTiming:
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


def _with_pass(
    known: KernelTiming | None, found: KernelTiming, seconds: Sequence[float]
) -> KernelTiming:
    """Who gave a wrong result in one pass has no times at all: ratios pair each round with one of another case."""
    timing = known or found
    for either in (timing, found):
        if either.cause is not None:
            return either
    return timing.model_copy(
        update={
            "seconds": (*timing.seconds, *seconds),
            "pass_rounds": (*timing.pass_rounds, len(seconds)),
        }
    )


def _in_order(timings: Iterable[KernelTiming], job: KernelJob) -> tuple[KernelTiming, ...]:
    """As the job names shapes and batches; the worker takes them at random."""
    shapes = [(shape.in_features, shape.out_features) for shape in job.shapes]

    def place(timing: KernelTiming) -> tuple[int, int]:
        return shapes.index((timing.in_features, timing.out_features)), job.options.batches.index(
            timing.batch
        )

    return tuple(sorted(timings, key=place))


def _events(job: KernelJob, python: Path) -> Iterator[Json]:
    try:
        yield from run_short_job(_WORKER, python, _as_json(job))
    except WorkerFailed as failure:
        raise KernelError(f"The kernel worker failed: {failure}") from None


def _as_json(job: KernelJob) -> Json:
    options = job.options
    return {
        "native": native_module(),
        "cases": list(job.cases),
        "against": list(options.against),
        "all_cases": options.cases is not None,  # also those that are left out unless named
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
