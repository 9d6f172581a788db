"""lock.json: what a study was resolved to, and under which conditions it is measured."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from bitbench.records.host import TELLING_FACTS, HostFacts, HostNoise
from bitbench.study.base import Record
from bitbench.study.plan import Plan
from bitbench.study.search import SearchLimits

DEFAULT = "the engine's default"
LOCK_FORMAT: Literal[1] = 1
# History of LOCK_FORMAT:
#   1  first published form


class Lock(Record):
    """Written before the first trial. Facts that only a later run knows are added; none is ever changed."""

    format: int = LOCK_FORMAT
    bitbench: str | None = None  # the version that measured
    created_at: str | None = None  # wall clock, ISO 8601 in UTC; None: imported
    busy_cores: float | None = None  # that other work kept busy just before it began
    idle_power_w: float | None = None  # of the processors and their memory, then; None: their counters are unreadable
    noise: HostNoise | None = None
    host: HostFacts = HostFacts()
    hosts: dict[str, HostFacts] = Field(default_factory=dict)  # every machine that measured, by name; all of one class
    environments: dict[str, dict[str, str]] = Field(default_factory=dict)  # package versions, by environment
    variants: dict[str, str | None] = Field(default_factory=dict)  # content hashes; None: could not be made then
    files: dict[str, str] = Field(default_factory=dict)  # hashes of the texts and traces that the study reads
    plan: Plan
    search: SearchLimits | None = None  # of a study that looks for the highest rate

    def changes(self, run: "Lock") -> Iterator[str]:
        """What a later run finds otherwise, each in a few words; what this lock does not know yet is no change."""
        for name in TELLING_FACTS:
            then, now = self.host.shown(name), run.host.shown(name)
            if then != now:
                yield f"host {name}: {then or 'unknown'} then, {now or 'unknown'} now"
        chosen, chosen_now = self.plan.chosen_dtypes, run.plan.chosen_dtypes
        if chosen != chosen_now:
            both = set(self.plan.configs) & set(run.plan.configs)
            for config in sorted(both, key=lambda config: config.name):
                before, after = chosen.get(config, DEFAULT), chosen_now.get(config, DEFAULT)
                if before != after:
                    yield f"type that {config.name} computes in: {before} then, {after} now"
        for kind, known, found in (
            ("environment", self.environments, run.environments),
            ("variant", self.variants, run.variants),
            ("file", self.files, run.files),
        ):
            yield from (f"{kind} {name} has changed" for name in found if known.get(name) not in (None, found[name]))

    def resumed(self, run: "Lock") -> "Lock":
        """This lock with what a later run adds. What that run has no point for keeps its facts: a third may have."""
        return self.model_copy(
            update={
                "bitbench": run.bitbench,
                "host": run.host,
                "hosts": {**self.hosts, **run.hosts},
                "environments": {**self.environments, **run.environments},
                "variants": {**self.variants, **run.variants},
                "files": {**self.files, **run.files},
                "plan": run.plan,
            }
        )
