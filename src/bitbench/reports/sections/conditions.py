"""What the figures rest on: what was run, each start, the machine, how exact the figures are, how each is made, and
how to make them again."""

from collections.abc import Iterator

from bitbench.analysis.results.summary import ConfigSummary, StudySummary
from bitbench.records.lock import Accelerator, HostFacts, Lock
from bitbench.records.trial import KernelPath
from bitbench.reports.document.model import (
    Block,
    Bullets,
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
from bitbench.reports.document.numbers import percent, size, spread_quantity, times
from bitbench.reports.document.words import (
    MAX_NAME,
    Words,
    bullets,
    joined,
    listing,
    name_phrases,
    number_column,
    paragraph,
    plural,
    say,
    strong,
    table,
    words_column,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections import memory
from bitbench.reports.sections.workloads import OCCASIONAL_METRICS
from bitbench.study.plan import ImportSource, Support
from bitbench.study.secrets import is_secret
from bitbench.study.study import EngineSetup
from bitbench.util.units import UNKNOWN


def conditions_source_phrase(origin: ImportSource) -> Phrase:
    """`result.json` of vllm"""
    return say(listing(name_phrases(file.name for file in origin.files)), f" of {origin.tool}")


def conditions_source_paragraph(origin: ImportSource) -> Paragraph:
    return paragraph(
        strong("Imported"), ", not measured by bitbench: ", conditions_source_phrase(origin), "."
    )


SHOWN_HASH = 16  # hexadecimal digits: enough to tell variants apart by eye
KNOWN = {
    Support.DOES_NOT_RUN: "it does not run here",
    Support.RUNS_WITHOUT_SPEEDUP: "no speed-up is to be expected",
}
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
    variants = _variants(lock)
    if variants.rows:
        blocks += [Heading(say("Variants")), variants]
    return Section(say("What was run"), tuple(blocks))


def _facts(summary: StudySummary, config: ConfigSummary) -> Iterator[Words]:
    setup = next(
        (setup for setup in summary.study.engines if setup.name == config.config.engine), None
    )
    if setup is not None:
        yield from _engine(setup, config)
    yield from _kernels(config)
    if config.prefix_caching:
        yield say(
            "prefix caching: ",
            listing(["on" if state else "off" for state in config.prefix_caching]),
        )
    if len(config.engine_versions) > 1:
        yield strong("its starts differ in version: their trials should not be averaged")
    yield from (f"note: {note}" for note in config.notes)
    if config.config in summary.in_float32:
        yield f"computed in float32, since this processor ({summary.level}) would emulate bf16"
    for known in summary.expectations:
        if known.config == config.config:
            yield f"known beforehand: {KNOWN[known.verdict]}: {known.why}"


def _engine(setup: EngineSetup, config: ConfigSummary) -> Iterator[Words]:
    yield say("engine: ", Name(setup.engine), " ", listing(config.engine_versions or (UNKNOWN,)))
    if setup.kv_cache is not None:
        yield say("KV cache type: ", Name(setup.kv_cache))
    for label, chosen in (("arguments", setup.args), ("environment", setup.env)):
        if chosen:
            shown = (
                f"{name}={'•••' if is_secret(name) else value}" for name, value in chosen.items()
            )
            yield say(f"{label}: ", joined(name_phrases(shown), ", "))


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


def _variants(lock: Lock) -> Table:
    return table(
        [variant for variant in lock.plan.variants if variant.model != variant.name],
        words_column("Variant", lambda variant: Name(variant.name)),
        number_column("Weights", Unit.BYTES, lambda variant: variant.weight_bytes),
        number_column("Parameters", Unit.COUNT, lambda variant: variant.facts.parameters),
        words_column(
            "Hash",
            lambda variant: (
                Name(variant.content_hash[:SHOWN_HASH]) if variant.content_hash else None
            ),
        ),
    )


def attempts_section(summary: StudySummary) -> Section | None:
    """Return how many trials were rejected and what that changed; None without a trial."""
    if not summary.rejections or summary.imported_from:
        return None
    labels = Labels.of(summary, MAX_NAME)
    counted = table(
        summary.rejections,
        words_column("Config", lambda row: Name(labels[row.config])),
        number_column("Attempted trials", Unit.COUNT, lambda row: row.attempted),
        number_column("Rejected", Unit.COUNT, lambda row: row.rejected),
    )
    blocks: list[Block] = [
        paragraph(
            "Trials are rejected where the client was late or other work kept the machine busy:"
        ),
        counted,
    ]
    ratios = [(row.config, ratio) for row in summary.rejections for ratio in row.ratios]
    if ratios:
        compared = table(
            ratios,
            words_column("Config", lambda row: Name(labels[row[0]])),
            words_column("Workload", lambda row: Name(row[1].workload)),
            number_column("vs. baseline", Unit.NONE, lambda row: times(row[1].counted)),
            number_column(
                "With rejected trials", Unit.NONE, lambda row: times(row[1].all_attempts)
            ),
        )
        blocks += [
            paragraph("More than a tenth was rejected. Ratios with and without these trials:"),
            compared,
        ]
    return Section(say("Rejected trials"), tuple(blocks))


def starts_section(summary: StudySummary) -> Section | None:
    """None for an import, of which no start is known."""
    if summary.imported_from:
        return None
    starts = table(
        summary.configs,
        words_column("Config", lambda config: Name(config.config.name)),
        number_column(
            "Ready",
            Unit.NONE,
            lambda config: say(f"{config.instances_ready} of {config.instances}"),
        ),
        number_column(
            "Start to ready",
            Unit.SECONDS,
            lambda config: spread_quantity(config.ready_s, Unit.SECONDS),
        ),
        number_column(
            "Weights",
            Unit.SECONDS,
            lambda config: spread_quantity(config.weight_load_s, Unit.SECONDS),
        ),
        number_column(
            "Compile", Unit.SECONDS, lambda config: spread_quantity(config.compile_s, Unit.SECONDS)
        ),
        number_column(
            "Memory idle",
            Unit.BYTES,
            lambda config: spread_quantity(config.idle_memory_bytes, Unit.BYTES),
        ),
    )
    about = paragraph("Not included in the figures above. Mean over starts (lowest – highest).")
    return Section(say("Starts"), (about, starts))


def host_section(lock: Lock) -> Section:
    busy = (
        None
        if lock.busy_cores is None
        else Quantity(lock.busy_cores, digits=2, note="just before it began")
    )
    facts: list[tuple[str, Words]] = [
        *_machine(lock.host),
        ("Cores that other work kept busy", busy),
        ("Measured", lock.created_at or None),
        ("bitbench", lock.bitbench or None),
    ]
    environments = []
    for name, versions in lock.environments.items():
        packages = joined(
            name_phrases(f"{package} {version}" for package, version in versions.items()), ", "
        )
        environments.append(paragraph("Environment ", Name(name), ": ", packages or UNKNOWN))
    known = table(
        facts,
        words_column("Fact", lambda fact: fact[0]),
        words_column("Value", lambda fact: fact[1]),
    )
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


def method_section(summary: StudySummary) -> Section:
    return Section(
        say("How the figures are made"), (_definitions(summary), Bullets(_methods(summary)))
    )


def _definitions(summary: StudySummary) -> Table:
    used = {metric for point in summary.points for metric in point.metrics}
    return table(
        [
            definition
            for metric, definition in summary.definitions.items()
            if metric not in OCCASIONAL_METRICS or metric in used
        ],
        words_column("Figure", lambda definition: definition.label),
        words_column("Name", lambda definition: definition.name),
        words_column("Unit", lambda definition: definition.unit),
        words_column(
            "Better", lambda definition: "more" if definition.higher_is_better else "less"
        ),
        words_column("Definition for one trial", lambda definition: definition.definition),
    )


def _methods(summary: StudySummary) -> tuple[Phrase, ...]:
    confidence = percent(summary.study.measure.confidence)
    primary_metric = summary.definitions[summary.primary_metric].name
    meanings = {
        "mean ± sd [low, high]": " is the mean of starts, the standard deviation of single trials, and the "
        f"{confidence} confidence interval of the mean: Student's t of the logarithms of the means of starts. One "
        "start has none; memory has the range of its starts.",
        "p99": " is that of the requests of all trials together. Its interval is open, [low, ∞), where they are too "
        "few to bound it; with less than 1,000 of them the slowest is shown. Where requests were not kept it is the "
        "mean of the percentiles of single trials (per trial).",
        "vs. baseline": " is the geometric mean of the ratios within blocks: a block holds one fresh start of each "
        "config, so what slows the whole machine cancels. A single start has a ratio without an interval.",
        "Rank": f" is by {primary_metric}. Two configs get different ranks only where their difference is significant "
        f"at {confidence} after a correction for all pairs of the workload (Holm) and for looking more than once; "
        "the others are undecided, and a rank is the range of places that this leaves.",
        "Outliers": " are trials further than 3.5 robust standard deviations (MAD) and 10 % from the median. They are "
        "flagged and still included in the means.",
    }
    counted = say(
        "Only trials with outcome ", Name("ok"), " count. A figure that is not defined is –."
    )
    return (
        *(say(strong(term), meaning) for term, meaning in meanings.items()),
        memory.DEFINITION,
        counted,
    )
