"""The machine as a factor, where blocks ran on several."""

from bitbench.core.found.summary import MachineFactor, StudySummary
from bitbench.report.document.model import Name, Paragraph, Quantity, Section, Unit
from bitbench.report.document.tables import number_column, table, words_column
from bitbench.report.document.words import paragraph, say, strong

# Of one class: turbo, memory modules and neighbours make tens of percent.
MOST_APART = 2.0


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
    shares = [share] if found.share is not None else []
    return Section(say("Machines"), (machines, *_too_far_apart(found), *shares, paragraph(said)), in_terminal=True)


def _too_far_apart(found: MachineFactor) -> list[Paragraph]:
    """A driver believes times that fit its own clock; that machines of one class agree is all that speaks for them."""
    slow, *_, fast = sorted(found.machines, key=lambda one: one.speed)
    if fast.speed < MOST_APART * slow.speed:
        return []
    ratio = Quantity(fast.speed / slow.speed, Unit.RATIO)
    lead = strong(Name(fast.name), " reports ", ratio, " the speed of ", Name(slow.name), ".")
    return [
        paragraph(lead, " Machines of one class do not differ by so much: check both before you use these figures.")
    ]
