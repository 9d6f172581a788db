"""Where it was measured: the machine, how quiet it was, and which packages ran."""

from bitbench.records.host import Accelerator, HostFacts, HostNoise
from bitbench.records.lock import Lock
from bitbench.reports.document.model import Name, Phrase, Quantity, Section
from bitbench.reports.document.tables import table, words_column
from bitbench.reports.document.words import Words, joined, names, paragraph, plural, say
from bitbench.reports.quantities import share, size
from bitbench.util.units import UNKNOWN


def host_section(lock: Lock) -> Section:
    busy = None if lock.busy_cores is None else Quantity(lock.busy_cores, digits=2, note="just before it began")
    facts: list[tuple[str, Words]] = [
        *_machine(lock.host),
        ("Noise of fixed work", None if lock.noise is None else _noise(lock.noise)),
        ("Cores that other work kept busy", busy),
        *([("Idle power", _idle(lock.idle_power_w))] if lock.idle_power_w is not None else []),
        ("Measured", lock.created_at or None),
        ("bitbench", lock.bitbench or None),
    ]
    environments = [
        paragraph("Environment ", Name(name), ": ", _packages(packages)) for name, packages in lock.environments.items()
    ]
    known = table(facts, words_column("Fact", lambda fact: fact[0]), words_column("Value", lambda fact: fact[1]))
    return Section(say("Where it was measured"), (known, *environments))


def _machine(host: HostFacts) -> list[tuple[str, Words]]:
    return [
        ("Processor", host.cpu_model or None),
        ("Cores / threads", say(f"{host.cores or UNKNOWN} / {host.threads or UNKNOWN}")),
        ("Flags that choose kernels", ", ".join(host.cpu_flags) or None),
        ("Level", host.level.shown if host.level else None),
        ("Governor", host.governor or None),
        ("NUMA nodes", None if host.numa_nodes is None else str(host.numa_nodes)),
        ("Memory", size(host.memory_bytes)),
        *(("Accelerator", _accelerator(accelerator)) for accelerator in host.accelerators),
        ("Virtualization", host.virtualization or None),
        ("System", " · ".join(part for part in (host.os, host.kernel) if part) or None),
        ("Python", host.python or None),
    ]


def _accelerator(one: Accelerator) -> Phrase:
    known = (
        one.name,
        size(one.memory_bytes),
        one.driver,
        one.runtime,
        f"compute capability {one.capability}" if one.capability else None,
        f"power limit {one.power_limit_w:g} W" if one.power_limit_w else None,
        None if one.ecc is None else f"ECC {'on' if one.ecc else 'off'}",
        "divided (MIG)" if one.mig else None,
    )
    return joined([part for part in known if part], ", ")


def _noise(noise: HostNoise) -> Phrase:
    """Spread is (90th − 10th percentile) / median, worst is slowest / median − 1."""

    def kind(name: str, spread: float, worst: float) -> Phrase:
        return say(f"{name} ", share(spread), " spread, ", share(worst), " worst")

    compute = kind("compute", noise.compute_spread, noise.compute_worst)
    memory = kind("memory", noise.memory_spread, noise.memory_worst)
    measured = f" ({plural(noise.repetitions, 'repetition')}, measured {noise.measured_at})"
    return say(compute, "; ", memory, measured)


def _idle(watts: float) -> Quantity:
    return Quantity(
        watts, "W", digits=3, note="processors and their memory, by their own counters, just before it began"
    )


def _packages(versions: dict[str, str]) -> Phrase:
    return joined(names(f"{package} {version}" for package, version in versions.items()), ", ") or say(UNKNOWN)
