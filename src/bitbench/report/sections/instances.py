"""Every start of an engine: what it ran on and how it went."""

from collections.abc import Sequence

from bitbench.core.recorded.trial import InstanceRecord
from bitbench.ground.units import UNKNOWN, show_bytes, show_seconds
from bitbench.report.document.text import code, escape, table


def instances_section(instances: Sequence[InstanceRecord]) -> str:
    """Empty where there is no record of a start."""
    if not instances:
        return ""
    rows = [
        [
            code(one.id),
            code(one.contender.name),
            str(one.block),
            one.outcome.value,
            show_seconds(one.ready_s),
            escape(one.facts.engine_version) if one.facts.engine_version else UNKNOWN,
            "; ".join(escape(kernel) for kernel in one.facts.kernels) or UNKNOWN,
            show_bytes(one.memory.resident_bytes),
            UNKNOWN if one.facts.prefix_caching is None else "on" if one.facts.prefix_caching else "off",
        ]
        for one in instances
    ]
    header = [
        "Instance",
        "Contender",
        "Block",
        "Outcome",
        "Start to ready",
        "Version",
        "Kernels it selected",
        "Memory idle",
        "Prefix caching",
    ]
    return f"## Every start\n\n{table(header, rows, left=(0, 1, 3, 5, 6, 8))}"
