"""Speed and memory by model and engine in reStructuredText grid tables: input length × quantization × devices.

Settings are a column, not footnotes; a cell that did not run has its row and its reason; one block is printed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bitbench.core.asked.prompts import show_length
from bitbench.core.asked.study import EngineSetup
from bitbench.core.cell import Cell, Contender
from bitbench.core.found.summary import CellSummary, Estimate, StudySummary
from bitbench.core.recorded.lock import Lock
from bitbench.core.secrets import is_secret
from bitbench.ground.units import UNKNOWN, show_bytes
from bitbench.report.document.model import Quantity
from bitbench.report.document.numbers import percent, scale_for, written
from bitbench.report.document.words import plural
from bitbench.report.forms.quality_column import QualityColumn
from bitbench.report.forms.rst import grid_table, heading, rst
from bitbench.report.sections.ranked import memory_metric, outcomes_of

DEVICE_COUNTS = ("gpus", "tensor-parallel-size", "tensor_parallel_size")  # how engines spell it, and imported tables
BATCHED_METRICS = ("request_throughput", "overall_throughput")  # that a table of batches has beside speed
DECIMALS = 2  # as in such tables
MAX_CAUSE = 120
MAX_SETTINGS = 120


@dataclass(frozen=True)
class _Group:
    """One table: a model on an engine at one batch size and output length."""

    model: str
    engine: str
    concurrency: str
    output: str
    batched: bool


@dataclass(frozen=True)
class _Row:
    cell: Cell
    found: CellSummary | None
    reason: str  # why it has no figures


def vendor_rst(summary: StudySummary, lock: Lock) -> str:
    parts = [heading(f"Speed Benchmark: {rst(summary.study.name)}", "="), *_opening(summary, lock)]
    groups: dict[_Group, list[_Row]] = {}
    for row in _rows(summary):
        groups.setdefault(_group(summary, row.cell), []).append(row)
    for group, rows in groups.items():
        shape = f"batch size {rst(group.concurrency)}, {rst(group.output)} tokens generated"
        title = f"{rst(group.model)} ({rst(group.engine)}), {shape}"
        parts += [heading(title, "-"), _table(summary, lock, group, rows)]
    return "\n\n".join(parts) + "\n"


def _opening(summary: StudySummary, lock: Lock) -> list[str]:
    host = lock.host
    cores = f", {host.cores} cores" if host.cores else ""
    machine = [one.name for one in host.accelerators]
    machine += [f"{host.cpu_model}{cores}"] if host.cpu_model else []
    facts = [f"-  {rst(name)}" for name in machine] or [f"-  machine: {UNKNOWN}"]
    facts += [f"-  {show_bytes(host.memory_bytes)} of memory"] if host.memory_bytes else []
    versions: dict[str, None] = {}
    for one in summary.contenders:
        setup = _setup(summary, one.contender)
        versions.update({f"-  {rst(setup.engine)} {rst(version)}": None for version in one.engine_versions})
    measure = summary.study.measure
    ran = "Imported; according to its source it was measured" if summary.imported_from else "Measured by bitbench"
    return [
        *([rst(summary.study.description)] if summary.study.description else []),
        f"{ran} on:",
        "\n".join([*facts, *versions]),
        f"Speed is output tokens per second; in brackets the {percent(measure.confidence)} interval of the mean. "
        f"``n`` is starts of the engine / trials. {UNKNOWN} is unknown.",
    ]


def _rows(summary: StudySummary) -> list[_Row]:
    """All cells that were asked for, by input length and then in the order of the study."""
    found = {cell.cell: cell for cell in summary.cells}
    refused = {one.cell: one for one in summary.refusals}
    cells = dict.fromkeys([*found, *refused])
    rows = []
    for cell in cells:
        if cell in found:
            failures = outcomes_of(found[cell])
            cause = next((group.failure.cause for group in found[cell].failures), "")
            has_result = "output_throughput" in found[cell].metrics
            reason = f"{failures}: {cause}" if failures and not has_result else "" if has_result else "not run"
        else:
            reason = f"{'not made' if refused[cell].was_tried else 'refused'}: {refused[cell].reason}"
        rows.append(_Row(cell, found.get(cell), reason))
    order = list(dict.fromkeys(cell.contender for cell in cells))
    return sorted(rows, key=lambda row: (_input_length(summary, row.cell), order.index(row.cell.contender)))


def _input_length(summary: StudySummary, cell: Cell) -> float:
    tokens = summary.study.workload(cell.workload).input_tokens
    return tokens if isinstance(tokens, int) else float("inf")


def _group(summary: StudySummary, cell: Cell) -> _Group:
    workload = summary.study.workload(cell.workload)
    model, _, quantization = cell.contender.variant.rpartition("/")
    known = "concurrency" not in workload.unknown and not workload.open_loop
    return _Group(
        model or quantization,
        _setup(summary, cell.contender).engine,
        str(workload.concurrency) if known else UNKNOWN,
        UNKNOWN if "output_tokens" in workload.unknown else show_length(workload.output_tokens),
        batched=workload.open_loop or workload.concurrency > 1,
    )


def _setup(summary: StudySummary, contender: Contender) -> EngineSetup:
    return summary.study.engine(contender.engine)


def _table(summary: StudySummary, lock: Lock, group: _Group, rows: Sequence[_Row]) -> str:
    memory, quality = memory_metric(summary), QualityColumn(summary)
    where = "Device" if memory.startswith("device") else "Host"
    header = ["Model", "Input Length", "Quantization", "Devices", "Speed (tokens/s)"]
    header += ["Requests/s", "All tokens/s"] if group.batched else []
    header += [f"{where} memory (GB)", *_quality_title(quality), "n", "Settings", "Note"]
    lines = []
    for row in rows:
        contender = row.cell.contender
        metrics = row.found.metrics if row.found else {}
        workload = summary.study.workload(row.cell.workload)
        length = UNKNOWN if "input_tokens" in workload.unknown else show_length(workload.input_tokens)
        speed = metrics.get("output_throughput")
        line = [rst(group.model), rst(length), rst(contender.variant.rpartition("/")[2])]
        figures = [_speed(speed)]
        figures += [_mean(metrics.get(metric)) for metric in BATCHED_METRICS] if group.batched else []
        figures += [_gigabytes(metrics.get(memory)), *([quality.of(contender)] if quality.title else [])]
        line += [_devices(summary, lock, contender), *map(_text, figures)]
        line += [f"{speed.n_instances} / {speed.n_trials}" if speed else UNKNOWN]
        lines.append([*line, _settings(summary, contender), _note(row)])
    return grid_table(header, lines, merged=2)


def _quality_title(quality: QualityColumn) -> list[str]:
    unit = scale_for(quality.unit, ()).unit
    return [rst(f"{quality.title} ({unit})" if unit else quality.title)] if quality.title else []


def _mean(estimate: Estimate | None) -> Quantity | None:
    return Quantity(estimate.mean, decimals=DECIMALS) if estimate else None


def _speed(estimate: Estimate | None) -> Quantity | None:
    mean = _mean(estimate)
    if estimate is None or estimate.interval is None or mean is None:
        return mean
    return replace(mean, low=estimate.interval.low, high=estimate.interval.high)


def _gigabytes(estimate: Estimate | None) -> Quantity | None:
    return Quantity(estimate.mean / 1e9, decimals=DECIMALS) if estimate else None


def _text(quantity: Quantity | None) -> str:
    """Without its unit, which stands in the title."""
    return UNKNOWN if quantity is None else written(quantity, scale_for(quantity.unit, ())).text


def _devices(summary: StudySummary, lock: Lock, contender: Contender) -> str:
    """As many as its arguments say; one where the machine has some; else the processor."""
    chosen = _setup(summary, contender).args
    counts = [str(chosen[name]) for name in DEVICE_COUNTS if name in chosen]
    if counts:
        return rst(counts[0])
    if lock.host.accelerators:
        return "1"
    return "CPU" if lock.host.cpu_model else UNKNOWN


def _settings(summary: StudySummary, contender: Contender) -> str:
    setup = _setup(summary, contender)
    chosen = {**setup.args, **setup.env}
    shown = [
        f"{name}={'•••' if is_secret(name) else value}" for name, value in chosen.items() if name not in DEVICE_COUNTS
    ]
    named = setup.name != setup.engine and summary.imported_from is None
    return rst(f"{f'{setup.name}: ' if named else ''}{' '.join(shown) or 'default'}", MAX_SETTINGS)


def _note(row: _Row) -> str:
    if row.reason:
        return rst(row.reason, MAX_CAUSE)
    assert row.found is not None
    flagged = {outlier.trial_id for outlier in row.found.outliers}
    failed = outcomes_of(row.found)
    notes = [f"{plural(len(flagged), 'outlier')} flagged"] if flagged else []
    notes += [f"besides: {failed}"] if failed else []
    return rst("; ".join(notes))
