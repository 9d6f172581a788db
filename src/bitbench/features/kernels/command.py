"""The command `bitbench kernels`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from bitbench.cli.options import parse_counts_option, parse_words_option
from bitbench.cli.terminal import Terminal
from bitbench.features.kernels.bench import time_kernels
from bitbench.features.kernels.runner import BASELINES, KernelOptions
from bitbench.features.kernels.words import build_kernel_document
from bitbench.machine.workplace import get_default_home
from bitbench.reports.document.markdown import render_markdown
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.study.hardware import KernelDevice
from bitbench.util.files import SafeFolder


def kernels(
    *,
    shapes: Annotated[
        str,
        typer.Option(
            "--shapes",
            help="kernel-table (its 30 shapes), model:NAME, or KxN,… (inputs x outputs).",
        ),
    ] = "kernel-table",
    batch: Annotated[
        str, typer.Option("--batch", help="Activation rows per product, such as 1,2,4.")
    ] = "1",
    against: Annotated[
        str | None,
        typer.Option("--against", help="Baseline cases [default: torch-linear,torch-mv]."),
    ] = None,
    cases: Annotated[
        str | None,
        typer.Option("--cases", help="Cases to time, such as vptq-4096-256,vptq-4096-256-a16."),
    ] = None,
    device: Annotated[
        KernelDevice, typer.Option("--device", help="Device; cuda is untested on a GPU.")
    ] = KernelDevice.CPU,
    quick: Annotated[bool, typer.Option("--quick", help="Two shapes, one short pass.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of data and order.")] = 0,
    into: Annotated[
        Path, typer.Option("--into", metavar="DIR", help="Folder for table and records.")
    ] = Path("kernels"),
) -> None:
    """Time quantized kernels against torch and the roofline.

    Each case is checked against double precision before it is timed. Writes DIR/kernels.md and
    DIR/records.json. `bitbench report DIR --format markdown-kernels` rebuilds the table from the
    records.
    """
    console = Terminal(stderr=True)
    batches = parse_counts_option(batch, "--batch")
    baselines = BASELINES if against is None else parse_words_option(against)
    case_names = None if cases is None else parse_words_option(cases)
    options = KernelOptions(
        shapes=shapes,
        batches=batches,
        against=baselines,
        cases=case_names,
        device=device,
        quick=quick,
        seed=seed,
    )
    with console.status("measuring this machine's roofline") as status:

        def on_point(name: str, number: int, total: int) -> None:
            line = f"{number} of {total}: {name}"
            if console.is_terminal:
                status.update(Text(line))
            else:
                console.print(line)

        summary = time_kernels(options, get_default_home(), into, on_point)
    document = build_kernel_document(summary)
    SafeFolder(into).write("kernels.md", render_markdown(document))
    render_in_terminal(document, Terminal())
    console.print(f"table and records: {into}", soft_wrap=True)
