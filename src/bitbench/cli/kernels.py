"""`bitbench kernels`: the same product by different kernels, timed against each other."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.parsing import counts, words
from bitbench.core.asked.kernel_device import KernelDevice


def kernels(
    *,
    shapes: Annotated[
        str, typer.Option("--shapes", help="seed: 30 of a published table; model:NAME; or KxN,… (inputs x outputs)")
    ] = "seed",
    batch: Annotated[str, typer.Option("--batch", help="Activation rows per product, such as 1,2,4.")] = "1",
    against: Annotated[
        str | None, typer.Option("--against", help="The cases to compare with [default: torch-linear,torch-mv].")
    ] = None,
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

    from bitbench.ground.errors import KernelError
    from bitbench.lab.kernels import BASELINES, KernelOptions, measure_kernels
    from bitbench.lab.study import default_home
    from bitbench.report.document.terminal import render
    from bitbench.report.sections.kernels import write_kernels

    console = Console(stderr=True, highlight=False)
    options = KernelOptions(
        shapes=shapes,
        batches=counts(batch, "--batch", KernelError),
        against=BASELINES if against is None else words(against),
        cases=None if cases is None else words(cases),
        device=device,
        quick=quick,
        warm=warm,
        threads=threads,
        seed=seed,
    )
    with console.status("measuring what this machine can do at most") as status:

        def on_point(name: str, number: int, total: int) -> None:
            line = f"{number} of {total}: {name}"
            if console.is_terminal:
                status.update(line)
            else:
                console.print(line)

        summary = measure_kernels(options, default_home(), into, on_point)
    render(write_kernels(summary, into), Console())
    console.print(f"table, records and figure: {into}", soft_wrap=True)
