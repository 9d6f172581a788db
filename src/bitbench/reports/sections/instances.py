"""Every start of an engine: what it ran on and how it went."""

from collections.abc import Sequence

from bitbench.records.trial import InstanceRecord
from bitbench.reports.document.model import Details, Name, Section, Unit
from bitbench.reports.document.tables import ColumnOf, number_column, table, words_column
from bitbench.reports.document.words import plural, say

CACHING = {True: "on", False: "off", None: None}


def instances_section(instances: Sequence[InstanceRecord]) -> Section | None:
    """None where there is no record of a start."""
    if not instances:
        return None
    several = len({instance.host for instance in instances}) > 1
    machine: ColumnOf[InstanceRecord] = words_column("Machine", lambda one: Name(one.host) if one.host else None)
    starts = table(
        instances,
        words_column("Start", lambda one: Name(one.id)),
        words_column("Config", lambda one: Name(one.config.name)),
        number_column("Block", Unit.COUNT, lambda one: one.block),
        *([machine] if several else []),
        words_column("Outcome", lambda one: one.outcome.value),
        words_column("Start", lambda one: one.facts.start),
        number_column("Start to ready", Unit.SECONDS, lambda one: one.ready_s),
        words_column("Version", lambda one: one.facts.engine_version or None),
        words_column("Kernels it selected", lambda one: "; ".join(one.facts.kernels) or None),
        number_column("Memory idle", Unit.BYTES, lambda one: one.memory.resident_bytes),
        words_column("Prefix caching", lambda one: CACHING[one.facts.prefix_caching]),
    )
    return Section(say("Every start"), (Details(plural(len(instances), "start"), (starts,)),))
