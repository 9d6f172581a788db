"""What was run: each config's engine, settings, kernels and commands, and the variants behind them."""

from collections.abc import Iterator, Mapping

from bitbench.analysis.results.summary import ConfigSummary, StudySummary
from bitbench.records.lock import Lock
from bitbench.records.trial import KernelPath
from bitbench.reports.document.model import Block, CodeBlock, Heading, Name, Phrase, Section, Table, Unit
from bitbench.reports.document.tables import number_column, table, words_column
from bitbench.reports.document.words import Words, bullets, joined, listing, names, paragraph, plural, say, strong
from bitbench.reports.grouping import grouped
from bitbench.study.plan import Support
from bitbench.study.secrets import is_secret
from bitbench.study.study import EngineSetup
from bitbench.util.units import UNKNOWN

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


def _facts(summary: StudySummary, one: ConfigSummary) -> Iterator[Words]:
    setup = next((setup for setup in summary.study.engines if setup.name == one.config.engine), None)
    if setup is not None:
        yield from _engine(setup, one)
    yield from _kernels(one)
    if one.prefix_caching:
        yield say("prefix caching: ", listing(["on" if state else "off" for state in one.prefix_caching]))
    if len(one.engine_versions) > 1:
        yield strong("its starts differ in version: their trials should not be averaged")
    yield from (f"note: {note}" for note in one.notes)
    for noted in summary.processor_notes:
        if noted.config == one.config:
            chosen = f"computed in {noted.dtype}; " if noted.dtype else ""
            yield f"on this processor ({summary.level}): {chosen}{noted.why}"
    for known in summary.expectations:
        if known.config == one.config:
            yield f"known beforehand: {KNOWN[known.verdict]}: {known.why}"


def _engine(setup: EngineSetup, one: ConfigSummary) -> Iterator[Words]:
    yield say("engine: ", Name(setup.engine), " ", listing(one.engine_versions or (UNKNOWN,)))
    if setup.kv_cache is not None:
        yield say("KV cache type: ", Name(setup.kv_cache))
    for label, chosen in (("arguments", setup.args), ("environment", setup.env)):
        if chosen:
            yield say(f"{label}: ", _settings(chosen))


def _settings(chosen: Mapping[str, object]) -> Phrase:
    return joined(names(f"{name}={'•••' if is_secret(name) else value}" for name, value in chosen.items()), ", ")


def _kernels(one: ConfigSummary) -> Iterator[Words]:
    """Each kind of layers with the kernel it really ran on; the engine's words where they cannot be taken apart."""
    if not one.kernel_choices:
        yield f"kernels it selected: {'; '.join(one.kernels) or UNKNOWN}"
    for choice in dict.fromkeys(choice for chosen in one.kernel_choices for choice in chosen):
        layers = f" ({plural(choice.layers, 'layer')})" if choice.layers is not None else ""
        path = f" ({PATHS[choice.path]})" if choice.path else ""
        yield f"kernel of {choice.kind}{layers}: {choice.kernel}{path}"
    if len(one.kernel_choices) > 1:
        yield strong("its starts differ in kernel: their trials should not be averaged")


def _same_weights(summary: StudySummary) -> Iterator[Phrase]:
    """Configs that run the same artifact on the same engine and differ in the kernel that they got."""
    engines = {setup.name: setup.engine for setup in summary.study.engines}
    known = [config for config in summary.configs if config.kernel_choices]

    def weights(one: ConfigSummary) -> tuple[str, str]:
        return one.config.variant, engines.get(one.config.engine, one.config.engine)

    for group in grouped(known, weights).values():
        if len({one.kernel_choices for one in group}) > 1:
            chosen = [say(Name(one.config.name), " ", _kernel_names(one)) for one in group]
            all_names = listing(names(one.config.name for one in group))
            yield say(all_names, " run the same weights on different kernels: ", joined(chosen, "; "))


def _kernel_names(one: ConfigSummary) -> Phrase:
    return listing(list(dict.fromkeys(choice.kernel for choices in one.kernel_choices for choice in choices)))


def _variants(lock: Lock) -> Table:
    return table(
        [variant for variant in lock.plan.variants if variant.model != variant.name],
        words_column("Variant", lambda one: Name(one.name)),
        number_column("Weights", Unit.BYTES, lambda one: one.weight_bytes),
        number_column("Parameters", Unit.COUNT, lambda one: one.facts.parameters),
        words_column("Hash", lambda one: Name(one.content_hash[:SHOWN_HASH]) if one.content_hash else None),
    )
