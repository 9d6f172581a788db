"""The machine as a factor, where blocks ran on several."""

from bitbench.core.found.summary import StudySummary
from bitbench.report.document.model import Name, Quantity, Section, Unit
from bitbench.report.document.tables import number_column, table, words_column
from bitbench.report.document.words import paragraph, say


def machines_section(summary: StudySummary) -> Section | None:
    """None where one machine ran everything."""
    found = summary.machines
    if found is None:
        return None
    machines = table(
        found.machines,
        words_column("Machine", lambda one: Name(one.name)),
        number_column("Blocks", Unit.COUNT, lambda one: one.blocks),
        number_column("Trials", Unit.COUNT, lambda one: one.trials),
        number_column("Speed, relative", Unit.RATIO, lambda one: one.speed),
    )
    said = (
        "Each block ran on one machine with all of its contenders, so ratios are within machines. The interval of a "
        "single contender's figure includes the variation between these machines, and says nothing about others."
    )
    share = paragraph(
        "Of the variation from block to block, ",
        Quantity(found.share, Unit.SHARE),
        " is between machines (of the logarithm of the headline, over all cells).",
    )
    return Section(
        say("Machines"), (machines, *([share] if found.share is not None else []), paragraph(said)), in_terminal=True
    )
