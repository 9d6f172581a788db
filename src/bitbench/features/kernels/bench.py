"""Time quantized products against torch's: from options to records, and from records to a table."""

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
    parse_kernel_shapes,
)
from bitbench.features.kernels.words import build_kernel_document
from bitbench.machine.gpus import survey_gpus
from bitbench.machine.host import collect_host_facts
from bitbench.models import library
from bitbench.records.roof import MachineRoof
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.write import StudyReport
from bitbench.running.trial import now
from bitbench.study.hardware import KernelDevice
from bitbench.util.errors import KernelError, StoreError
from bitbench.util.files import SafeFolder, read_bytes

ENVIRONMENT = "transformers"  # it has torch, and no other package that takes time
FURTHER_BASELINES = ("torch-linear-f32",)  # only if a run has them
RECORDS_FILE = "records.json"


def time_kernels(
    options: KernelOptions,
    home: Path,
    into: Path,
    on_point: Callable[[str, int, int], None] = lambda *_: None,
) -> KernelSummary:
    """Time the cases, write the records to `into`, and return their summary.

    Raise KernelError before anything runs if a name is unknown.
    """
    job = _make_job(options, home)
    runner.list_case_targets(
        options.against
    )  # raises for an unknown baseline before any measurement
    python = environment_python(ENVIRONMENT, home)
    cpu_model = collect_host_facts().cpu_model or "unknown processor"
    run = runner.run_kernels(job, python, cpu_model, on_point)
    summary = summarize_kernels(run, options.against)
    SafeFolder(into).write(RECORDS_FILE, run.model_dump_json() + "\n")
    return summary


def measure_roof(home: Path) -> MachineRoof:
    """Measure the roofline of this machine, which takes some seconds. Raise KernelError."""
    python = environment_python(ENVIRONMENT, home)
    return runner.measure_roof(python, collect_host_facts().cpu_model, now())


def kernel_markdown(report: StudyReport) -> str:
    """Return the table of the records in a folder, as Markdown.

    Raise StoreError if the folder has no records, or if they cannot be read.
    """
    path = report.folder.path / RECORDS_FILE
    if not path.is_file():
        raise StoreError(
            f"{path.parent} has no kernel records; `bitbench kernels --into {path.parent}` creates "
            "them"
        )
    try:
        run = KernelRun.model_validate_json(read_bytes(path))
    except ValidationError as error:
        raise StoreError(
            f"{path} cannot be read as kernel records: {error.errors()[0]['msg']}"
        ) from error
    cases = {timing.case for timing in run.timings}
    default = [name for name in (*BASELINES, *FURTHER_BASELINES) if name in cases]
    return render_markdown(build_kernel_document(summarize_kernels(run, run.against or default)))


def _make_job(options: KernelOptions, home: Path) -> KernelJob:
    """Return the job for the worker. Raise KernelError if it cannot run on this machine."""
    if options.device is KernelDevice.CUDA:
        _require_gpu()
    names = None if options.cases is None else [*options.against, *options.cases]
    shapes = parse_kernel_shapes(
        options.shapes, lambda name: library.resolve(name, home).path, quick=options.quick
    )
    effort = runner.BRIEF if options.quick else runner.FULL
    return KernelJob(options, shapes, runner.list_case_targets(names), effort)


def _require_gpu() -> None:
    gpus = survey_gpus()
    if gpus.is_usable:
        return
    problem = gpus.problem or "This machine has no CUDA device (no NVIDIA driver is loaded)."
    raise KernelError(
        f"{problem} Run the command on one that has, or drop --device to measure the CPU."
    )
