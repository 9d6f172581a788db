"""The figure of a sweep: output throughput against the time to first token."""

from bitbench.core.summary import CellSummary, Estimate, StudySummary
from bitbench.report.figures import scale_for
from bitbench.report.plot import Mark, Series, svg
from bitbench.report.sweep import level, number_of, points

LINES = {"ttft_p50_s": "TTFT p50", "ttft_p99_s": "TTFT p99"}
X = "output_throughput"


def sweep_figure(summary: StudySummary) -> str | None:
    """SVG; None where no point has a result."""
    cells = [cell for cell in points(summary) if X in cell.metrics and all(line in cell.metrics for line in LINES)]
    if not cells:
        return None
    definition = summary.definitions["ttft_p50_s"]
    scale = scale_for(definition, [cell.metrics[line].mean for cell in cells for line in LINES])
    series = [
        Series(name, [_mark(summary, cell, line, scale.factor) for cell in cells]) for line, name in LINES.items()
    ]
    unit = "requests/s" if summary.study.workloads[0].open_loop else "requests in flight"
    title = f"{summary.contenders[0].contender.name}: throughput and time to first token, by {unit}"
    return svg(title, "output tokens/s", f"time to first token ({scale.unit})", series)


def _mark(summary: StudySummary, cell: CellSummary, line: str, factor: float) -> Mark:
    return Mark(
        x=cell.metrics[X].mean,
        y=cell.metrics[line].mean / factor,
        x_range=_range(cell.metrics[X], 1.0),
        y_range=_range(cell.metrics[line], factor),
        label=number_of(level(summary.study.workload(cell.cell.workload))),
    )


def _range(estimate: Estimate, factor: float) -> tuple[float, float] | None:
    interval = estimate.interval
    return None if interval is None else (interval.low / factor, interval.high / factor)
