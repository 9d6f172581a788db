"""How each contender starts, and how slow its first trial is: kept apart from the figures."""

from bitbench.core.found.summary import StudySummary
from bitbench.report.document.model import Block, Name, Row, Section, Table, Unit
from bitbench.report.document.words import number_column, paragraph, say, words_column
from bitbench.report.quantities import count, over_instances, seconds


def warm_up_section(summary: StudySummary) -> Section | None:
    """None for an import, of which no start is known."""
    if summary.imported_from:
        return None
    blocks: list[Block] = [
        paragraph("Not included in the figures above. Mean over instances (lowest – highest)."),
        _starts(summary),
    ]
    first = _first_trials(summary)
    if first.rows:
        blocks += [paragraph("Latency of the first trial in each instance and of the trials that count:"), first]
    return Section(say("Warm-up"), tuple(blocks))


def _starts(summary: StudySummary) -> Table:
    columns = (
        words_column("Contender"),
        number_column("Ready"),
        number_column("Start to ready", Unit.SECONDS),
        number_column("Weights", Unit.SECONDS),
        number_column("Compile", Unit.SECONDS),
        number_column("Memory idle", Unit.BYTES),
    )
    rows = [
        Row(
            (
                say(Name(one.contender.name)),
                say(f"{one.instances_ready} of {one.instances}"),
                over_instances(one.ready_s, Unit.SECONDS),
                over_instances(one.weight_load_s, Unit.SECONDS),
                over_instances(one.compile_s, Unit.SECONDS),
                over_instances(one.idle_memory_bytes, Unit.BYTES),
            )
        )
        for one in summary.contenders
    ]
    return Table(columns, tuple(rows))


def _first_trials(summary: StudySummary) -> Table:
    columns = (
        words_column("Contender"),
        words_column("Workload"),
        number_column("Warm-up trials", Unit.COUNT),
        number_column("First", Unit.SECONDS),
        number_column("Later", Unit.SECONDS),
    )
    rows = [
        Row(
            (
                say(Name(cell.cell.contender.name)),
                say(Name(cell.cell.workload)),
                count(cell.warm_up.trials),
                seconds(cell.warm_up.first_latency_s),
                seconds(cell.warm_up.later_latency_s),
            )
        )
        for cell in summary.cells
        if cell.warm_up.trials
    ]
    return Table(columns, tuple(rows))
