"""Where it was measured: the machine, how quiet it was, and which packages ran."""

from bitbench.core.recorded.host import Accelerator, HostFacts, HostNoise
from bitbench.core.recorded.lock import Lock
from bitbench.ground.units import UNKNOWN
from bitbench.report.document.model import Name, Phrase, Quantity, Row, Section, Table, TableCell, Unit
from bitbench.report.document.words import joined, names, paragraph, plural, say, words_column
from bitbench.report.quantities import size


def host_section(lock: Lock) -> Section:
    busy = None if lock.busy_cores is None else Quantity(lock.busy_cores, digits=2, note="just before it began")
    facts: list[tuple[str, TableCell]] = [
        *_machine(lock.host),
        ("Noise of fixed work", None if lock.noise is None else _noise(lock.noise)),
        ("Cores that other work kept busy", busy),
        ("Measured", _words(lock.created_at)),
        ("bitbench", _words(lock.bitbench)),
    ]
    rows = tuple(Row((say(label), value)) for label, value in facts)
    environments = [
        paragraph("Environment ", Name(name), ": ", _packages(packages)) for name, packages in lock.environments.items()
    ]
    table = Table((words_column("Fact"), words_column("Value")), rows)
    return Section(say("Where it was measured"), (table, *environments))


def _machine(host: HostFacts) -> list[tuple[str, TableCell]]:
    return [
        ("Processor", _words(host.cpu_model)),
        ("Cores / threads", say(f"{host.cores or UNKNOWN} / {host.threads or UNKNOWN}")),
        ("Flags that choose kernels", _words(", ".join(host.cpu_flags))),
        ("Governor", _words(host.governor)),
        ("NUMA nodes", _words(host.numa_nodes)),
        ("Memory", size(host.memory_bytes)),
        *(("Accelerator", _accelerator(one)) for one in host.accelerators),
        ("Virtualization", _words(host.virtualization)),
        ("System", _words(" · ".join(part for part in (host.os, host.kernel) if part))),
        ("Python", _words(host.python)),
    ]


def _words(value: str | int | None) -> Phrase | None:
    return None if value in (None, "") else say(str(value))


def _accelerator(one: Accelerator) -> Phrase:
    return joined([part for part in (one.name, size(one.memory_bytes), one.driver, one.runtime) if part], ", ")


def _noise(noise: HostNoise) -> Phrase:
    """Spread is (90th − 10th percentile) / median, worst is slowest / median − 1."""

    def kind(name: str, spread: float, worst: float) -> Phrase:
        return say(f"{name} ", Quantity(spread, Unit.SHARE), " spread, ", Quantity(worst, Unit.SHARE), " worst")

    compute = kind("compute", noise.compute_spread, noise.compute_worst)
    memory = kind("memory", noise.memory_spread, noise.memory_worst)
    return say(compute, "; ", memory, f" ({plural(noise.repetitions, 'repetition')})")


def _packages(versions: dict[str, str]) -> Phrase:
    return joined(names(f"{package} {version}" for package, version in versions.items()), ", ") or say(UNKNOWN)
