"""`bitbench plan`: what a study would do."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bitbench.core.cell import Contender, Plan, Verdict
from bitbench.core.variant import NO_MODEL, Variant
from bitbench.engines import environments
from bitbench.errors import EngineEnvironmentError
from bitbench.lab import Lab
from bitbench.units import show_bytes, show_duration

EXPECTED = {
    Verdict.DOES_NOT_RUN: "tried once, unsupported is expected:",
    Verdict.RUNS_WITHOUT_SPEEDUP: "no speed-up is expected:",
}


def show_plan(lab: Lab, path: Path) -> None:
    plan = lab.plan(path)
    console = Console(highlight=False)
    console.print(f"[bold]{plan.study.name}[/]  {plan.study.description.strip()}")
    console.print(_cells(plan))
    for line in _refusals(plan):
        console.print(line)
    for expected in plan.expectations:
        console.print(f"[yellow]{EXPECTED[expected.verdict]}[/] {expected.contender.name}: {expected.why}")
    console.print(_variants(plan))
    for name in lab.environments_of(plan):
        console.print(_environment(lab, name))
    console.print(_amount(lab, plan))


def _cells(plan: Plan) -> Table:
    """One row per contender, one column per workload: thousands of cells stay readable."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("contender")
    for workload in plan.study.workloads:
        shape = f"{workload.concurrency} × {workload.input_tokens} → {workload.output_tokens}"
        table.add_column(f"{workload.name}\n{shape}", justify="center")
    refused = {refusal.cell for refusal in plan.refusals}
    cells = dict.fromkeys([*plan.cells, *refused])
    for contender in dict.fromkeys(cell.contender for cell in cells):
        marks = {
            cell.workload: "[yellow]no[/]" if cell in refused else "[green]✓[/]"
            for cell in cells
            if cell.contender == contender
        }
        table.add_row(contender.name, *(marks[workload.name] for workload in plan.study.workloads))
    return table


def _refusals(plan: Plan) -> Iterator[str]:
    """One line for each contender and reason, however many workloads it is about."""
    workloads: dict[tuple[Contender, str], list[str]] = {}
    for refusal in plan.refusals:
        workloads.setdefault((refusal.cell.contender, refusal.reason), []).append(refusal.cell.workload)
    for (contender, reason), names in workloads.items():
        where = "" if len(names) == len(plan.study.workloads) else f" on {', '.join(names)}"
        yield f"[yellow]refused[/] {contender.name}{where}: {reason}"


def _variants(plan: Plan) -> str:
    lines = [f"variant {variant.name}: {_state(variant)}" for variant in plan.variants if variant.name != NO_MODEL]
    return "\n".join(lines) or "no variant has to be made"


def _state(variant: Variant) -> str:
    if variant.path is None:
        return "[yellow]will be made[/]"
    return f"{show_bytes(variant.weight_bytes)} of weights, is there"


def _environment(lab: Lab, name: str) -> str:
    try:
        environments.python_of(name, lab.home)
    except EngineEnvironmentError as error:
        return f"environment {name}: [yellow]{error}[/]"
    return f"environment {name}: is there"


def _amount(lab: Lab, plan: Plan) -> str:
    measure = plan.study.measure
    starts = len(plan.contenders)
    low_s, high_s = lab.estimator(plan).range_s()
    trials = len(plan.cells) * measure.instances.min * measure.trials.min
    most = len(plan.cells) * measure.instances.max * measure.trials.max
    return (
        f"{len(plan.cells)} cells, {_range(starts * measure.instances.min, starts * measure.instances.max)} starts, "
        f"{_range(trials, most)} trials; about {_range(show_duration(low_s), show_duration(high_s))} "
        "(rough: nothing was measured yet)"
    )


def _range(low: object, high: object) -> str:
    return str(low) if low == high else f"{low} to {high}"
