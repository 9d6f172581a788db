"""How near each cell comes to what the machine can do: the roofline of the model."""

from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.profile import Phase
from bitbench.core.recorded.roof import Bound, CellRoof, MachineRoof
from bitbench.report.document.model import Name, Paragraph, Phrase, Quantity, Row, Section, Table, Unit
from bitbench.report.document.words import number_column, plural, say, small_print, words_column
from bitbench.report.quantities import ROUGH, number, seconds, share

COUNTED = (
    "Counted for a step of the whole batch: weights once, keys and values, inputs and outputs of the linear layers, "
    "products and attention. Not counted: norms, sampling, and what an engine does besides. A decode step is timed as "
    "the time per output token, a prefill as the time until all requests of the batch have their first token."
)
BOUNDS = {Bound.MEMORY: "reading", Bound.ARITHMETIC: "computing"}
COLUMNS = (
    words_column("Workload"),
    words_column("Phase"),
    words_column("Contender"),
    number_column("Traffic", "MB"),
    number_column("Work", "Gflop"),
    number_column("Fastest here", Unit.SECONDS),
    words_column("Bound by"),
    number_column("Measured", Unit.SECONDS),
    number_column("Share reached", Unit.SHARE),
)


def roofline_section(summary: StudySummary) -> Section | None:
    """None where the machine's roof was not measured."""
    if summary.roof is None or not summary.cell_roofs:
        return None
    table = Table(COLUMNS, tuple(_row(one) for one in summary.cell_roofs))
    return Section(say("How near to the roof"), (Paragraph(roof_sentence(summary.roof)), table, small_print(COUNTED)))


def _row(one: CellRoof) -> Row:
    return Row(
        (
            say(Name(one.cell.workload)),
            say("prefill" if one.phase is Phase.PREFILL else "decode"),
            say(Name(one.cell.contender.name)),
            number(one.cost.size_bytes / 1e6, "MB"),
            number(one.cost.flops / 1e9, "Gflop"),
            seconds(one.attainable.seconds),
            say(BOUNDS[one.attainable.bound]),
            seconds(one.step_s),
            share(one.share),
        )
    )


def roof_sentence(roof: MachineRoof) -> Phrase:
    def billions(per_second: float, unit: str) -> Quantity:
        return Quantity(per_second / 1e9, unit, digits=ROUGH)

    int8 = say(", ", billions(roof.int8_ops_per_s.best, "Gop/s"), " in int8") if roof.int8_ops_per_s else ()
    return say(
        "This machine reads ",
        billions(roof.read_bytes_per_s.best, "GB/s"),
        " and computes ",
        billions(roof.flops_per_s.best, "Gflop/s"),
        " in bfloat16",
        int8,
        f" with {plural(roof.threads, 'thread')}. These are the best readings; the median is ",
        Quantity(roof.read_bytes_per_s.spread, Unit.SHARE),
        " and ",
        Quantity(roof.flops_per_s.spread, Unit.SHARE),
        " lower.",
    )
