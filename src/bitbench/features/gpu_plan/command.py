"""`bitbench plan-gpu`: the command, and the text that it prints."""

import math
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AsJson
from bitbench.cli.plan import (
    MOST_LINES,
    build_plan_uses_table,
    format_plan_counts,
    format_plan_runs,
    get_plan_exit_code,
    indent_plan_names,
    make_plan_labels,
    show_plan_commands,
    show_plan_heading,
    show_plan_tables,
)
from bitbench.cli.terminal import Terminal
from bitbench.features.gpu_plan.computing import ASSUMED_OVERHEAD_BYTES, compute_gpu_plan
from bitbench.features.gpu_plan.devices import (
    DEVICE_CLASSES,
    DeviceClass,
    DeviceNeed,
    DevicePlan,
    GpuPlanAnswer,
)
from bitbench.features.gpu_plan.devices import get_device_class as class_called
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import Amount
from bitbench.reports.labels import Labels
from bitbench.study.plan import Plan
from bitbench.study.study_file import StudySource
from bitbench.util.units import show_about, show_bytes

WIDEST_SIZE = "1,023 MiB"
GAP = 2


def show_plan_gpu(answer: GpuPlanAnswer, source: StudySource) -> None:
    """Print the plan for a terminal."""
    plan = answer.plan
    on_device = answer.on_device
    console = Terminal()
    labels = make_plan_labels(plan)
    show_plan_heading(console, plan, labels)
    console.print(_format_device(on_device.device))
    show_plan_tables(console, plan, labels)
    for part in (*_iter_needs(on_device, labels, console.width), *_iter_remarks(on_device, labels)):
        console.print(part)
    console.print(build_plan_uses_table(source))
    console.print(_format_amount(plan, answer.amount, on_device))
    show_plan_commands(console, "Needed there before `bitbench run`:", answer.before_run)


def _format_device(device: DeviceClass) -> str:
    return (
        f"On {device.name}: {device.title}, compute capability {device.capability}, "
        f"{show_bytes(device.memory_bytes)}, {device.read_bytes_per_s / 1e9:,.0f} GB/s, "
        f"{device.flops_per_s / 1e12:,.0f} TFLOP/s in 16 bits. Nothing of this was measured."
    )


def _iter_needs(on_device: DevicePlan, labels: Labels, width: int) -> Iterator[RenderableType]:
    """Yield a table with the memory of each config, how it adds up, and the expected kernels."""
    has_several = any(need.use.devices > 1 for need in on_device.needs)
    titles = ["weights\neach", "KV of one\nrequest", "needed\neach", "may take"]
    if has_several:
        titles.insert(0, "devices")
    label_width = width
    for title in titles:
        label_width -= max(map(len, (*title.split("\n"), WIDEST_SIZE))) + GAP
    table = Table("config", box=None, header_style="bold", pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for need in on_device.needs[:MOST_LINES]:
        cells = ["\n".join(wrap(labels[need.config], max(label_width, 1)))]
        if has_several:
            cells.append(str(need.use.devices))
        cells += map(show_bytes, _list_sizes(need))
        table.add_row(*cells, style="" if need.fits else "yellow")
    left = len(on_device.needs) - MOST_LINES
    if left > 0:
        table.add_row(f"… {left:,} more")
    yield table
    overhead = show_bytes(ASSUMED_OVERHEAD_BYTES)
    yield Text(f"Needed: weights, the KV cache of one request, and about {overhead} besides.")
    kernels: dict[str, list[str]] = {}
    for need in on_device.needs:
        kernels.setdefault(need.kernel or "unknown", []).append(labels[need.config])
    for kernel, configs in kernels.items():
        yield Text(f"kernel expected: {kernel}")
        yield indent_plan_names(configs)


def _list_sizes(need: DeviceNeed) -> tuple[int | None, ...]:
    weights = None if need.weight_bytes is None else math.ceil(need.weight_bytes / need.use.devices)
    return weights, need.request_kv_bytes, need.needed_bytes, need.room_bytes


def _iter_remarks(on_device: DevicePlan, labels: Labels) -> Iterator[RenderableType]:
    """Yield the requests that wait, the workloads that need other setups, and the unknown times."""
    waiting: dict[str, list[str]] = {}
    for need in on_device.needs:
        for workload in need.waits:
            waiting.setdefault(workload, []).append(labels[need.config])
    for workload, configs in waiting.items():
        yield Text.assemble(
            ("requests wait", "yellow"), f": not all of {workload} fit into the KV cache at once."
        )
        yield indent_plan_names(configs)
    partly: list[str] = []
    for need in on_device.needs:
        # Without a context length the engine reserves room for the longest request.
        if need.fits and need.too_long and need.use.context_tokens is None:
            partly.append(labels[need.config])
    if partly:
        yield Text.assemble(
            ("long workloads apart", "yellow"),
            ": an engine that makes room for its longest request when it starts, as vLLM does, "
            "fails there on the short ones, too; "
            "give the long ones a setup of their own with max-model-len.",
        )
        yield indent_plan_names(partly)
    if on_device.untimed:
        yield Text.assemble(("time unknown", "yellow"), ": not in the estimate.")
        yield indent_plan_names(labels[config] for config in on_device.untimed)


def _format_amount(plan: Plan, amount: Amount, on_device: DevicePlan) -> str:
    devices = f"{on_device.devices} × {on_device.device.title}"
    return (
        f"{format_plan_runs(plan)} in {show_about(*on_device.seconds)} on {devices} "
        "(an estimate: at the roofline, and at half of it with 4 ms per step; without downloads, "
        "the creation of variants and what devices tell each other): "
        f"{format_plan_counts(plan, amount)}"
    )


def plan_gpu(
    study: Annotated[Path, typer.Argument(help="The study file.", metavar="STUDY")],
    *,
    device_class: Annotated[
        str,
        typer.Option(
            "--device-class", metavar="NAME", help=f"The GPU: {', '.join(DEVICE_CLASSES)}."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a study would take on a GPU you do not have here.

    Prints the points, the kernels expected on such a GPU, the memory needed, what does not fit, and
    hours by roofline. Runs nothing, and measures nothing. Exit code 3: every point is refused.
    """
    answer = compute_gpu_plan(study, class_called(device_class), Workplace())
    code = get_plan_exit_code(answer.plan)
    if as_json:
        end_with_json("plan-gpu", answer, code)
    show_plan_gpu(answer, StudySource.of(study))
    raise typer.Exit(code)
