"""`bitbench fleet`: machines, what each runs, and the time left."""

from bitbench.core.recorded.fleet import FleetState
from bitbench.ground.units import show_duration
from bitbench.report.document.model import Document, Name, Section, Unit
from bitbench.report.document.tables import number_column, table, words_column
from bitbench.report.document.words import paragraph, plural, say


def fleet_document(state: FleetState) -> Document:
    machines = table(
        state.machines,
        words_column("Machine", lambda one: Name(one.name)),
        words_column("State", lambda one: one.state),
        words_column("Runs", lambda one: one.works_on),
        words_column("Doing", lambda one: one.activity or None),
        number_column("Blocks", Unit.COUNT, lambda one: one.blocks),
        drop_empty=True,
    )
    left = "" if state.remaining_s is None else f"; about {show_duration(state.remaining_s)} left"
    is_study = state.trials is not None
    said = f"{plural(state.trials or 0, 'trial')} recorded{left}, as of {state.updated_at}."
    return Document(
        say("Machines"),
        (paragraph(said),) if is_study else (),
        (Section(say(plural(len(state.machines), "machine")), (machines,), in_terminal=True),),
        (),
    )
