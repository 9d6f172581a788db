"""The machines that sent the requests, where they were several."""

from bitbench.core.found.summary import StudySummary
from bitbench.report.document.model import Name, Section, Unit
from bitbench.report.document.tables import number_column, table, words_column
from bitbench.report.document.words import paragraph, say


def load_nodes_section(summary: StudySummary) -> Section | None:
    """None where one machine sent all requests."""
    if not summary.load_nodes:
        return None
    nodes = table(
        summary.load_nodes,
        words_column("Machine", lambda node: Name(node.name)),
        number_column("Trials", Unit.COUNT, lambda node: node.trials),
        number_column("Requests", Unit.COUNT, lambda node: node.requests),
        number_column("Clock off by at most", Unit.SECONDS, lambda node: node.off_by_s),
    )
    said = (
        "Each machine sent its part of one plan on its own clock, compared with the driver's before and after "
        "each trial. A latency is a difference on one clock; only schedule and span of a trial are off by as much."
    )
    return Section(say("Load nodes"), (nodes, paragraph(said)))
