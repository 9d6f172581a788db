"""Around the figures: what failed, how it started, what was run and where, and how each figure is made."""

from collections.abc import Mapping, Sequence

from bitbench.core.asked.study import EngineSetup
from bitbench.core.base import Json
from bitbench.core.cell import Verdict
from bitbench.core.found.summary import ContenderSummary, StudySummary
from bitbench.core.recorded.trial import KernelPath
from bitbench.core.secrets import is_secret
from bitbench.ground.units import UNKNOWN, show_bytes, show_duration, show_percent, significant
from bitbench.report.document.numbers import Scale, percent, spread
from bitbench.report.document.text import code, code_block, escape, listing, table
from bitbench.report.sections import memory
from bitbench.report.sections.causes import failures_by_cause, refusals_by_reason
from bitbench.report.sections.workloads import OCCASIONAL_METRICS

MAX_LOG_LINES = 12
MAX_IDS = 8
KNOWN = {Verdict.DOES_NOT_RUN: "it does not run here", Verdict.RUNS_WITHOUT_SPEEDUP: "no speed-up is to be expected"}

PATHS = {
    KernelPath.QUANTIZED: "low-bit weights times low-bit activations",
    KernelPath.WEIGHT_ONLY: "low-bit weights, expanded inside the product",
    KernelPath.DEQUANTIZED: "expanded to dense weights: no gain in memory traffic",
    KernelPath.DENSE: "not quantized",
}

SECONDS = Scale("s")
MIB = Scale("MiB", 2**20)


def failures_section(summary: StudySummary) -> str:
    parts = ["## What failed, and why"]
    for one in failures_by_cause(summary):
        ids = ", ".join(code(trial) for trial in one.ids[:MAX_IDS])
        more = f" and {len(one.ids) - MAX_IDS} more" if len(one.ids) > MAX_IDS else ""
        parts.append(
            f"- **{one.failure.outcome.value}**: {one.affected.in_words(code)}: {escape(one.failure.cause)} "
            f"({ids}{more})"
        )
        if one.failure.log_lines:
            parts.append(code_block(one.failure.log_lines[-MAX_LOG_LINES:]))
    parts += [
        f"- **{one.word}**: {one.affected.in_words(code)}: {escape(one.reason)}"
        for one in refusals_by_reason(summary.refusals)
        if one.was_tried
    ]
    if len(parts) == 1:
        parts.append("Nothing failed.")
    return "\n\n".join(parts)


def refusals_section(summary: StudySummary) -> str:
    """Those that nobody needs to try: a table by reason, so that what holds for many is read once."""
    rows = [
        [
            escape(one.reason),
            listing([code(contender.name) for contender in contenders]),
            listing([code(name) for name in workloads]),
        ]
        for one in refusals_by_reason(summary.refusals)
        if not one.was_tried
        for contenders, workloads in one.affected.contenders_by_workloads()
    ]
    return (
        f"## Refused up front\n\n{table(['Reason', 'Contenders', 'Workloads'], rows, left=(0, 1, 2))}" if rows else ""
    )


def warm_up_section(summary: StudySummary) -> str:
    starts = [
        [
            code(one.contender.name),
            f"{one.instances_ready} of {one.instances}",
            spread(one.ready_s, SECONDS),
            spread(one.weight_load_s, SECONDS),
            spread(one.compile_s, SECONDS),
            spread(one.idle_memory_bytes, MIB),
        ]
        for one in summary.contenders
    ]
    header = [
        "Contender",
        "Ready",
        "Start to ready (s)",
        "Weights (s)",
        "Compile (s)",
        "Memory idle (MiB)",
    ]
    first = [
        [
            code(cell.cell.contender.name),
            code(cell.cell.workload),
            str(cell.warm_up.trials),
            significant(cell.warm_up.first_latency_s),
            significant(cell.warm_up.later_latency_s),
        ]
        for cell in summary.cells
        if cell.warm_up.trials
    ]
    parts = [
        "## Warm-up",
        "Kept apart: none of this is in the figures above. Mean over instances (lowest – highest).",
        table(header, starts),
    ]
    if first:
        parts += [
            "Latency of the first trial in each instance, against that of the trials that count:",
            table(["Contender", "Workload", "Warm-up trials", "First (s)", "Later (s)"], first, left=(0, 1)),
        ]
    return "\n\n".join(parts)


def contenders_section(summary: StudySummary, lock: Mapping[str, Json]) -> str:
    parts = ["## What was run"]
    for one in summary.contenders:
        setup = next((setup for setup in summary.study.engines if setup.name == one.contender.engine), None)
        expected = [
            f"- known beforehand: {KNOWN[known.verdict]}: {escape(known.why)}"
            for known in summary.expectations
            if known.contender == one.contender
        ]
        lines = [f"### {code(one.contender.name)}", "", *_contender_lines(one, setup), *expected]
        parts.append("\n".join(lines))
        if one.commands:
            parts.append(code_block(one.commands))
    parts += [f"**Kernels.** {sentence}." for sentence in _same_weights(summary)]
    if variants := _variants(lock):
        header = ["Variant", "Weights", "Parameters", "Hash"]
        parts += ["### Variants", table(header, variants)]
    return "\n\n".join(parts)


def _contender_lines(one: ContenderSummary, setup: EngineSetup | None) -> list[str]:
    lines = []
    if setup is not None:
        version = listing([escape(version) for version in one.engine_versions]) if one.engine_versions else UNKNOWN
        lines.append(f"- engine: {code(setup.engine)} {version}")
        lines += [
            f"- {label}: {_settings(chosen)}"
            for label, chosen in (("arguments", setup.args), ("environment", setup.env))
            if chosen
        ]
    lines += _kernel_lines(one)
    if one.prefix_caching:
        lines.append(f"- prefix caching: {listing(['on' if state else 'off' for state in one.prefix_caching])}")
    if len(one.engine_versions) > 1:
        lines.append("- **its instances differ in version: their trials should not be averaged**")
    return [*lines, *(f"- note: {escape(note)}" for note in one.notes)]


def _kernel_lines(one: ContenderSummary) -> list[str]:
    """Each kind of layers with the kernel it really ran on; the engine's words where they cannot be taken apart."""
    if not one.kernel_choices:
        return [f"- kernels it selected: {'; '.join(escape(kernel) for kernel in one.kernels) or UNKNOWN}"]
    choices = dict.fromkeys(choice for chosen in one.kernel_choices for choice in chosen)
    lines = [
        f"- kernel of {escape(choice.kind)}{f' ({choice.layers} layers)' if choice.layers is not None else ''}: "
        f"{escape(choice.kernel)}{f' ({PATHS[choice.path]})' if choice.path else ''}"
        for choice in choices
    ]
    if len(one.kernel_choices) > 1:
        lines.append("- **its instances differ in kernel: their trials should not be averaged**")
    return lines


def _same_weights(summary: StudySummary) -> list[str]:
    """Contenders that run the same artifact on the same engine and differ in the kernel that they got."""
    engines = {setup.name: setup.engine for setup in summary.study.engines}
    groups: dict[tuple[str, str], list[ContenderSummary]] = {}
    for one in summary.contenders:
        if one.kernel_choices:
            engine = engines.get(one.contender.engine, one.contender.engine)
            groups.setdefault((one.contender.variant, engine), []).append(one)
    return [
        f"{listing([code(one.contender.name) for one in group])} run the same weights on different kernels: "
        + "; ".join(f"{code(one.contender.name)} {_linear_kernels(one)}" for one in group)
        for group in groups.values()
        if len({one.kernel_choices for one in group}) > 1
    ]


def _linear_kernels(one: ContenderSummary) -> str:
    chosen = dict.fromkeys(choice.kernel for choices in one.kernel_choices for choice in choices)
    return listing([escape(kernel) for kernel in chosen])


def _settings(chosen: Mapping[str, object]) -> str:
    return ", ".join(code(f"{name}={'•••' if is_secret(name) else value}") for name, value in chosen.items())


def _variants(lock: Mapping[str, Json]) -> list[list[str]]:
    plan = lock.get("plan")
    variants = plan.get("variants") if isinstance(plan, Mapping) else lock.get("variants")
    if not isinstance(variants, Sequence):
        return []
    return [
        [
            code(str(one.get("name"))),
            show_bytes(one.get("weight_bytes")),
            _count((one.get("facts") or {}).get("parameters")),
            code(str(one["content_hash"])[:16]) if one.get("content_hash") else UNKNOWN,
        ]
        for one in variants
        if isinstance(one, Mapping) and one.get("model") != one.get("name")
    ]


def _count(value: Json) -> str:
    return f"{value:,}" if isinstance(value, int) else UNKNOWN


def host_section(lock: Mapping[str, Json]) -> str:
    host, noise = lock.get("host") or {}, lock.get("noise") or {}
    rows: list[tuple[str, Json]] = [
        ("Processor", host.get("cpu_model")),
        ("Cores / threads", f"{host.get('cores') or UNKNOWN} / {host.get('threads') or UNKNOWN}"),
        ("Flags that choose kernels", ", ".join(host.get("cpu_flags") or ())),
        ("Governor", host.get("governor")),
        ("NUMA nodes", host.get("numa_nodes")),
        ("Memory", show_bytes(host.get("memory_bytes"))),
        *(("Accelerator", _accelerator(one)) for one in host.get("accelerators") or ()),
        ("Virtualization", host.get("virtualization")),
        ("System", " · ".join(str(host[name]) for name in ("os", "kernel") if host.get(name))),
        ("Python", host.get("python")),
        ("Noise of fixed work", _noise(noise)),
        ("Cores that other work kept busy", _cores(lock.get("busy_cores"))),
        ("Measured", lock.get("created_at")),
        ("bitbench", lock.get("bitbench")),
    ]
    shown = [[label, escape(str(value)) if value not in (None, "") else UNKNOWN] for label, value in rows]
    parts = ["## Where it was measured", table(["Fact", "Value"], shown, left=(0, 1))]
    for name, packages in (lock.get("environments") or {}).items():
        versions = ", ".join(code(f"{package} {version}") for package, version in packages.items())
        parts.append(f"Environment {code(name)}: {versions or UNKNOWN}")
    return "\n\n".join(parts)


def _accelerator(one: Mapping[str, Json]) -> str:
    facts = [one.get("name"), show_bytes(one.get("memory_bytes")), one.get("driver"), one.get("runtime")]
    return ", ".join(str(fact) for fact in facts if fact)


def _cores(busy: float | None) -> str | None:
    return None if busy is None else f"{busy:.2f} just before it began"


def _noise(noise: Mapping[str, Json]) -> str | None:
    """Spread is (90th − 10th percentile) / median, worst is slowest / median − 1."""
    if not noise:
        return None
    kinds = [
        f"{kind} {show_percent(noise.get(f'{kind}_spread'))} spread, {show_percent(noise.get(f'{kind}_worst'))} worst"
        for kind in ("compute", "memory")
    ]
    return f"{'; '.join(kinds)} ({noise.get('repetitions')} repetitions)"


def method_section(summary: StudySummary) -> str:
    measure = summary.study.measure
    confidence, headline = percent(measure.confidence), summary.definitions[summary.headline]
    rows = [
        [one.label, escape(one.name), one.unit, "more" if one.higher_is_better else "less", escape(one.definition)]
        for metric, one in summary.definitions.items()
        if metric not in OCCASIONAL_METRICS or any(metric in cell.metrics for cell in summary.cells)
    ]
    return "\n\n".join(
        [
            "## How the figures are made",
            table(["Figure", "Name", "Unit", "Better", "Definition for one trial"], rows, left=(0, 1, 2, 3, 4)),
            f"- **`mean [low, high]`** is the mean of instance means with its {confidence} interval. An instance is "
            "one start of the engine; trials of one instance are not independent, so the width comes from the spread "
            "of instance means (Student's t; never less than the spread within instances supports) and its two sides "
            "from a bootstrap over instances, then trials.\n"
            "- **vs. baseline** is the ratio of the means, with an interval made the same way (Welch).\n"
            f"- **Rank** is by {headline.name}. Two contenders are told apart only where their difference stands at "
            f"{confidence} after a correction for all pairs of the workload (Holm) and for stopping early; the others "
            "are ties, and a rank is the range of places that this leaves. The correction asks for more than a single "
            "interval does, so a ratio whose interval just excludes 1 may still be a tie.\n"
            "- **Crossing**: the ratios and the ends of their intervals are joined by straight lines (logarithms of "
            "both axes), and moved apart to the lines that come in from the points before and after. Where 1 lies "
            f"between them is the interval of the crossing, at {confidence}.\n"
            f"{memory.DEFINITIONS}\n"
            "- **Outliers** are trials further than 3.5 robust standard deviations (MAD) and 10 % from the median.\n"
            "- Only trials with outcome `ok` count. A figure that is not defined is `–`.",
        ]
    )


def reproduce_section(summary: StudySummary, lock: Mapping[str, Json]) -> str:
    """How to get the same again; nothing for an import, which bitbench did not run."""
    if summary.imported_from:
        return ""
    study = summary.study
    measure = study.measure
    version = lock.get("bitbench")
    budget = f", budget {show_duration(measure.budget)}" if measure.budget is not None else ""
    return "\n\n".join(
        [
            "## How to repeat it",
            code_block(
                [
                    f"pip install bitbench{f'=={version}' if version else ''}",
                    f"bitbench run study.yaml --into {study.name}-again",
                ]
            ),
            "`study.yaml` and `lock.json` lie beside the records from which `bitbench report` made this page. "
            f"Seed {study.seed}; {_range(measure.instances.min, measure.instances.max)} instances, "
            f"{_range(measure.trials.min, measure.trials.max)} trials each{budget}.",
        ]
    )


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
