"""`bitbench plan`: what a study would do."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from bitbench import environments
from bitbench.core.asked.prompts import show_length
from bitbench.core.cell import Plan, Verdict
from bitbench.core.recorded.variant import NO_MODEL, Variant
from bitbench.ground.errors import EngineEnvironmentError
from bitbench.ground.exit_codes import ExitCode
from bitbench.ground.units import show_bytes, show_duration
from bitbench.lab.amount import Amount, amount_of
from bitbench.lab.answers import PlanAnswer
from bitbench.lab.study import Lab
from bitbench.report.document.model import plain_text
from bitbench.report.document.words import listing, plural
from bitbench.report.sections.causes import refusals_by_reason

EXPECTED = {
    Verdict.DOES_NOT_RUN: "tried once, unsupported is expected",
    Verdict.RUNS_WITHOUT_SPEEDUP: "no speed-up is expected",
}


def answer_plan(lab: Lab, path: Path) -> PlanAnswer:
    plan = lab.plan(path)
    return PlanAnswer(
        plan=plan,
        environments={name: _problem(lab, name) for name in lab.environments_of(plan)},
        amount=amount_of(plan, lab.estimator(plan)),
    )


def exit_code_of(plan: Plan) -> ExitCode:
    """A study that would run nothing is refused here as it would be by `bitbench run`."""
    return ExitCode.DONE if plan.cells or plan.quality else ExitCode.NOTHING_MEASURED


def show_plan(answer: PlanAnswer) -> None:
    plan = answer.plan
    console = Console(highlight=False)
    console.print(f"[bold]{plan.study.name}[/]  {plan.study.description.strip()}")
    if plan.study.workloads:
        console.print(_workloads(plan))
    console.print(_cells(plan))
    for remark in remarks(plan):
        console.print(remark)
    console.print(_variants(plan))
    for name, problem in answer.environments.items():
        shown = "installed" if problem is None else f"[yellow]{escape(problem)}[/]"
        console.print(f"environment {name}: {shown}")
    console.print(_amount(answer.amount))


def _workloads(plan: Plan) -> Table:
    """Each with the number under which `_cells` has its column: many of them still fit into a line."""
    table = Table("", "workload", "asks for", box=None, header_style="bold", pad_edge=False)
    for number, workload in enumerate(plan.study.workloads, start=1):
        tokens = f"{show_length(workload.input_tokens)} → {show_length(workload.output_tokens)} tokens"
        many = f"{workload.arrival.kind}:" if workload.open_loop else f"{workload.concurrency} ×"
        table.add_row(str(number), workload.name, f"{many} {tokens}")
    return table


def _cells(plan: Plan) -> Table:
    """One row per contender, one column per workload: thousands of cells stay readable."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("contender", overflow="fold")
    titles = [
        *(str(number + 1) for number in range(len(plan.study.workloads))),
        *(["quality"] if plan.study.quality else []),
    ]
    for title in titles:
        table.add_column(title, justify="center", no_wrap=True)
    hopeless = {
        expectation.contender for expectation in plan.expectations if expectation.verdict is Verdict.DOES_NOT_RUN
    }
    marked = {cell: "[yellow]once[/]" if cell.contender in hopeless else "[green]✓[/]" for cell in plan.cells}
    marked |= {refusal.cell: "[yellow]no[/]" for refusal in plan.refusals}
    judged = dict.fromkeys(plan.quality, "[green]✓[/]")
    judged |= {refusal.contender: "[yellow]no[/]" for refusal in plan.quality_refusals}
    for contender in dict.fromkeys([*(cell.contender for cell in marked), *judged]):
        marks = {cell.workload: mark for cell, mark in marked.items() if cell.contender == contender}
        quality = [judged[contender]] if contender in judged else []
        table.add_row(contender.name, *(marks[workload.name] for workload in plan.study.workloads), *quality)
    return table


def remarks(plan: Plan) -> Iterator[RenderableType]:
    """What will not run or gain nothing: each reason once, then all that it is about."""
    about: dict[tuple[str, str], list[str]] = {}
    for refusal in refusals_by_reason(plan.refusals):
        for refused, workloads in refusal.affected.contenders_by_workloads():
            where = "" if len(workloads) == len(plan.study.workloads) else f" on {plain_text(listing(workloads))}"
            about.setdefault((f"refused{where}", refusal.reason), []).extend(contender.name for contender in refused)
    for expected in plan.expectations:
        about.setdefault((EXPECTED[expected.verdict], expected.why), []).append(expected.contender.name)
    for unscored in plan.quality_refusals:
        about.setdefault(("quality is not measured", unscored.reason), []).append(unscored.contender.name)
    for (remark, reason), contenders in about.items():
        yield f"[yellow]{remark}[/]: {escape(reason)}"
        yield Padding(", ".join(contenders), (0, 0, 0, 4))


def _variants(plan: Plan) -> str:
    used = {contender.variant for contender in plan.contenders}
    lines = [
        f"variant {variant.name}: {_state(variant, is_used=variant.name in used)}"
        for variant in plan.variants
        if variant.name != NO_MODEL
    ]
    return "\n".join(lines) or "no variants needed"


def _state(variant: Variant, *, is_used: bool) -> str:
    if variant.refusal is not None:
        return "[yellow]cannot be created[/]"
    if variant.path is None:
        return "[yellow]will be created[/]" if is_used else "not created: all its cells are refused"
    return f"{show_bytes(variant.weight_bytes)} of weights, ready"


def _problem(lab: Lab, environment: str) -> str | None:
    """What is wrong with it; None where it is installed."""
    try:
        environments.python_of(environment, lab.home)
    except EngineEnvironmentError as error:
        return str(error)
    return None


def _amount(amount: Amount) -> str:
    low_s, high_s = amount.seconds
    return (
        f"{plural(amount.cells, 'cell')}, {_range(*amount.starts)} starts, {_range(*amount.trials)} trials; "
        f"about {_range(show_duration(low_s), show_duration(high_s))} (a rough estimate)"
    )


def _range(low: object, high: object) -> str:
    return str(low) if low == high else f"{low} to {high}"
