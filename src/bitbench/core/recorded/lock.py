"""lock.json: what a study was resolved to, and under which conditions it is measured."""

from typing import Literal

from pydantic import Field

from bitbench.core.asked.search import SearchLimits
from bitbench.core.base import Record
from bitbench.core.cell import Plan
from bitbench.core.recorded.host import HostFacts, HostNoise

LOCK_FORMAT: Literal[1] = 1
# History of LOCK_FORMAT:
#   1  first published form; a lock without `format` is of this form


class Lock(Record):
    """Written before the first trial. Facts that only a later run knows are added; none is ever changed."""

    format: int = LOCK_FORMAT
    bitbench: str | None = None  # the version that measured
    created_at: str | None = None  # wall clock, ISO 8601 in UTC; None: imported
    busy_cores: float | None = None  # that other work kept busy just before it began
    noise: HostNoise | None = None
    host: HostFacts = HostFacts()
    environments: dict[str, dict[str, str]] = Field(default_factory=dict)  # package versions, by environment
    variants: dict[str, str] = Field(default_factory=dict)  # content hashes
    files: dict[str, str] = Field(default_factory=dict)  # hashes of the texts and traces that the study reads
    plan: Plan
    search: SearchLimits | None = None  # of a study that looks for the highest rate
