"""What a report says of several machines, and what `bitbench fleet` shows."""

from bitbench.analysis.results.summary import StudySummary
from bitbench.features.fleet.computing import FleetState, LoadNodes, MachineFactor
from bitbench.reports.document.model import Document, Name, Paragraph, Quantity, Section, Unit
from bitbench.reports.document.words import number_column, paragraph, plural, say, strong, table, words_column
from bitbench.util.units import show_duration

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


def load_nodes_section(found: LoadNodes, _: StudySummary) -> Section:
    nodes = table(
        found.nodes,
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


def fleet_document(state: FleetState) -> Document:
    machines = table(
        state.machines,
        words_column("Machine", lambda machine: Name(machine.name)),
        words_column("State", lambda machine: machine.state),
        words_column("Runs", lambda machine: machine.works_on),
        words_column("Doing", lambda machine: machine.activity or None),
        number_column("Blocks", Unit.COUNT, lambda machine: machine.blocks),
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
