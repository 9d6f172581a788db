"""lock.json: the resolved study, with the conditions and the machine of the measurement."""

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field

from bitbench.study.base import Record
from bitbench.study.hardware import Capability, Level, find_hardware_level, parse_capability
from bitbench.study.objective import SearchLimits
from bitbench.study.plan import Plan

# Facts of a host that change results. Others, such as the kernel version, are only recorded.
TELLING_FACTS = (
    "cpu_model",
    "cpu_flags",
    "cores",
    "threads",
    "governor",
    "memory_bytes",
    "accelerators",
)

# Memory of machines of one class may differ by this share, since the kernel reserves a varying
# part.
SAME_MEMORY = 0.02


class Accelerator(Record):
    """A GPU or another device of a host."""

    name: str
    memory_bytes: int | None = None
    driver: str | None = None
    runtime: str | None = None
    capability: str | None = None  # compute capability, such as 8.9
    ecc: bool | None = None  # memory that corrects errors, which costs bandwidth on some devices
    mig: bool | None = None  # divided into instances
    power_limit_w: float | None = None
    uuid: str | None = None  # identifies the device, is recorded but not compared

    def __str__(self) -> str:
        facts = []
        for name, value in self:
            if name not in ("name", "uuid") and value is not None:
                facts.append(f"{name} {value}")
        if not facts:
            return self.name
        return f"{self.name} ({', '.join(facts)})"

    @property
    def compute_capability(self) -> Capability | None:
        if self.capability is None:
            return None
        return parse_capability(self.capability)


class HostFacts(Record):
    """The facts about a host. A fact is None if it is unknown, for example in an imported file."""

    cpu_model: str | None = None
    cpu_flags: tuple[str, ...] = ()  # the flags that decide which kernels can run
    cores: int | None = None
    threads: int | None = None
    numa_nodes: int | None = None
    governor: str | None = None
    memory_bytes: int | None = None
    os: str | None = None
    kernel: str | None = None
    python: str | None = None
    virtualization: str | None = None
    accelerators: tuple[Accelerator, ...] = ()  # the devices that engines see
    # how CUDA counts them: PCI_BUS_ID, as NVML does, or FASTEST_FIRST
    cuda_device_order: str | None = None

    @property
    def level(self) -> Level | None:
        """The best instruction level of the processor, such as AVX-512. None if it is unknown."""
        return find_hardware_level(self.cpu_flags)

    def differences(self, other: "HostFacts") -> tuple[str, ...]:
        """Return the names of the facts that put two machines into different classes."""
        return tuple(name for name in TELLING_FACTS if not self._is_same_fact(other, name))

    def _is_same_fact(self, other: "HostFacts", name: str) -> bool:
        if name == "memory_bytes" and self.memory_bytes and other.memory_bytes:
            return abs(self.memory_bytes / other.memory_bytes - 1) <= SAME_MEMORY
        return self.shown(name) == other.shown(name)

    def shown(self, name: str) -> str | None:
        """Return a fact as text, or None if it is unknown."""
        value = getattr(self, name)
        if isinstance(value, tuple):
            return ", ".join(map(str, value)) or None
        if value in (None, ""):
            return None
        return str(value)


DEFAULT = "the engine's default"
LOCK_FORMAT: Literal[1] = 1
# History of LOCK_FORMAT:
#   1  first published form


def _iter_changed_values(
    kind: str, before: Mapping[str, object], after: Mapping[str, object]
) -> Iterator[str]:
    """Yield a sentence for each value that differs from an earlier one. New names do not count."""
    for name, value in after.items():
        if before.get(name) not in (None, value):
            yield f"{kind} {name} has changed"


class Lock(Record):
    """The file written before the first trial. A later run adds facts, and changes none."""

    format: int = LOCK_FORMAT
    bitbench: str | None = None  # the version that measured
    created_at: str | None = None  # wall clock, ISO 8601 in UTC. None if imported
    busy_cores: float | None = None  # cores busy with other work just before the start
    host: HostFacts = HostFacts()
    # every machine that measured, by name. All are of one class
    hosts: dict[str, HostFacts] = Field(default_factory=dict)
    # package versions, by environment
    environments: dict[str, dict[str, str]] = Field(default_factory=dict)
    # content hashes by variant, or None if the hash could not be computed then
    variants: dict[str, str | None] = Field(default_factory=dict)
    # hashes of the texts and traces that the study reads
    files: dict[str, str] = Field(default_factory=dict)
    plan: Plan
    search: SearchLimits | None = None  # only for a study that searches for the highest rate

    def changes(self, run: "Lock") -> Iterator[str]:
        """Yield a phrase for each fact that a later run changed. New facts are not changes."""
        for name in TELLING_FACTS:
            then = self.host.shown(name)
            now = run.host.shown(name)
            if then != now:
                yield f"host {name}: {then or 'unknown'} then, {now or 'unknown'} now"
        yield from self._iter_changed_dtypes(run)
        yield from _iter_changed_values("environment", self.environments, run.environments)
        yield from _iter_changed_values("variant", self.variants, run.variants)
        yield from _iter_changed_values("file", self.files, run.files)

    def _iter_changed_dtypes(self, run: "Lock") -> Iterator[str]:
        chosen = self.plan.chosen_dtypes
        chosen_now = run.plan.chosen_dtypes
        if chosen == chosen_now:
            return
        both = set(self.plan.configs) & set(run.plan.configs)
        for config in sorted(both, key=lambda config: config.name):
            then = chosen.get(config, DEFAULT)
            now = chosen_now.get(config, DEFAULT)
            if then != now:
                yield f"type that {config.name} computes in: {then} then, {now} now"

    def merge_run(self, run: "Lock") -> "Lock":
        """Return this lock with the facts that a later run adds. All other facts stay."""
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
