"""How each config starts, and how slow its first tokens are: kept apart from the figures."""

from bitbench.analysis.results.summary import PointSummary, StudySummary
from bitbench.reports.document.model import Block, Name, Section, Unit
from bitbench.reports.document.tables import number_column, table, words_column
from bitbench.reports.document.words import paragraph, say
from bitbench.reports.quantities import over_instances


def warm_up_section(summary: StudySummary) -> Section | None:
    """None for an import, of which no start is known."""
    if summary.imported_from:
        return None
    starts = table(
        summary.configs,
        words_column("Config", lambda one: Name(one.config.name)),
        number_column("Ready", Unit.NONE, lambda one: say(f"{one.instances_ready} of {one.instances}")),
        number_column("Start to ready", Unit.SECONDS, lambda one: over_instances(one.ready_s, Unit.SECONDS)),
        number_column("Weights", Unit.SECONDS, lambda one: over_instances(one.weight_load_s, Unit.SECONDS)),
        number_column("Compile", Unit.SECONDS, lambda one: over_instances(one.compile_s, Unit.SECONDS)),
        number_column("Memory idle", Unit.BYTES, lambda one: over_instances(one.idle_memory_bytes, Unit.BYTES)),
    )
    blocks: list[Block] = [
        paragraph("Not included in the figures above. Mean over spawned starts (lowest – highest)."),
        starts,
    ]
    first = table(
        [point for point in summary.points if point.warm_up.trials],
        words_column("Config", lambda point: Name(point.point.config.name)),
        words_column("Workload", lambda point: Name(point.point.workload)),
        number_column("Warm-up trials", Unit.COUNT, lambda point: point.warm_up.trials),
        number_column("First", Unit.SECONDS, lambda point: point.warm_up.first_ttft_s),
        number_column("Later", Unit.SECONDS, _later),
    )
    if first.rows:
        blocks += [paragraph("TTFT in the warm-up of each start and in the trials that count:"), first]
    return Section(say("Warm-up"), tuple(blocks))


def _later(point: PointSummary) -> float | None:
    """As in the table of its workload, where a start counts once however many trials it has."""
    counted = point.metrics.get("ttft_s")
    return counted.value if counted else point.warm_up.later_ttft_s
