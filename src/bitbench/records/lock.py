"""lock.json: what a study was resolved to, and under which conditions, on which machine, it is measured."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from bitbench.study.base import Record
from bitbench.study.hardware import Capability, Level, hardware_level, parse_capability
from bitbench.study.objective import SearchLimits
from bitbench.study.plan import Plan

# Facts of a host that change figures; others (kernel version, Python) are recorded but forbid nothing.
TELLING_FACTS = (
    "cpu_model",
    "cpu_flags",
    "cores",
    "threads",
    "governor",
    "memory_bytes",
    "accelerators",
)

# Of one class: what the kernel keeps for itself differs a little from boot to boot.
SAME_MEMORY = 0.02


class Accelerator(Record):
    name: str
    memory_bytes: int | None = None
    driver: str | None = None
    runtime: str | None = None
    capability: str | None = None  # compute capability, such as 8.9
    ecc: bool | None = None  # memory that corrects errors, which costs bandwidth on some devices
    mig: bool | None = None  # divided into instances
    power_limit_w: float | None = None
    uuid: str | None = None  # which one of its kind: recorded, and no part of what is compared

    def __str__(self) -> str:
        known = [
            f"{name} {value}"
            for name, value in self
            if name not in ("name", "uuid") and value is not None
        ]
        return f"{self.name} ({', '.join(known)})" if known else self.name

    @property
    def compute_capability(self) -> Capability | None:
        return None if self.capability is None else parse_capability(self.capability)


class HostFacts(Record):
    """None where it is unknown, as for an imported file."""

    cpu_model: str | None = None
    cpu_flags: tuple[str, ...] = ()  # those that decide which kernels can run
    cores: int | None = None
    threads: int | None = None
    numa_nodes: int | None = None
    governor: str | None = None
    memory_bytes: int | None = None
    os: str | None = None
    kernel: str | None = None
    python: str | None = None
    virtualization: str | None = None
    accelerators: tuple[Accelerator, ...] = ()  # those that engines see
    cuda_device_order: str | None = (
        None  # how CUDA counts them: PCI_BUS_ID, as NVML does, or FASTEST_FIRST
    )

    @property
    def level(self) -> Level | None:
        return hardware_level(self.cpu_flags)

    def differences(self, other: "HostFacts") -> tuple[str, ...]:
        """The telling facts in which two machines are not of one class."""
        return tuple(name for name in TELLING_FACTS if not self._agrees(other, name))

    def _agrees(self, other: "HostFacts", name: str) -> bool:
        if name == "memory_bytes" and self.memory_bytes and other.memory_bytes:
            return abs(self.memory_bytes / other.memory_bytes - 1) <= SAME_MEMORY
        return self.shown(name) == other.shown(name)

    def shown(self, name: str) -> str | None:
        """One fact as text; None where it is not known."""
        value = getattr(self, name)
        if isinstance(value, tuple):
            return ", ".join(map(str, value)) or None
        return None if value in (None, "") else str(value)


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
    host: HostFacts = HostFacts()
    hosts: dict[str, HostFacts] = Field(
        default_factory=dict
    )  # every machine that measured, by name; all of one class
    environments: dict[str, dict[str, str]] = Field(
        default_factory=dict
    )  # package versions, by environment
    variants: dict[str, str | None] = Field(
        default_factory=dict
    )  # content hashes; None: could not be made then
    files: dict[str, str] = Field(
        default_factory=dict
    )  # hashes of the texts and traces that the study reads
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
            yield from (
                f"{kind} {name} has changed"
                for name in found
                if known.get(name) not in (None, found[name])
            )

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
