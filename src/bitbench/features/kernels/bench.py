"""Quantized products timed against torch's: from what is asked to records, and from records to a table."""

from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from bitbench.engines.environments import environment_python
from bitbench.features.kernels import runner
from bitbench.features.kernels.computing import KernelRun, KernelSummary, summarize_kernels
from bitbench.features.kernels.runner import (
    BASELINES,
    KernelJob,
    KernelOptions,
    kernel_runner_shapes,
)
from bitbench.features.kernels.words import kernel_document
from bitbench.machine.gpus import survey_gpus
from bitbench.machine.host import collect_host_facts
from bitbench.models import library
from bitbench.records.roof import MachineRoof
from bitbench.reports.document.markdown import markdown
from bitbench.reports.write import StudyReport
from bitbench.running.trial import now
from bitbench.study.hardware import KernelDevice
from bitbench.util.errors import KernelError, StoreError
from bitbench.util.files import SafeFolder, read_bytes

ENVIRONMENT = "transformers"  # the one that has torch and nothing that competes with it
FURTHER_BASELINES = ("torch-linear-f32",)  # only where a run has them
RECORDS_FILE = "records.json"


def bench_kernels(
    options: KernelOptions,
    home: Path,
    into: Path,
    on_point: Callable[[str, int, int], None] = lambda *_: None,
) -> KernelSummary:
    """Time them, and keep the records in `into`. Raises KernelError before anything runs where a name is unknown."""
    job = _job(options, home)
    runner.case_targets(options.against)  # refuses an unknown baseline before anything is measured
    python = environment_python(ENVIRONMENT, home)
    run = runner.run_kernels(
        job, python, collect_host_facts().cpu_model or "unknown processor", on_point
    )
    summary = summarize_kernels(run, options.against)
    SafeFolder(into).write(RECORDS_FILE, run.model_dump_json() + "\n")
    return summary


def measure_roof(home: Path) -> MachineRoof:
    """What this machine can do at most, without any case; takes some seconds. Raises KernelError."""
    python = environment_python(ENVIRONMENT, home)
    return runner.measure_roof(python, collect_host_facts().cpu_model, now())


def kernel_markdown(of: StudyReport) -> str:
    """Write the table again from the records that `bench_kernels` left in a folder."""
    path = of.folder.path / RECORDS_FILE
    if not path.is_file():
        raise StoreError(
            f"{path.parent} has no kernel records; `bitbench kernels --into {path.parent}` creates them"
        )
    try:
        run = KernelRun.model_validate_json(read_bytes(path))
    except ValidationError as error:
        raise StoreError(
            f"{path} cannot be read as kernel records: {error.errors()[0]['msg']}"
        ) from error
    cases = {timing.case for timing in run.timings}
    usual = [name for name in (*BASELINES, *FURTHER_BASELINES) if name in cases]
    return markdown(kernel_document(summarize_kernels(run, run.against or usual)))


def _job(options: KernelOptions, home: Path) -> KernelJob:
    if options.device is KernelDevice.CUDA and not (found := survey_gpus()).is_usable:
        raise KernelError(
            f"{found.problem or 'This machine has no CUDA device (no NVIDIA driver is loaded).'} Run the command on "
            "one that has, or drop --device to measure the CPU."
        )
    named = None if options.cases is None else [*options.against, *options.cases]
    shapes = kernel_runner_shapes(
        options.shapes, lambda name: library.resolve(name, home).path, quick=options.quick
    )
    cases = runner.case_targets(named)
    return KernelJob(options, shapes, cases, runner.BRIEF if options.quick else runner.FULL)
