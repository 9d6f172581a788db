"""The report's section on a study's machines."""

from bitbench.analysis.results.summary import StudySummary
from bitbench.features.fleet.computing import MachineFactor
from bitbench.reports.document.model import Name, Section, Unit
from bitbench.reports.document.words import number_column, paragraph, say, table, words_column

EXPLANATION = (
    "Each block ran on one machine with all of its configs, so ratios are within machines. "
    "The interval of a single config includes the variation between these machines, "
    "and says nothing about others."
)


def machines_section(factor: MachineFactor, _: StudySummary) -> Section:
    """Return a table of the machines with their relative speeds."""
    machines = table(
        factor.machines,
        words_column("Machine", lambda machine: Name(machine.name)),
        number_column("Blocks", Unit.COUNT, lambda machine: machine.blocks),
        number_column("Trials", Unit.COUNT, lambda machine: machine.trials),
        number_column("Speed, relative", Unit.RATIO, lambda machine: machine.speed),
    )
    return Section(say("Machines"), (machines, paragraph(EXPLANATION)), in_terminal=True)
