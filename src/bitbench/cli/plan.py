"""`bitbench plan`: the points of a study, and everything that it would start, send and write."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from bitbench.cli.json_answers import end_with_json
from bitbench.cli.options import AsJson, OnDevice, StudyFile, parse_device_option
from bitbench.cli.terminal import Terminal
from bitbench.engines.endpoint import find_endpoint_key_variable
from bitbench.machine.workplace import Workplace
from bitbench.models.library import find_source
from bitbench.planning.plan import (
    Amount,
    PlanAnswer,
    estimate_study_size,
    make_estimator,
    plan_study_with_readiness,
)
from bitbench.quality.tasks import list_task_files
from bitbench.quantize.catalog import find_recipe, is_recipe_file_name
from bitbench.reports.document.model import format_plain_text
from bitbench.reports.document.words import MAX_NAME, format_count, format_list
from bitbench.reports.labels import Labels
from bitbench.reports.sections.failures import group_failures, group_refusals
from bitbench.reports.sections.quality import iter_rounding_sentences
from bitbench.study.environment import Device
from bitbench.study.model_cost import estimate_active_bytes
from bitbench.study.plan import Config, Plan, Support
from bitbench.study.study import EngineSetup, Interleaving, Measure
from bitbench.study.study_file import StudySource
from bitbench.study.variant import NO_MODEL, Variant
from bitbench.study.workload import format_length
from bitbench.util.errors import ExitCode
from bitbench.util.units import show_about, show_bytes

LONGEST_SHOWN = 300  # characters of a text, the rest is counted, so that it hides no other line
MOST_LINES = 100  # workloads and variants with a line each
MOST_NAMES = 30  # configs in the list below a remark
EXPECTED = {
    Support.DOES_NOT_RUN: "tried once, unsupported is expected",
    Support.RUNS_WITHOUT_SPEEDUP: "no speed-up is expected",
}
LONG_S = 48 * 3600
TOO_LONG = ": `measure: {budget: 2h}` in the file limits it."
_YES = Text("✓", "green")
_NO = Text("no", "yellow")
_ONCE = Text("once", "yellow")


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

    Prints the points, the variants and environments that are missing, and a time estimate. Runs
    nothing. Exit code 3: every point is refused.
    """
    workplace = Workplace(asked_device=parse_device_option(device))
    planned, ready = plan_study_with_readiness(study, workplace)
    estimator = make_estimator(planned, workplace)
    answer = PlanAnswer(
        plan=planned,
        environments=dict(ready.environments),
        missing_models=ready.missing_models,
        before_run=ready.commands,
        amount=estimate_study_size(planned, estimator, ready.making_s),
    )
    code = get_plan_exit_code(planned)
    if as_json:
        end_with_json("plan", answer, code)
    _show_plan(answer, StudySource.of(study), workplace.device)
    if nodes is not None:
        Terminal().print(_describe_busy_nodes(planned.study.measure, nodes))
    raise typer.Exit(code)


def _describe_busy_nodes(measure: Measure, nodes: int) -> str:
    """Return how many of the nodes the study keeps busy, and how to use them all."""
    counted_nodes = format_count(nodes, "node")
    if measure.budget is not None:
        return f"{counted_nodes}: with a budget each node runs blocks until the time is over."
    starts = measure.starts.min
    advice = ""
    if starts % nodes:
        advice = f"; `starts: {nodes}`, or a multiple of it, keeps all busy"
    busy = min(nodes, starts)
    return f"{counted_nodes}: `starts.min` {starts} keeps {busy} busy at first{advice}."


def get_plan_exit_code(plan: Plan) -> ExitCode:
    """Return NOTHING_MEASURED for a plan without points and quality, as `bitbench run` would."""
    return ExitCode.DONE if plan.points or plan.quality else ExitCode.NOTHING_MEASURED


def _show_plan(answer: PlanAnswer, source: StudySource, device: Device) -> None:
    plan = answer.plan
    console = Terminal()
    labels = make_plan_labels(plan)
    show_plan_heading(console, plan, labels)
    show_plan_tables(console, plan, labels)
    for line in _list_variant_lines(plan, answer.missing_models):
        console.print(line)
    console.print(build_plan_uses_table(source))
    if len(plan.configs) > 1 and plan.points:
        console.print(_describe_order(plan.study.measure.schedule, device))
    console.print(_format_amount(plan, answer.amount))
    if answer.amount.seconds[0] > LONG_S:
        console.print(Text.assemble(("long", "yellow"), TOO_LONG))
    show_plan_commands(console, "Needed before `bitbench run`:", answer.before_run)


def build_plan_uses_table(source: StudySource) -> Table:
    """Return what the study would start, send and write, for a person who judges a file from
    elsewhere."""
    table = Table(
        Column("What it would use", overflow="fold"),
        Column("for what", overflow="fold"),
        box=None,
        header_style="bold",
        pad_edge=False,
    )
    study = source.study
    for setup in study.engines:
        for row in _iter_engine_uses(setup):
            table.add_row(*row)
    models = dict.fromkeys([*study.models, *(variant.checkpoint for variant in study.variants)])
    if models:
        table.add_row(_cut_text(", ".join(models)), "loaded by engines")
    for file, purpose in _iter_files(source):
        table.add_row(_cut_text(str((source.folder / Path(file).expanduser()).resolve())), purpose)
    table.add_row(_cut_text(f"./{study.name}"), "written, unless --into names another folder")
    return table


def _iter_engine_uses(setup: EngineSetup) -> Iterator[tuple[str, str]]:
    """Yield a row for the arguments, the key, each variable and the Python of a setup."""
    if setup.args:
        arguments = ", ".join(_cut_text(f"{name}={value}") for name, value in setup.args.items())
        yield arguments, f"arguments of {setup.name}"
    key = find_endpoint_key_variable(setup)
    if key is not None:
        yield (
            _cut_text(key),
            _cut_text(f"its value is sent to {setup.args.get('url')} as the API key"),
        )
    for name, value in setup.env.items():
        yield _cut_text(f"{name}={value}"), f"variable of {setup.name}"
    if setup.python is not None:
        yield _cut_text(str(setup.python)), f"its Python runs {setup.name}"


def _iter_files(source: StudySource) -> Iterator[tuple[str, str]]:
    """Yield each file that the study reads, as the study names it, with its purpose."""
    study = source.study
    for workload in study.workloads:
        purpose = "decides when requests are sent"
        if workload.text:
            purpose = "its text is sent to the engines"
        for _, name in workload.files:
            yield name, purpose
    if study.quality:
        for name in study.quality.corpus:
            yield name, "its text is sent to the engines"
        for name in list_task_files(study.quality):
            yield name, "runs code in lm-eval"
    for reference in filter(is_recipe_file_name, study.recipes):
        yield reference, "says how models are compressed"
        calibration = find_recipe(reference, source.folder).calibration.source
        if calibration:
            yield str(calibration), "its text calibrates compression"


def _cut_text(text: str) -> str:
    hidden = len(text) - LONGEST_SHOWN
    return text if hidden <= 0 else f"{text[:LONGEST_SHOWN]}… ({hidden:,} more characters)"


def show_plan_heading(console: Terminal, plan: Plan, labels: Labels) -> None:
    """Print the study's name and description, and the part of the labels that all configs share."""
    console.print(Text.assemble((plan.study.name, "bold"), f"  {plan.study.description.strip()}"))
    if labels.shared:
        console.print(labels.shared)


def show_plan_tables(console: Terminal, plan: Plan, labels: Labels) -> None:
    """Print the workloads, the points and the remarks."""
    if plan.study.workloads:
        console.print(_build_workload_table(plan))
    console.print(_build_point_table(plan, labels))
    for remark in iter_plan_remarks(plan, labels):
        console.print(remark)


def show_plan_commands(console: Terminal, title: str, commands: Sequence[str]) -> None:
    """Print the commands below the title, or nothing if none exist."""
    if commands:
        console.print(title)
    for command in commands:
        console.print(Text(f"  {command}"), soft_wrap=True)


def make_plan_labels(plan: Plan) -> Labels:
    """Return labels of all configs of the plan, refused ones included."""
    return Labels(
        [
            *plan.configs,
            *(refusal.point.config for refusal in plan.refusals),
            *(refusal.config for refusal in plan.quality_refusals),
        ],
        MAX_NAME,
    )


def _build_workload_table(plan: Plan) -> Table:
    """Return a table of the workloads. `_points` has their numbers as column titles, so that many
    workloads fit into a line."""
    table = Table("", "workload", "asks for", box=None, header_style="bold", pad_edge=False)
    for number, workload in enumerate(plan.study.workloads[:MOST_LINES], start=1):
        inputs = format_length(workload.input_tokens)
        outputs = format_length(workload.output_tokens)
        load = f"{workload.arrival.kind}:" if workload.open_loop else f"{workload.concurrency} ×"
        table.add_row(str(number), workload.name, f"{load} {inputs} → {outputs} tokens")
    left = len(plan.study.workloads) - MOST_LINES
    if left > 0:
        table.add_row("", f"… {left:,} more", "")
    return table


def _format_names(names: Sequence[str]) -> str:
    """Return `a, b, c`, or `a, b, … and 97 more` if there are many."""
    left = len(names) - MOST_NAMES
    if left <= 0:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_NAMES])} … and {left:,} more"


def _collect_failing_configs(plan: Plan) -> set[Config]:
    """Return the configs that are expected to fail."""
    failing: set[Config] = set()
    for expectation in plan.expectations:
        if expectation.verdict is Support.DOES_NOT_RUN:
            failing.add(expectation.config)
    return failing


def _build_point_table(plan: Plan, labels: Labels) -> Table:
    """Return a table with a row per config and a column per workload."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("config", overflow="fold")
    titles = [str(number + 1) for number in range(len(plan.study.workloads))]
    if plan.study.quality:
        titles.append("quality")
    for title in titles:
        table.add_column(title, justify="center", no_wrap=True)
    failing = _collect_failing_configs(plan)
    rows: dict[Config, dict[str, Text]] = {}
    for point in plan.points:
        mark = _ONCE if point.config in failing else _YES
        rows.setdefault(point.config, {})[point.workload] = mark
    for refusal in plan.refusals:
        rows.setdefault(refusal.point.config, {})[refusal.point.workload] = _NO
    quality = dict.fromkeys(plan.quality, _YES)
    quality |= {refusal.config: _NO for refusal in plan.quality_refusals}
    for config in dict.fromkeys([*rows, *quality]):
        marks = rows.get(config, {})
        cells = [marks[workload.name] for workload in plan.study.workloads]
        if config in quality:
            cells.append(quality[config])
        table.add_row(labels[config], *cells)
    return table


def iter_plan_remarks(plan: Plan, labels: Labels) -> Iterator[RenderableType]:
    """Yield each reason why configs will not run or not be faster, followed by these configs."""
    by_remark: dict[tuple[str, str], list[Config]] = {}
    for reason, points in group_refusals(plan.refusals).items():
        for configs, workloads in group_failures(points):
            remark = "refused"
            if len(workloads) != len(plan.study.workloads):
                remark += f" on {format_plain_text(format_list(workloads))}"
            by_remark.setdefault((remark, reason), []).extend(configs)
    for expectation in plan.expectations:
        key = (EXPECTED[expectation.verdict], expectation.why)
        by_remark.setdefault(key, []).append(expectation.config)
    if plan.in_float32:
        remark = f"computes in float32 on this processor ({plan.level})"
        reason = (
            "it would emulate bf16, which takes several times as long; "
            "weights take twice the memory instead."
        )
        by_remark[remark, reason] = list(plan.in_float32)
    for refusal in plan.quality_refusals:
        # A config that is refused for the same reason is listed already.
        if refusal.config not in by_remark.get(("refused", refusal.reason), ()):
            key = ("quality is not measured", refusal.reason)
            by_remark.setdefault(key, []).append(refusal.config)
    for (remark, reason), affected in by_remark.items():
        yield Text.assemble((remark, "yellow"), f": {reason}")
        yield indent_plan_names(labels[config] for config in affected)
    if plan.quality:
        for sentence in iter_rounding_sentences(plan.rounded_before):
            yield Text(format_plain_text(sentence))


def indent_plan_names(names: Iterable[str]) -> Padding:
    """Return the names as an indented list that ends after `MOST_NAMES`."""
    return Padding(_format_names(list(names)), (0, 0, 0, 4), expand=False)


def _list_variant_lines(plan: Plan, missing_models: Sequence[str]) -> list[Text]:
    """Return a line for all variants that are in the same state."""
    used = {config.variant for config in plan.configs}
    states: dict[str, tuple[Text, list[str]]] = {}
    for variant in plan.variants:
        if variant.name != NO_MODEL:
            state = _describe_variant_state(variant, variant.name in used, missing_models)
            states.setdefault(state.plain, (state, []))[1].append(variant.name)
    lines: list[Text] = []
    for state, names in states.values():
        noun = "variant" if len(names) == 1 else "variants"
        lines.append(Text.assemble(f"{noun} {_format_names(names)}: ", state))
    return lines or [Text("no variants needed")]


def _describe_variant_state(variant: Variant, is_used: bool, missing_models: Sequence[str]) -> Text:
    """Return whether the variant is ready, or why not."""
    if variant.refusal is not None:
        return Text("cannot be created", "yellow")
    if variant.weight_bytes is not None and (variant.checkpoint or variant.model) in missing_models:
        missing = "not downloaded" if find_source(variant.model) is None else "not created"
        return Text(f"{_format_weights(variant)}, {missing}", "yellow")
    if variant.path is not None:
        return Text(f"{_format_weights(variant)}, ready")
    if is_used:
        return Text("will be created", "yellow")
    return Text("not created: all its points are refused")


def _format_weights(variant: Variant) -> str:
    """Return `56.9 GiB of weights`, for a mixture of experts with `(a token reads 5.67 GiB)`."""
    text = f"{show_bytes(variant.weight_bytes)} of weights"
    if variant.weight_bytes is None:
        return text
    active = estimate_active_bytes(variant.facts, variant.weight_bytes)
    return text if active is None else f"{text} (a token reads {show_bytes(active)})"


def _describe_order(schedule: Interleaving, device: Device) -> str:
    """Return whether ratios are free of a temporary slowdown of the machine."""
    if schedule is Interleaving.ROUNDS or (schedule is Interleaving.AUTO and device == "cpu"):
        return (
            "Order: configs that fit into memory together take turns, "
            "so a slow drift of the machine cancels in ratios."
        )
    scope = "" if schedule is Interleaving.VISITS else " on a device"
    return (
        f"Order: configs run one after the other{scope}, "
        "so a drift of the machine within a block stays in ratios."
    )


def _format_amount(plan: Plan, amount: Amount) -> str:
    making = f", {show_about(amount.making_s)} of it to create variants" if amount.making_s else ""
    duration = f"about {show_about(*amount.seconds)}{making} (a rough estimate)"
    return f"{format_plan_runs(plan)} in {duration}: {format_plan_counts(plan, amount)}"


def format_plan_runs(plan: Plan) -> str:
    """Return `16 of 42 points run`, or `The quality of 8 configs is measured` without workloads."""
    if not plan.study.workloads:
        return f"The quality of {format_count(len(plan.quality), 'config')} is measured"
    total = len(plan.points) + len(plan.refusals)
    share = f" of {total:,}" if plan.refusals else ""
    verb = "points run" if total > 1 else "point runs"
    return f"{len(plan.points):,}{share} {verb}"


def format_plan_counts(plan: Plan, amount: Amount) -> str:
    """Return the numbers of starts and trials: ranges, or the minimum if there is a budget."""
    least_starts, most_starts = amount.starts
    least_trials, most_trials = amount.trials
    prefix = ""
    if plan.study.measure.budget is not None:
        # A budget buys as many as it can, so the maximum is unknown.
        prefix = "at least "
        most_starts = least_starts
        most_trials = least_trials
    noun = "start" if least_starts == most_starts == 1 else "starts"
    text = f"{prefix}{_format_range(least_starts, most_starts)} {noun}"
    if plan.study.workloads:
        text += f" and {_format_range(least_trials, most_trials)} trials"
    return f"{text}."


def _format_range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
