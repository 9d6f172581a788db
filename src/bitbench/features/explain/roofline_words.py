"""How near each point comes to what the machine can do: the roofline of the model."""

from bitbench.analysis.results.summary import StudySummary
from bitbench.features.explain.types import Roofline
from bitbench.records.roof import Bound, MachineRoof, Readings
from bitbench.reports.document.model import Name, Paragraph, Phrase, Quantity, Section, Unit
from bitbench.reports.document.tables import number_column, table, words_column
from bitbench.reports.document.words import joined, plural, say, small_print
from bitbench.reports.quantities import number, share

COUNTED = (
    "Counted for a step of the whole batch: weights once, keys and values, inputs and outputs of the linear layers, "
    "products and attention. Not counted: norms, sampling, and what an engine does besides. A decode step is timed as "
    "the time per output token, a prefill as the time until all requests of the batch have their first token."
)
EXPERTS_COUNTED = (
    "Of a mixture's experts those are read that the tokens of a step touch if its router sends them evenly; one that "
    "prefers some experts reads less."
)
BOUNDS = {Bound.MEMORY: "reading", Bound.ARITHMETIC: "computing"}


def roofline_section(found: Roofline, _: StudySummary) -> Section:
    points = table(
        found.points,
        words_column("Workload", lambda point: Name(point.point.workload)),
        words_column("Phase", lambda point: point.phase.value),
        words_column("Config", lambda point: Name(point.point.config.name)),
        number_column("Traffic", "MB", lambda point: point.cost.size_bytes / 1e6),
        number_column("Work", "Gflop", lambda point: point.cost.flops / 1e9),
        number_column("Fastest here", Unit.SECONDS, lambda point: point.attainable.seconds),
        words_column("Bound by", lambda point: BOUNDS[point.attainable.bound]),
        number_column("Measured", Unit.SECONDS, lambda point: point.step_s),
        number_column("Share reached", Unit.SHARE, lambda point: point.share),
    )
    has_experts = any(point.cost.touched_experts is not None for point in found.points)
    counted = f"{COUNTED} {EXPERTS_COUNTED}" if has_experts else COUNTED
    return Section(say("How near to the roof"), (Paragraph(roof_sentence(found.roof)), points, small_print(counted)))


def roof_sentence(roof: MachineRoof) -> Phrase:
    def billions(rate: Readings, unit: str) -> Quantity | None:
        return number(rate.best / 1e9, unit)

    int8 = say(", ", billions(roof.int8_ops_per_s, "Gop/s"), " in int8") if roof.int8_ops_per_s else ()
    return say(
        "This machine reads ",
        billions(roof.read_bytes_per_s, "GB/s"),
        " and computes ",
        billions(roof.flops_per_s, "Gflop/s"),
        " in bfloat16, ",
        billions(roof.float32_flops_per_s, "Gflop/s"),
        " in float32",
        int8,
        f" with {plural(roof.threads, 'thread')}. These are the best readings; the median is ",
        joined([share(roof.read_bytes_per_s.spread), share(roof.flops_per_s.spread)], " and "),
        " lower.",
    )
