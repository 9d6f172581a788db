"""What the figures rest on: what was run, each start of it and how long that took, and the machine."""

from collections.abc import Iterator, Mapping, Sequence

from bitbench.analysis.results.summary import ConfigSummary, PointSummary, StudySummary
from bitbench.records.host import Accelerator, HostFacts, HostNoise
from bitbench.records.lock import Lock
from bitbench.records.trial import InstanceRecord, KernelPath
from bitbench.reports.document.model import (
    Block,
    CodeBlock,
    Heading,
    Name,
    Paragraph,
    Phrase,
    Quantity,
    Section,
    Table,
    Unit,
)
from bitbench.reports.document.tables import ColumnOf, number_column, table, words_column
from bitbench.reports.document.words import Words, bullets, joined, listing, names, paragraph, plural, say, strong
from bitbench.reports.grouping import grouped
from bitbench.reports.quantities import over_instances, share, size
from bitbench.study.imported import ImportSource
from bitbench.study.plan import Support
from bitbench.study.secrets import is_secret
from bitbench.study.study import EngineSetup
from bitbench.util.units import UNKNOWN


def source(origin: ImportSource) -> Phrase:
    """`result.json` of vllm"""
    return say(listing(names(file.name for file in origin.files)), f" of {origin.tool}")


def imported(origin: ImportSource) -> Paragraph:
    return paragraph(strong("Imported"), ", not measured by bitbench: ", source(origin), ".")


SHOWN_HASH = 16  # hexadecimal digits: enough to tell variants apart by eye
KNOWN = {Support.DOES_NOT_RUN: "it does not run here", Support.RUNS_WITHOUT_SPEEDUP: "no speed-up is to be expected"}
PATHS = {
    KernelPath.QUANTIZED: "low-bit weights times low-bit activations",
    KernelPath.WEIGHT_ONLY: "low-bit weights, expanded inside the product",
    KernelPath.DEQUANTIZED: "expanded to dense weights: no gain in memory traffic",
    KernelPath.DENSE: "not quantized",
}


def configs_section(summary: StudySummary, lock: Lock) -> Section:
    blocks: list[Block] = []
    for config in summary.configs:
        blocks += [Heading((Name(config.config.name),)), *bullets(_facts(summary, config))]
        if config.commands:
            blocks.append(CodeBlock(config.commands))
    blocks += [paragraph(strong("Kernels."), " ", sentence, ".") for sentence in _same_weights(summary)]
    variants = _variants(lock)
    if variants.rows:
        blocks += [Heading(say("Variants")), variants]
    return Section(say("What was run"), tuple(blocks))


def _facts(summary: StudySummary, config: ConfigSummary) -> Iterator[Words]:
    setup = next((setup for setup in summary.study.engines if setup.name == config.config.engine), None)
    if setup is not None:
        yield from _engine(setup, config)
    yield from _kernels(config)
    if config.prefix_caching:
        yield say("prefix caching: ", listing(["on" if state else "off" for state in config.prefix_caching]))
    if len(config.engine_versions) > 1:
        yield strong("its starts differ in version: their trials should not be averaged")
    yield from (f"note: {note}" for note in config.notes)
    for noted in summary.processor_notes:
        if noted.config == config.config:
            chosen = f"computed in {noted.dtype}; " if noted.dtype else ""
            yield f"on this processor ({summary.level}): {chosen}{noted.why}"
    for known in summary.expectations:
        if known.config == config.config:
            yield f"known beforehand: {KNOWN[known.verdict]}: {known.why}"


def _engine(setup: EngineSetup, config: ConfigSummary) -> Iterator[Words]:
    yield say("engine: ", Name(setup.engine), " ", listing(config.engine_versions or (UNKNOWN,)))
    if setup.kv_cache is not None:
        yield say("KV cache type: ", Name(setup.kv_cache))
    for label, chosen in (("arguments", setup.args), ("environment", setup.env)):
        if chosen:
            yield say(f"{label}: ", _settings(chosen))


def _settings(chosen: Mapping[str, object]) -> Phrase:
    return joined(names(f"{name}={'•••' if is_secret(name) else value}" for name, value in chosen.items()), ", ")


def _kernels(config: ConfigSummary) -> Iterator[Words]:
    """Each kind of layers with the kernel it really ran on; the engine's words where they cannot be taken apart."""
    if not config.kernel_choices:
        yield f"kernels it selected: {'; '.join(config.kernels) or UNKNOWN}"
    for choice in dict.fromkeys(choice for chosen in config.kernel_choices for choice in chosen):
        layers = f" ({plural(choice.layers, 'layer')})" if choice.layers is not None else ""
        path = f" ({PATHS[choice.path]})" if choice.path else ""
        yield f"kernel of {choice.kind}{layers}: {choice.kernel}{path}"
    if len(config.kernel_choices) > 1:
        yield strong("its starts differ in kernel: their trials should not be averaged")


def _same_weights(summary: StudySummary) -> Iterator[Phrase]:
    """Configs that run the same artifact on the same engine and differ in the kernel that they got."""
    engines = {setup.name: setup.engine for setup in summary.study.engines}
    known = [config for config in summary.configs if config.kernel_choices]

    def weights(config: ConfigSummary) -> tuple[str, str]:
        return config.config.variant, engines.get(config.config.engine, config.config.engine)

    for group in grouped(known, weights).values():
        if len({config.kernel_choices for config in group}) > 1:
            chosen = [say(Name(config.config.name), " ", _kernel_names(config)) for config in group]
            all_names = listing(names(config.config.name for config in group))
            yield say(all_names, " run the same weights on different kernels: ", joined(chosen, "; "))


def _kernel_names(config: ConfigSummary) -> Phrase:
    return listing(list(dict.fromkeys(choice.kernel for choices in config.kernel_choices for choice in choices)))


def _variants(lock: Lock) -> Table:
    return table(
        [variant for variant in lock.plan.variants if variant.model != variant.name],
        words_column("Variant", lambda variant: Name(variant.name)),
        number_column("Weights", Unit.BYTES, lambda variant: variant.weight_bytes),
        number_column("Parameters", Unit.COUNT, lambda variant: variant.facts.parameters),
        words_column("Hash", lambda variant: Name(variant.content_hash[:SHOWN_HASH]) if variant.content_hash else None),
    )


CACHING = {True: "on", False: "off", None: None}


def instances_section(instances: Sequence[InstanceRecord]) -> Section | None:
    """None where there is no record of a start."""
    if not instances:
        return None
    several = len({instance.host for instance in instances}) > 1
    machine: ColumnOf[InstanceRecord] = words_column(
        "Machine", lambda instance: Name(instance.host) if instance.host else None
    )
    starts = table(
        instances,
        words_column("Start", lambda instance: Name(instance.id)),
        words_column("Config", lambda instance: Name(instance.config.name)),
        number_column("Block", Unit.COUNT, lambda instance: instance.block),
        *([machine] if several else []),
        words_column("Outcome", lambda instance: instance.outcome.value),
        words_column("Start", lambda instance: instance.facts.start),
        number_column("Start to ready", Unit.SECONDS, lambda instance: instance.ready_s),
        words_column("Version", lambda instance: instance.facts.engine_version or None),
        words_column("Kernels it selected", lambda instance: "; ".join(instance.facts.kernels) or None),
        number_column("Memory idle", Unit.BYTES, lambda instance: instance.memory.resident_bytes),
        words_column("Prefix caching", lambda instance: CACHING[instance.facts.prefix_caching]),
    )
    return Section(say("Every start"), (starts,))


def warm_up_section(summary: StudySummary) -> Section | None:
    """None for an import, of which no start is known."""
    if summary.imported_from:
        return None
    starts = table(
        summary.configs,
        words_column("Config", lambda config: Name(config.config.name)),
        number_column("Ready", Unit.NONE, lambda config: say(f"{config.instances_ready} of {config.instances}")),
        number_column("Start to ready", Unit.SECONDS, lambda config: over_instances(config.ready_s, Unit.SECONDS)),
        number_column("Weights", Unit.SECONDS, lambda config: over_instances(config.weight_load_s, Unit.SECONDS)),
        number_column("Compile", Unit.SECONDS, lambda config: over_instances(config.compile_s, Unit.SECONDS)),
        number_column("Memory idle", Unit.BYTES, lambda config: over_instances(config.idle_memory_bytes, Unit.BYTES)),
    )
    blocks: list[Block] = [
        paragraph("Not included in the figures above. Mean over spawned starts (lowest – highest)."),
        starts,
    ]
    first = table(
        [point for point in summary.points if point.warm_up.trials],
        words_column("Config", lambda point: Name(point.point.config.name)),
        words_column("Workload", lambda point: Name(point.point.workload)),
        number_column("Warm-up trials", Unit.COUNT, lambda point: point.warm_up.trials),
        number_column("First", Unit.SECONDS, lambda point: point.warm_up.first_ttft_s),
        number_column("Later", Unit.SECONDS, _later),
    )
    if first.rows:
        blocks += [paragraph("TTFT in the warm-up of each start and in the trials that count:"), first]
    return Section(say("Warm-up"), tuple(blocks))


def _later(point: PointSummary) -> float | None:
    """As in the table of its workload, where a start counts once however many trials it has."""
    counted = point.metrics.get("ttft_s")
    return counted.value if counted else point.warm_up.later_ttft_s


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


def _accelerator(accelerator: Accelerator) -> Phrase:
    known = (
        accelerator.name,
        size(accelerator.memory_bytes),
        accelerator.driver,
        accelerator.runtime,
        f"compute capability {accelerator.capability}" if accelerator.capability else None,
        f"power limit {accelerator.power_limit_w:g} W" if accelerator.power_limit_w else None,
        None if accelerator.ecc is None else f"ECC {'on' if accelerator.ecc else 'off'}",
        "divided (MIG)" if accelerator.mig else None,
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
