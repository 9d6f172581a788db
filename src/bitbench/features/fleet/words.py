"""What a report says of several machines."""

from bitbench.analysis.results.summary import StudySummary
from bitbench.features.fleet.computing import MachineFactor
from bitbench.reports.document.model import Name, Paragraph, Quantity, Section, Unit
from bitbench.reports.document.words import number_column, paragraph, say, strong, table, words_column

# Of one class: turbo, memory modules and neighbours make tens of percent.
MOST_APART = 2.0


def machines_section(factor: MachineFactor, _: StudySummary) -> Section:
    machines = table(
        factor.machines,
        words_column("Machine", lambda machine: Name(machine.name)),
        number_column("Blocks", Unit.COUNT, lambda machine: machine.blocks),
        number_column("Trials", Unit.COUNT, lambda machine: machine.trials),
        number_column("Speed, relative", Unit.RATIO, lambda machine: machine.speed),
    )
    said = (
        "Each block ran on one machine with all of its configs, so ratios are within machines. The interval of a "
        "single config's figure includes the variation between these machines, and says nothing about others."
    )
    share = paragraph(
        "Of the variation from block to block, ",
        Quantity(factor.share, Unit.SHARE),
        " is between machines (of the logarithm of the primary metric, over all points).",
    )
    shares = [share] if factor.share is not None else []
    return Section(say("Machines"), (machines, *_too_far_apart(factor), *shares, paragraph(said)), in_terminal=True)


def _too_far_apart(factor: MachineFactor) -> list[Paragraph]:
    """A driver believes times that fit its own clock; that machines of one class agree is all that speaks for them."""
    slow, *_, fast = sorted(factor.machines, key=lambda machine: machine.speed)
    if fast.speed < MOST_APART * slow.speed:
        return []
    ratio = Quantity(fast.speed / slow.speed, Unit.RATIO)
    lead = strong(Name(fast.name), " reports ", ratio, " the speed of ", Name(slow.name), ".")
    return [
        paragraph(lead, " Machines of one class do not differ by so much: check both before you use these figures.")
    ]
