"""Quantized products timed against torch's: from what is asked to records, and from records to a summary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from bitbench.engines.environments.installed import python_of
from bitbench.features.kernels import registry, runner
from bitbench.features.kernels.computing import summarize_kernels
from bitbench.features.kernels.instruction_sets import usable_isas
from bitbench.features.kernels.shapes import parse_shapes
from bitbench.features.kernels.types import KernelRun, KernelSummary
from bitbench.measure.machine.gpus import survey_gpus
from bitbench.measure.machine.host import collect_host_facts
from bitbench.measure.trial import now
from bitbench.models import library
from bitbench.records.roof import MachineRoof
from bitbench.study.kernel_device import KernelDevice
from bitbench.util.errors import KernelError, StoreError
from bitbench.util.safe_files import SafeFolder, read_bytes

ENVIRONMENT = "transformers"  # the one that has torch and nothing that competes with it
BASELINES = ("torch-linear", "torch-mv")
FURTHER_BASELINES = ("torch-linear-f32",)  # only where a run has them
RECORDS_FILE = "records.json"


@dataclass(frozen=True)
class KernelOptions:
    """`shapes` is `seed`, `model:NAME` or `KxN,…`; without `cases` all that this machine can run are timed.

    Cases of the native kernel are timed once on each of `isas`, without them on the best one.
    """

    shapes: str = "seed"
    batches: tuple[int, ...] = (1,)
    against: tuple[str, ...] = BASELINES
    cases: tuple[str, ...] | None = None
    device: KernelDevice = KernelDevice.CPU
    quick: bool = False
    warm: bool = False
    threads: int | None = None
    isas: tuple[str, ...] = ()
    seed: int = 0


def measure_kernels(
    options: KernelOptions, home: Path, into: Path, on_point: Callable[[str, int, int], None] = lambda *_: None
) -> KernelSummary:
    """Time them, and keep the records in `into`. Raises KernelError before anything runs where a name is unknown."""
    job = _job(options, home)
    registry.case_sources(options.against)  # a baseline that nobody offers is named before anything is measured
    python = python_of(ENVIRONMENT, home)
    run = runner.run_kernels(job, python, collect_host_facts().cpu_model or "unknown processor", on_point)
    summary = summarize_kernels(run, options.against)
    SafeFolder(into).write(RECORDS_FILE, run.model_dump_json() + "\n")
    return summary


def measure_roof(home: Path) -> MachineRoof:
    """What this machine can do at most, without any case; takes some seconds. Raises KernelError."""
    python = python_of(ENVIRONMENT, home)
    return runner.measure_roof(python, collect_host_facts().cpu_model, now())


def kernel_records(folder: Path) -> Path | None:
    """Where `measure_kernels` left its records: in this folder, or in its `kernels`."""
    places = (folder / RECORDS_FILE, folder / "kernels" / RECORDS_FILE)
    return next((path for path in places if path.is_file()), None)


def read_kernels(path: Path) -> KernelSummary:
    """Records of an earlier run, against those of the baselines that it has."""
    try:
        run = KernelRun.model_validate_json(read_bytes(path))
    except ValidationError as error:
        raise StoreError(f"{path} cannot be read as kernel records: {error.errors()[0]['msg']}") from error
    cases = {timing.case for timing in run.timings}
    return summarize_kernels(run, [name for name in (*BASELINES, *FURTHER_BASELINES) if name in cases])


def _job(options: KernelOptions, home: Path) -> runner.KernelJob:
    if options.device is KernelDevice.CUDA and not (found := survey_gpus()).is_usable:
        raise KernelError(
            f"{found.problem or 'This machine has no CUDA device (no NVIDIA driver is loaded).'} Run the command on "
            "one that has, or drop --device to measure the CPU."
        )
    named: Sequence[str] | None = None if options.cases is None else [*options.against, *options.cases]
    return runner.KernelJob(
        shapes=parse_shapes(options.shapes, lambda name: library.resolve(name, home).path, quick=options.quick),
        batches=options.batches,
        cases=registry.case_sources(named),
        all_cases=options.cases is not None,
        effort=runner.BRIEF if options.quick else runner.FULL,
        warm=options.warm,
        seed=options.seed,
        threads=options.threads,
        device=options.device,
        isas=_checked(options.isas),
    )


def _checked(isas: tuple[str, ...]) -> tuple[str, ...]:
    try:
        usable = usable_isas()
    except ValueError as error:  # BITBENCH_ISA
        raise KernelError(f"{error}.") from None
    for isa in isas:
        if isa not in usable:
            raise KernelError(f"This processor does not run {isa}; choose from: {', '.join(usable) or 'none'}.")
    return isas
