"""`bitbench plan`: what a study would do, and what it would start, send and write."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AsJson, OnDevice, StudyFile, device_option
from bitbench.cli.terminal import Terminal
from bitbench.engines.endpoint import endpoint_key_variable
from bitbench.machine.workplace import Workplace
from bitbench.models.library import source_of
from bitbench.planning.plan import (
    Amount,
    PlanAnswer,
    amount_of,
    estimator_of,
    plan_study_with_readiness,
)
from bitbench.quality.tasks import task_files
from bitbench.quantize.catalog import find_recipe, is_recipe_file_name
from bitbench.reports.document.model import plain_text
from bitbench.reports.document.words import MAX_NAME, listing, plural
from bitbench.reports.labels import Labels
from bitbench.reports.sections.failures import failures_by_workloads, refusals_by_reason
from bitbench.reports.sections.quality import quality_rounding_sentences
from bitbench.study.environment import Device
from bitbench.study.model_cost import active_weight_bytes
from bitbench.study.plan import Config, Plan, Support
from bitbench.study.study import EngineSetup, Interleaving, Measure
from bitbench.study.study_file import StudySource
from bitbench.study.variant import NO_MODEL, Variant
from bitbench.study.workload import workload_length_text
from bitbench.util.errors import ExitCode
from bitbench.util.units import show_about, show_bytes

LONGEST_SHOWN = 300  # characters; what follows is counted, so that nothing scrolls away behind it
MOST_LINES = 100  # workloads and variants that have a line each
MOST_NAMES = 30  # configs that are named where they share a remark
EXPECTED = {
    Support.DOES_NOT_RUN: "tried once, unsupported is expected",
    Support.RUNS_WITHOUT_SPEEDUP: "no speed-up is expected",
}
LONG_S = 48 * 3600
TOO_LONG = ": `measure: {budget: 2h}` in the file limits it."
_YES, _NO, _ONCE = Text("✓", "green"), Text("no", "yellow"), Text("once", "yellow")


def plan(
    study: StudyFile,
    *,
    device: OnDevice = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Say how many starts keep N nodes of --on busy."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a study would run and how long it may take.

    Prints the points, the variants and environments that are missing, and a time estimate. Runs nothing. Exit
    code 3: every point is refused.
    """
    at = Workplace(asked_device=device_option(device))
    planned, ready = plan_study_with_readiness(study, at)
    answer = PlanAnswer(
        plan=planned,
        environments=dict(ready.environments),
        missing_models=ready.missing_models,
        before_run=ready.commands,
        amount=amount_of(planned, estimator_of(planned, at), ready.making_s),
    )
    code = plan_exit_code(planned)
    if as_json:
        end_with_json("plan", answer, code)
    _show_plan(answer, StudySource.of(study), at.device)
    if nodes is not None:
        Terminal().print(_describe_busy_nodes(planned.study.measure, nodes))
    raise typer.Exit(code)


def _describe_busy_nodes(measure: Measure, nodes: int) -> str:
    """`12 nodes: starts.min 2 keeps 2 busy; starts: 12, or a multiple of it, keeps all busy.`"""
    if measure.budget is not None:
        return (
            f"{plural(nodes, 'node')}: with a budget each node runs blocks until the time is over."
        )
    busy = min(nodes, measure.starts.min)
    advice = (
        f"; `starts: {nodes}`, or a multiple of it, keeps all busy"
        if measure.starts.min % nodes
        else ""
    )
    return f"{plural(nodes, 'node')}: `starts.min` {measure.starts.min} keeps {busy} busy at first{advice}."


def plan_exit_code(plan: Plan) -> ExitCode:
    """A study that would run nothing is refused here as it would be by `bitbench run`."""
    return ExitCode.DONE if plan.points or plan.quality else ExitCode.NOTHING_MEASURED


def _show_plan(answer: PlanAnswer, source: StudySource, device: Device) -> None:
    plan = answer.plan
    console, labels = Terminal(), plan_labels(plan)
    show_plan_heading(console, plan, labels)
    show_plan_tables(console, plan, labels)
    for line in _variants(plan, answer.missing_models):
        console.print(line)
    console.print(plan_uses_table(source))
    if len(plan.configs) > 1 and plan.points:
        console.print(_order(plan.study.measure.schedule, device))
    console.print(_amount(plan, answer.amount))
    if answer.amount.seconds[0] > LONG_S:
        console.print(Text.assemble(("long", "yellow"), TOO_LONG))
    show_plan_commands(console, "Needed before `bitbench run`:", answer.before_run)


def plan_uses_table(source: StudySource) -> Table:
    """Return what the study would start, send and write, for a person who judges a file from elsewhere."""
    table = Table(
        Column("What it would use", overflow="fold"),
        Column("for what", overflow="fold"),
        box=None,
        header_style="bold",
        pad_edge=False,
    )
    study = source.study
    for setup in study.engines:
        for row in _engine_uses(setup):
            table.add_row(*row)
    models = dict.fromkeys([*study.models, *(variant.checkpoint for variant in study.variants)])
    if models:
        table.add_row(_cut(", ".join(models)), "loaded by engines")
    for file, purpose in _files(source):
        table.add_row(_cut(str((source.folder / Path(file).expanduser()).resolve())), purpose)
    table.add_row(_cut(f"./{study.name}"), "written, unless --into names another folder")
    return table


def _engine_uses(setup: EngineSetup) -> Iterator[tuple[str, str]]:
    """Yield a row for the arguments, the key, each variable and the Python of a setup."""
    if setup.args:
        arguments = ", ".join(_cut(f"{name}={value}") for name, value in setup.args.items())
        yield arguments, f"arguments of {setup.name}"
    if (key := endpoint_key_variable(setup)) is not None:
        yield _cut(key), _cut(f"its value is sent to {setup.args.get('url')} as the API key")
    for name, value in setup.env.items():
        yield _cut(f"{name}={value}"), f"variable of {setup.name}"
    if setup.python is not None:
        yield _cut(str(setup.python)), f"its Python runs {setup.name}"


def _files(source: StudySource) -> Iterator[tuple[str, str]]:
    """Yield each file that the study reads, as it names it, with its purpose."""
    study = source.study
    for workload in study.workloads:
        for _, name in workload.files:
            yield (
                name,
                "its text is sent to the engines"
                if workload.text
                else "decides when requests are sent",
            )
    for name in study.quality.corpus if study.quality else ():
        yield name, "its text is sent to the engines"
    for name in task_files(study.quality) if study.quality else ():
        yield name, "runs code in lm-eval"
    for reference in filter(is_recipe_file_name, study.recipes):
        yield reference, "says how models are compressed"
        if calibration := find_recipe(reference, source.folder).calibration.source:
            yield str(calibration), "its text calibrates compression"


def _cut(text: str) -> str:
    hidden = len(text) - LONGEST_SHOWN
    return text if hidden <= 0 else f"{text[:LONGEST_SHOWN]}… ({hidden:,} more characters)"


def show_plan_heading(console: Terminal, plan: Plan, labels: Labels) -> None:
    console.print(Text.assemble((plan.study.name, "bold"), f"  {plan.study.description.strip()}"))
    if labels.shared:
        console.print(labels.shared)


def show_plan_tables(console: Terminal, plan: Plan, labels: Labels) -> None:
    """Workloads, what runs on which, and remarks."""
    if plan.study.workloads:
        console.print(_workloads(plan))
    console.print(_points(plan, labels))
    for remark in plan_remarks(plan, labels):
        console.print(remark)


def show_plan_commands(console: Terminal, title: str, commands: Sequence[str]) -> None:
    if commands:
        console.print(title)
    for command in commands:
        console.print(Text(f"  {command}"), soft_wrap=True)


def plan_labels(plan: Plan) -> Labels:
    """Of all that the plan is about, refused ones as well: what they share is said once."""
    refused = (refusal.point.config for refusal in plan.refusals)
    return Labels(
        [
            *plan.configs,
            *refused,
            *(quality_refusal.config for quality_refusal in plan.quality_refusals),
        ],
        MAX_NAME,
    )


def _workloads(plan: Plan) -> Table:
    """Each with the number under which `_points` has its column: many of them still fit into a line."""
    table = Table("", "workload", "asks for", box=None, header_style="bold", pad_edge=False)
    for number, workload in enumerate(plan.study.workloads[:MOST_LINES], start=1):
        tokens = f"{workload_length_text(workload.input_tokens)} → {workload_length_text(workload.output_tokens)} tokens"
        many = f"{workload.arrival.kind}:" if workload.open_loop else f"{workload.concurrency} ×"
        table.add_row(str(number), workload.name, f"{many} {tokens}")
    if (left := len(plan.study.workloads) - MOST_LINES) > 0:
        table.add_row("", f"… {left:,} more", "")
    return table


def _some(names: Sequence[str]) -> str:
    """`a, b, c`; where there are many, `a, b, … and 97 more`"""
    left = len(names) - MOST_NAMES
    return ", ".join(names) if left <= 0 else f"{', '.join(names[:MOST_NAMES])} … and {left:,} more"


def _hopeless(plan: Plan) -> set[Config]:
    return {
        expectation.config
        for expectation in plan.expectations
        if expectation.verdict is Support.DOES_NOT_RUN
    }


def _points(plan: Plan, labels: Labels) -> Table:
    """One row per config, one column per workload."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("config", overflow="fold")
    titles = [
        *(str(number + 1) for number in range(len(plan.study.workloads))),
        *(["quality"] if plan.study.quality else []),
    ]
    for title in titles:
        table.add_column(title, justify="center", no_wrap=True)
    hopeless = _hopeless(plan)
    marked = {point: _ONCE if point.config in hopeless else _YES for point in plan.points}
    marked |= {refusal.point: _NO for refusal in plan.refusals}
    judged = dict.fromkeys(plan.quality, _YES)
    judged |= {refusal.config: _NO for refusal in plan.quality_refusals}
    rows: dict[Config, dict[str, Text]] = {}
    for point, mark in marked.items():
        rows.setdefault(point.config, {})[point.workload] = mark
    for config in dict.fromkeys([*rows, *judged]):
        marks = rows.get(config, {})
        quality = [judged[config]] if config in judged else []
        table.add_row(
            labels[config], *(marks[workload.name] for workload in plan.study.workloads), *quality
        )
    return table


def plan_remarks(plan: Plan, labels: Labels) -> Iterator[RenderableType]:
    """What will not run or gain nothing: each reason once, then all that it is about."""
    about: dict[tuple[str, str], list[Config]] = {}
    for reason, points in refusals_by_reason(plan.refusals).items():
        for refused, workloads in failures_by_workloads(points):
            where = (
                ""
                if len(workloads) == len(plan.study.workloads)
                else f" on {plain_text(listing(workloads))}"
            )
            about.setdefault((f"refused{where}", reason), []).extend(refused)
    for expected in plan.expectations:
        about.setdefault((EXPECTED[expected.verdict], expected.why), []).append(expected.config)
    if plan.in_float32:
        why = "it would emulate bf16, which takes several times as long; weights take twice the memory instead."
        about[f"computes in float32 on this processor ({plan.level})", why] = list(plan.in_float32)
    for unscored in plan.quality_refusals:
        if unscored.config not in about.get(
            ("refused", unscored.reason), ()
        ):  # for the same reason, said above
            about.setdefault(("quality is not measured", unscored.reason), []).append(
                unscored.config
            )
    for (remark, reason), configs in about.items():
        yield Text.assemble((remark, "yellow"), f": {reason}")
        yield indented_plan_names(labels[config] for config in configs)
    if plan.quality:
        yield from (
            Text(plain_text(sentence))
            for sentence in quality_rounding_sentences(plan.rounded_before)
        )


def indented_plan_names(names: Iterable[str]) -> Padding:
    return Padding(_some(list(names)), (0, 0, 0, 4), expand=False)


def _variants(plan: Plan, missing_models: Sequence[str]) -> list[Text]:
    """A line for all that are in the same state."""
    used = {config.variant for config in plan.configs}
    states: dict[str, tuple[Text, list[str]]] = {}
    for variant in plan.variants:
        if variant.name != NO_MODEL:
            state = _state(variant, variant.name in used, missing_models)
            states.setdefault(state.plain, (state, []))[1].append(variant.name)
    lines = [
        Text.assemble(f"{'variant' if len(names) == 1 else 'variants'} {_some(names)}: ", state)
        for state, names in states.values()
    ]
    return lines or [Text("no variants needed")]


def _state(variant: Variant, is_used: bool, missing_models: Sequence[str]) -> Text:
    if variant.refusal is not None:
        return Text("cannot be created", "yellow")
    if variant.weight_bytes is not None and (variant.checkpoint or variant.model) in missing_models:
        missing = "not downloaded" if source_of(variant.model) is None else "not created"
        return Text(f"{_weights(variant)}, {missing}", "yellow")
    if variant.path is None:
        return (
            Text("will be created", "yellow")
            if is_used
            else Text("not created: all its points are refused")
        )
    return Text(f"{_weights(variant)}, ready")


def _weights(variant: Variant) -> str:
    """`56.9 GiB of weights (a token reads 5.67 GiB)`; the latter of a mixture."""
    known = variant.weight_bytes
    active = None if known is None else active_weight_bytes(variant.facts, known)
    reads = f" (a token reads {show_bytes(active)})" if active is not None else ""
    return f"{show_bytes(known)} of weights{reads}"


def _order(schedule: Interleaving, device: Device) -> str:
    """Say whether what slows the machine for a while cancels in ratios."""
    if schedule is Interleaving.ROUNDS or (schedule is Interleaving.AUTO and device == "cpu"):
        return "Order: configs that fit into memory together take turns, so a slow drift of the machine cancels in ratios."
    where = "" if schedule is Interleaving.VISITS else " on a device"
    return f"Order: configs run one after the other{where}, so a drift of the machine within a block stays in ratios."


def _amount(plan: Plan, amount: Amount) -> str:
    making = f", {show_about(amount.making_s)} of it to create variants" if amount.making_s else ""
    how_long = f"about {show_about(*amount.seconds)}{making} (a rough estimate)"
    return f"{plan_runs_text(plan)} in {how_long}: {plan_counts_text(plan, amount)}"


def plan_runs_text(plan: Plan) -> str:
    """`16 of 42 points run`; of a study of quality alone, `The quality of 8 configs is measured`"""
    if not plan.study.workloads:
        return f"The quality of {plural(len(plan.quality), 'config')} is measured"
    total = len(plan.points) + len(plan.refusals)
    return f"{len(plan.points):,}{f' of {total:,}' if plan.refusals else ''} {'points run' if total > 1 else 'point runs'}"


def plan_counts_text(plan: Plan, amount: Amount) -> str:
    """A budget buys as many as it can: only the least is known."""
    least = "at least " if plan.study.measure.budget is not None else ""
    starts, trials = (pair[:1] if least else pair for pair in (amount.starts, amount.trials))
    parts = [
        f"{_plan_range_text(*(f'{number:,}' for number in starts))} {'start' if set(starts) == {1} else 'starts'}"
    ]
    if plan.study.workloads:
        parts.append(f"{_plan_range_text(*(f'{number:,}' for number in trials))} trials")
    return f"{least}{' and '.join(parts)}."


def _plan_range_text(low: str, high: str | None = None) -> str:
    return low if high is None or low == high else f"{low} to {high}"
