"""Every start of an engine: what it ran on and how it went."""

from collections.abc import Sequence

from bitbench.core.recorded.trial import InstanceRecord
from bitbench.report.document.model import Details, Name, Phrase, Row, Section, Table, Unit
from bitbench.report.document.words import number_column, plural, say, words_column
from bitbench.report.quantities import count, seconds, size

COLUMNS = (
    words_column("Instance"),
    words_column("Contender"),
    number_column("Block", Unit.COUNT),
    words_column("Outcome"),
    number_column("Start to ready", Unit.SECONDS),
    words_column("Version"),
    words_column("Kernels it selected"),
    number_column("Memory idle", Unit.BYTES),
    words_column("Prefix caching"),
)


def instances_section(instances: Sequence[InstanceRecord]) -> Section | None:
    """None where there is no record of a start."""
    if not instances:
        return None
    table = Table(COLUMNS, tuple(_row(one) for one in instances))
    return Section(say("Every start"), (Details(plural(len(instances), "start"), (table,)),))


def _row(one: InstanceRecord) -> Row:
    caching = one.facts.prefix_caching
    return Row(
        (
            say(Name(one.id)),
            say(Name(one.contender.name)),
            count(one.block),
            say(one.outcome.value),
            seconds(one.ready_s),
            _words(one.facts.engine_version),
            _words("; ".join(one.facts.kernels)),
            size(one.memory.resident_bytes),
            None if caching is None else say("on" if caching else "off"),
        )
    )


def _words(text: str | None) -> Phrase | None:
    return say(text) if text else None
