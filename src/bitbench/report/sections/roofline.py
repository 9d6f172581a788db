"""How near each cell comes to what the machine can do: the roofline of the model."""

from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.profile import Phase
from bitbench.core.recorded.roof import Bound, MachineRoof
from bitbench.ground.units import show_percent, show_seconds, significant
from bitbench.report.document.text import code, table

COUNTED = (
    "Counted for a step of the whole batch: weights once, keys and values, inputs and outputs of the linear layers, "
    "products and attention. Not counted: norms, sampling, and what an engine does besides. A decode step is timed as "
    "the time per output token, a prefill as the time until all requests of the batch have their first token."
)
BOUNDS = {Bound.MEMORY: "reading", Bound.ARITHMETIC: "computing"}


def roofline_section(summary: StudySummary) -> str:
    """Empty where the machine's roof was not measured."""
    if summary.roof is None or not summary.cell_roofs:
        return ""
    rows = []
    for one in summary.cell_roofs:
        rows.append(
            [
                code(one.cell.workload),
                "prefill" if one.phase is Phase.PREFILL else "decode",
                code(one.cell.contender.name),
                f"{one.cost.size_bytes / 1e6:,.0f}",
                significant(one.cost.flops / 1e9),
                show_seconds(one.attainable.seconds),
                BOUNDS[one.attainable.bound],
                show_seconds(one.step_s),
                show_percent(one.share),
            ]
        )
    header = ["Workload", "Phase", "Contender", "MB", "Gflop", "Fastest here", "Bound by", "Measured", "Share reached"]
    return "\n\n".join(
        ["## How near to the roof", roof_sentence(summary.roof), table(header, rows, left=(0, 1, 2, 6)), COUNTED]
    )


def roof_sentence(roof: MachineRoof) -> str:
    int8 = f", {significant(roof.int8_ops_per_s.best / 1e9)} Gop/s in int8" if roof.int8_ops_per_s else ""
    return (
        f"This machine reads {significant(roof.read_bytes_per_s.best / 1e9)} GB/s and computes "
        f"{significant(roof.flops_per_s.best / 1e9)} Gflop/s in bfloat16{int8} with {roof.threads} threads; the "
        f"middle of the readings is {show_percent(roof.read_bytes_per_s.spread)} and "
        f"{show_percent(roof.flops_per_s.spread)} below these best ones."
    )
