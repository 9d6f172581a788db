"""The report's section on a study's machines."""

from bitbench.analysis.results.summary import StudySummary
from bitbench.features.fleet.computing import MachineFactor
from bitbench.reports.document.model import Name, Section, Unit
from bitbench.reports.document.words import (
    build_table,
    make_number_column,
    make_words_column,
    paragraph,
    say,
)

EXPLANATION = (
    "Each block ran on one machine with all of its configs, so ratios are within machines. "
    "The interval of a single config includes the variation between these machines, "
    "and says nothing about others."
)


def machines_section(factor: MachineFactor, _: StudySummary) -> Section:
    """Return a table of the machines with their relative speeds."""
    machines = build_table(
        factor.machines,
        make_words_column("Machine", lambda machine: Name(machine.name)),
        make_number_column("Blocks", Unit.COUNT, lambda machine: machine.blocks),
        make_number_column("Trials", Unit.COUNT, lambda machine: machine.trials),
        make_number_column("Speed, relative", Unit.RATIO, lambda machine: machine.speed),
    )
    return Section(say("Machines"), (machines, paragraph(EXPLANATION)), in_terminal=True)
