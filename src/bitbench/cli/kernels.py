"""`bitbench kernels`: the same product by different kernels, timed against each other."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.core.recorded.kernel import KernelDevice

ENVIRONMENT = "transformers"  # the one that has torch and nothing that competes with it
BASELINES = "torch-linear,torch-mv"
RECORDS_FILE = "records.json"


def kernels(
    *,
    shapes: Annotated[
        str, typer.Option("--shapes", help="seed: 30 of a published table; model:NAME; or KxN,… (inputs x outputs)")
    ] = "seed",
    batch: Annotated[str, typer.Option("--batch", help="Activation rows per product, such as 1,2,4.")] = "1",
    against: Annotated[str, typer.Option("--against", help="The cases to compare with.")] = BASELINES,
    cases: Annotated[
        str | None, typer.Option("--cases", help="Only these, such as vptq-4096-256,vptq-4096-256-a16.")
    ] = None,
    device: Annotated[
        KernelDevice, typer.Option("--device", help="Where to run; cuda was not yet run on a GPU.")
    ] = KernelDevice.CPU,
    quick: Annotated[bool, typer.Option("--quick", help="Two shapes, one pass of a second each: a look.")] = False,
    warm: Annotated[bool, typer.Option("--warm", help="Keep one copy of the weights instead of rotating.")] = False,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="[default: what torch chooses]")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Data and order follow from it.")] = 0,
    into: Annotated[Path, typer.Option("--into", metavar="DIR", help="where table, records and figure go")] = Path(
        "kernels"
    ),
) -> None:
    """Time quantized kernels against torch on this machine, and show how far from its roofline they are.

    Each case is checked against double precision before it is timed. Writes DIR/kernels.md with its
    figure, and records.json; `bitbench report DIR` makes table and figure again from the records.
    """
    from rich.console import Console

    from bitbench import environments
    from bitbench.kernels import registry, runner
    from bitbench.kernels.shapes import parse_shapes
    from bitbench.lab.study import Lab
    from bitbench.models import library
    from bitbench.probes.host import collect_host_facts
    from bitbench.report.document.terminal import render
    from bitbench.report.sections.kernels import write_kernels
    from bitbench.statistics.kernels import summarize_kernels

    _check_device(device)
    lab, console = Lab(), Console(stderr=True, highlight=False)
    baselines = _words(against)
    job = runner.KernelJob(
        shapes=parse_shapes(shapes, lambda name: library.resolve(name, lab.home).path, quick=quick),
        batches=_batches(batch),
        cases=registry.case_sources(None if cases is None else [*baselines, *_words(cases)]),
        all_cases=cases is not None,
        effort=runner.BRIEF if quick else runner.FULL,
        warm=warm,
        seed=seed,
        threads=threads,
        device=device,
    )
    registry.case_sources(baselines)  # a baseline that nobody offers is named before anything is measured
    python = environments.python_of(ENVIRONMENT, lab.home)
    with console.status("measuring what this machine can do at most") as status:

        def on_point(name: str, number: int, total: int) -> None:
            line = f"{number} of {total}: {name}"
            if console.is_terminal:
                status.update(line)
            else:
                console.print(line)

        run = runner.run_kernels(job, python, collect_host_facts().cpu_model or "unknown processor", on_point)
    summary = summarize_kernels(run, baselines)
    into.mkdir(parents=True, exist_ok=True)
    (into / RECORDS_FILE).write_text(run.model_dump_json() + "\n", encoding="utf-8")
    render(write_kernels(summary, into), Console())
    console.print(f"table, records and figure: {into}", soft_wrap=True)


def _check_device(device: KernelDevice) -> None:
    from bitbench import environments
    from bitbench.ground.errors import KernelError

    if device is KernelDevice.CUDA and not environments.has_cuda():
        raise KernelError(
            "There is no CUDA device on this machine (no NVIDIA driver is loaded); give this command where one is, "
            "or without --device to measure the processor."
        )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _batches(text: str) -> tuple[int, ...]:
    from bitbench.ground.errors import KernelError

    if not all(word.isdigit() and int(word) > 0 for word in _words(text)) or not _words(text):
        raise KernelError(f"{text!r} is not a list of batch sizes; write numbers such as 1,2,4")
    return tuple(dict.fromkeys(int(word) for word in _words(text)))
