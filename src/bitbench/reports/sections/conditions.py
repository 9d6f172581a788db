"""The conditions of a study: what was run, where, and how the numbers are computed."""

from collections.abc import Iterator, Mapping
from itertools import chain

from bitbench.analysis.results.summary import ConfigSummary, MetricDefinition, StudySummary
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
from bitbench.reports.document.numbers import format_percent, make_ratio, make_size, make_spread
from bitbench.reports.document.words import (
    MAX_NAME,
    Words,
    build_table,
    bullets,
    format_count,
    format_list,
    format_names,
    join_phrases,
    list_names,
    make_number_column,
    make_words_column,
    paragraph,
    say,
    strong,
)
from bitbench.reports.labels import Labels
from bitbench.reports.sections import memory
from bitbench.reports.sections.workloads import OCCASIONAL_METRICS
from bitbench.study.plan import ImportSource, Support
from bitbench.study.secrets import is_secret
from bitbench.study.study import EngineSetup
from bitbench.study.variant import Variant
from bitbench.util.units import UNKNOWN


def describe_import_source(origin: ImportSource) -> Phrase:
    """Return the files that a study was imported from: `result.json of vllm`."""
    return say(format_names(file.name for file in origin.files), f" of {origin.tool}")


def build_import_paragraph(origin: ImportSource) -> Paragraph:
    """Return the paragraph that says that a study was imported, and from which files."""
    source = describe_import_source(origin)
    return paragraph(strong("Imported"), ", not measured by bitbench: ", source, ".")


SHOWN_HASH = 16  # hexadecimal digits: enough to distinguish variants by eye
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


def build_configs_section(summary: StudySummary, lock: Lock) -> Section:
    """Return the settings and the command of each config, and a table of the variants."""
    blocks: list[Block] = []
    for config in summary.configs:
        blocks += [Heading((Name(config.config.name),)), *bullets(_iter_facts(summary, config))]
        if config.commands:
            blocks.append(CodeBlock(config.commands))
    variants = _build_variants_table(lock)
    if variants.rows:
        blocks += [Heading(say("Variants")), variants]
    return Section(say("What was run"), tuple(blocks))


def _iter_facts(summary: StudySummary, config: ConfigSummary) -> Iterator[Words]:
    """Yield what a reader must know about a config and its starts."""
    for setup in summary.study.engines:
        if setup.name == config.config.engine:
            yield from _iter_engine_facts(setup, config)
    yield from _iter_kernels(config)
    if config.prefix_caching:
        states = format_list(["on" if is_on else "off" for is_on in config.prefix_caching])
        yield say("prefix caching: ", states)
    if len(config.engine_versions) > 1:
        yield strong("its starts differ in version: their trials should not be averaged")
    for note in config.notes:
        yield f"note: {note}"
    if config.config in summary.in_float32:
        yield f"computed in float32, since this processor ({summary.level}) would emulate bf16"
    for expectation in summary.expectations:
        if expectation.config == config.config:
            yield f"known beforehand: {KNOWN[expectation.verdict]}: {expectation.why}"


def _iter_engine_facts(setup: EngineSetup, config: ConfigSummary) -> Iterator[Words]:
    yield say(
        "engine: ", Name(setup.engine), " ", format_list(config.engine_versions or (UNKNOWN,))
    )
    if setup.kv_cache is not None:
        yield say("KV cache type: ", Name(setup.kv_cache))
    for label, settings in (("arguments", setup.args), ("environment", setup.env)):
        if settings:
            yield say(f"{label}: ", join_phrases(list_names(_iter_settings(settings)), ", "))


def _iter_settings(settings: Mapping[str, object]) -> Iterator[str]:
    """Yield settings as `name=value`, without the values of secrets."""
    for name, value in settings.items():
        text = "•••" if is_secret(name) else value
        yield f"{name}={text}"


def _iter_kernels(config: ConfigSummary) -> Iterator[Words]:
    """Yield the kernel that each kind of layers really used, else the engine's own description."""
    if not config.kernel_choices:
        yield f"kernels it selected: {'; '.join(config.kernels) or UNKNOWN}"
    for choice in dict.fromkeys(chain.from_iterable(config.kernel_choices)):
        layers = f" ({format_count(choice.layers, 'layer')})" if choice.layers is not None else ""
        path = f" ({PATHS[choice.path]})" if choice.path else ""
        yield f"kernel of {choice.kind}{layers}: {choice.kernel}{path}"
    if len(config.kernel_choices) > 1:
        yield strong("its starts differ in kernel: their trials should not be averaged")


def _build_variants_table(lock: Lock) -> Table:
    return build_table(
        [variant for variant in lock.plan.variants if variant.model != variant.name],
        make_words_column("Variant", lambda variant: Name(variant.name)),
        make_number_column("Weights", Unit.BYTES, lambda variant: variant.weight_bytes),
        make_number_column("Parameters", Unit.COUNT, lambda variant: variant.facts.parameters),
        make_words_column("Hash", _format_hash),
    )


def _format_hash(variant: Variant) -> Words:
    return Name(variant.content_hash[:SHOWN_HASH]) if variant.content_hash else None


def build_attempts_section(summary: StudySummary) -> Section | None:
    """Return how many trials were rejected and what that changed, or None without any trial."""
    if not summary.rejections or summary.imported_from:
        return None
    labels = Labels.of(summary, MAX_NAME)
    counts = build_table(
        summary.rejections,
        make_words_column("Config", lambda row: Name(labels[row.config])),
        make_number_column("Attempted trials", Unit.COUNT, lambda row: row.attempted),
        make_number_column("Rejected", Unit.COUNT, lambda row: row.rejected),
    )
    blocks: list[Block] = [
        paragraph(
            "Trials are rejected where the client was late or other work kept the machine busy:"
        ),
        counts,
    ]
    ratios = [(row.config, ratio) for row in summary.rejections for ratio in row.ratios]
    if ratios:
        compared = build_table(
            ratios,
            make_words_column("Config", lambda row: Name(labels[row[0]])),
            make_words_column("Workload", lambda row: Name(row[1].workload)),
            make_number_column("vs. baseline", Unit.NONE, lambda row: make_ratio(row[1].counted)),
            make_number_column(
                "With rejected trials", Unit.NONE, lambda row: make_ratio(row[1].all_attempts)
            ),
        )
        blocks += [
            paragraph("More than a tenth was rejected. Ratios with and without these trials:"),
            compared,
        ]
    return Section(say("Rejected trials"), tuple(blocks))


def build_starts_section(summary: StudySummary) -> Section | None:
    """Return the times of starts, or None for an import, whose starts are unknown."""
    if summary.imported_from:
        return None
    starts = build_table(
        summary.configs,
        make_words_column("Config", lambda config: Name(config.config.name)),
        make_number_column(
            "Ready",
            Unit.NONE,
            lambda config: say(f"{config.instances_ready} of {config.instances}"),
        ),
        make_number_column(
            "Start to ready",
            Unit.SECONDS,
            lambda config: make_spread(config.ready_s, Unit.SECONDS),
        ),
        make_number_column(
            "Weights",
            Unit.SECONDS,
            lambda config: make_spread(config.weight_load_s, Unit.SECONDS),
        ),
        make_number_column(
            "Compile", Unit.SECONDS, lambda config: make_spread(config.compile_s, Unit.SECONDS)
        ),
        make_number_column(
            "Memory idle",
            Unit.BYTES,
            lambda config: make_spread(config.idle_memory_bytes, Unit.BYTES),
        ),
    )
    about = paragraph("Not included in the figures above. Mean over starts (lowest – highest).")
    return Section(say("Starts"), (about, starts))


def build_host_section(lock: Lock) -> Section:
    """Return the machine, the date and the versions of packages."""
    busy = None
    if lock.busy_cores is not None:
        busy = Quantity(lock.busy_cores, digits=2, note="just before it began")
    facts: list[tuple[str, Words]] = [
        *_list_machine_facts(lock.host),
        ("Cores that other work kept busy", busy),
        ("Measured", lock.created_at or None),
        ("bitbench", lock.bitbench or None),
    ]
    rows = build_table(
        facts,
        make_words_column("Fact", lambda row: row[0]),
        make_words_column("Value", lambda row: row[1]),
    )
    blocks: list[Block] = [rows]
    for name, versions in lock.environments.items():
        packages = list_names(f"{package} {version}" for package, version in versions.items())
        listed = join_phrases(packages, ", ") or UNKNOWN
        blocks.append(paragraph("Environment ", Name(name), ": ", listed))
    return Section(say("Where it was measured"), tuple(blocks))


def _list_machine_facts(host: HostFacts) -> list[tuple[str, Words]]:
    level = host.level.shown if host.level else None
    numa_nodes = None if host.numa_nodes is None else str(host.numa_nodes)
    system = " · ".join(filter(None, (host.os, host.kernel)))
    return [
        ("Processor", host.cpu_model or None),
        ("Cores / threads", say(f"{host.cores or UNKNOWN} / {host.threads or UNKNOWN}")),
        ("Flags that choose kernels", ", ".join(host.cpu_flags) or None),
        ("Level", level),
        ("Governor", host.governor or None),
        ("NUMA nodes", numa_nodes),
        ("Memory", make_size(host.memory_bytes)),
        *(("Accelerator", _describe_accelerator(accelerator)) for accelerator in host.accelerators),
        ("Virtualization", host.virtualization or None),
        ("System", system or None),
        ("Python", host.python or None),
    ]


def _describe_accelerator(accelerator: Accelerator) -> Phrase:
    """Return what is known about an accelerator, separated by commas."""
    parts: list[Words] = [
        accelerator.name,
        make_size(accelerator.memory_bytes),
        accelerator.driver,
        accelerator.runtime,
    ]
    if accelerator.capability:
        parts.append(f"compute capability {accelerator.capability}")
    if accelerator.power_limit_w:
        parts.append(f"power limit {accelerator.power_limit_w:g} W")
    if accelerator.ecc is not None:
        parts.append("ECC on" if accelerator.ecc else "ECC off")
    if accelerator.mig:
        parts.append("divided (MIG)")
    return join_phrases(filter(None, parts), ", ")


def build_method_section(summary: StudySummary) -> Section:
    """Return how each number of the report is computed."""
    blocks = (_build_definitions_table(summary), Bullets(_list_methods(summary)))
    return Section(say("How the figures are made"), blocks)


def _build_definitions_table(summary: StudySummary) -> Table:
    """Return the definitions of metrics. Occasional metrics are left out if no point has them."""
    measured = {metric for point in summary.points for metric in point.metrics}
    definitions = []
    for metric, definition in summary.definitions.items():
        if metric not in OCCASIONAL_METRICS or metric in measured:
            definitions.append(definition)
    return build_table(
        definitions,
        make_words_column("Figure", lambda definition: definition.label),
        make_words_column("Name", lambda definition: definition.name),
        make_words_column("Unit", lambda definition: definition.unit),
        make_words_column("Better", _describe_better),
        make_words_column("Definition for one trial", lambda definition: definition.definition),
    )


def _describe_better(definition: MetricDefinition) -> str:
    return "more" if definition.higher_is_better else "less"


def _list_methods(summary: StudySummary) -> tuple[Phrase, ...]:
    confidence = format_percent(summary.study.measure.confidence)
    primary_metric = summary.definitions[summary.primary_metric].name
    meanings = {
        "mean ± sd [low, high]": " is the mean of starts, the standard deviation of single trials, "
        f"and the {confidence} confidence interval of the mean: Student's t of the logarithms of "
        "the means of starts. One start has none; memory has the range of its starts.",
        "p99": " is that of the requests of all trials together. Its interval is open, [low, ∞), "
        "where they are too few to bound it; with less than 1,000 of them the slowest is shown. "
        "Where requests were not kept it is the mean of the percentiles of single trials (per "
        "trial).",
        "vs. baseline": " is the geometric mean of the ratios within blocks: a block holds one "
        "fresh start of each config, so what slows the whole machine cancels. A single start has a "
        "ratio without an interval.",
        "Rank": f" is by {primary_metric}. Two configs get different ranks only where their "
        f"difference is significant at {confidence} after a correction for all pairs of the "
        "workload (Holm) and for looking more than once; the others are undecided, and a rank is "
        "the range of places that this leaves.",
        "Outliers": " are trials further than 3.5 robust standard deviations (MAD) and 10 % from "
        "the median. They are flagged and still included in the means.",
    }
    methods = [say(strong(term), meaning) for term, meaning in meanings.items()]
    valid = say(
        "Only trials with outcome ", Name("ok"), " count. A figure that is not defined is –."
    )
    return (*methods, memory.DEFINITION, valid)
