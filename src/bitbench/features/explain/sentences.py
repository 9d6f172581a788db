"""The sentences of an explanation, and the section that compares each point with the roofline."""

from collections.abc import Sequence
from typing import NamedTuple

from bitbench.analysis.configs import Side
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import StudySummary
from bitbench.features.explain.types import (
    Cause,
    Explanation,
    Gap,
    Missing,
    Part,
    PhaseAccount,
    Roofline,
)
from bitbench.records.profile import Phase
from bitbench.records.roof import Attainable, Bound, MachineRoof, Readings
from bitbench.records.trial import KernelPath
from bitbench.reports.document.model import Block, Name, Paragraph, Phrase, Quantity, Section, Unit
from bitbench.reports.document.numbers import (
    make_mean_quantity,
    make_number,
    make_quantity,
    make_ratio,
    make_seconds,
    make_share,
    make_size,
)
from bitbench.reports.document.words import (
    Words,
    build_table,
    format_count,
    join_phrases,
    make_number_column,
    make_words_column,
    paragraph,
    say,
    small_print,
)
from bitbench.study.model_cost import StepCost

COUNTED = (
    "Counted for a step of the whole batch: weights once, keys and values, inputs and outputs of "
    "the linear layers, products and attention. Not counted: norms, sampling, what devices tell "
    "each other, and what an engine does besides. A decode step is timed as the time per output "
    "token, a prefill as the time until all requests of the batch have their first token."
)
EXPERTS_COUNTED = (
    "Of a mixture's experts those are read that the tokens of a step touch if its router sends "
    "them evenly; one that prefers some experts reads less."
)
BOUNDS = {Bound.MEMORY: "reading", Bound.ARITHMETIC: "computing"}


class RoofLine(NamedTuple):
    """A phase of a config at a workload: the cost of a step, its fastest and its measured time."""

    workload: str
    phase: Phase
    config: str
    cost: StepCost
    attainable: Attainable | None
    step_s: float

    @property
    def fastest_s(self) -> float | None:
        return None if self.attainable is None else self.attainable.seconds

    @property
    def bound(self) -> str | None:
        return None if self.attainable is None else BOUNDS[self.attainable.bound]

    @property
    def roof_share(self) -> float | None:
        return None if self.attainable is None else self.attainable.seconds / self.step_s


def roofline_section(roofline: Roofline, _: StudySummary) -> Section:
    """Build the section that compares every point with the roofline."""
    lines = []
    for point in roofline.points:
        config = point.point.config.name
        line = RoofLine(
            point.point.workload, point.phase, config, point.cost, point.attainable, point.step_s
        )
        lines.append(line)
    return build_step_section("How near to the roof", lines, roofline.roof)


def build_step_section(title: str, lines: Sequence[RoofLine], roof: MachineRoof | None) -> Section:
    """Build a section on each step's bytes and operations, its fastest and its measured time."""
    steps = build_table(
        lines,
        make_words_column("Workload", lambda line: Name(line.workload)),
        make_words_column("Phase", lambda line: line.phase.value),
        make_words_column("Config", lambda line: Name(line.config)),
        make_number_column("Weights", Unit.BYTES, lambda line: line.cost.weight_bytes),
        make_number_column("Experts touched", Unit.SHARE, lambda line: line.cost.touched_experts),
        make_number_column("KV cache", Unit.BYTES, lambda line: line.cost.kv_bytes),
        make_number_column("Activations", Unit.BYTES, lambda line: line.cost.activation_bytes),
        make_number_column("Work", "Gflop", lambda line: line.cost.flops / 1e9),
        make_number_column("Fastest here", Unit.SECONDS, lambda line: line.fastest_s),
        make_words_column("Bound by", lambda line: line.bound),
        make_number_column("Measured", Unit.SECONDS, lambda line: line.step_s),
        make_number_column("Share reached", Unit.SHARE, lambda line: line.roof_share),
        drop_empty=True,
    )
    blocks: list[Block] = []
    if roof is not None:
        blocks.append(Paragraph(describe_roof(roof)))
    if any((line.fastest_s or 0.0) > line.step_s for line in lines):
        blocks.append(
            paragraph(
                "More than all of the roof was reached: it was measured while this machine was "
                "slower; remove roof.json to repeat it."
            )
        )
    has_experts = any(line.cost.touched_experts is not None for line in lines)
    counted = f"{COUNTED} {EXPERTS_COUNTED}" if has_experts else COUNTED
    return Section(say(title), (*blocks, steps, small_print(counted)))


def describe_roof(roof: MachineRoof) -> Phrase:
    """Return how fast a machine reads and computes."""

    def billions(rate: Readings, unit: str) -> Quantity | None:
        return make_number(rate.best / 1e9, unit)

    int8: Phrase = ()
    if roof.int8_ops_per_s:
        int8 = say(", ", billions(roof.int8_ops_per_s, "Gop/s"), " in int8")
    return say(
        "This machine reads ",
        billions(roof.read_bytes_per_s, "GB/s"),
        " and computes ",
        billions(roof.flops_per_s, "Gflop/s"),
        " in bfloat16, ",
        billions(roof.float32_flops_per_s, "Gflop/s"),
        " in float32",
        int8,
        f" with {format_count(roof.threads, 'thread')}. "
        "These are the best readings; the median is ",
        join_phrases(
            [make_share(roof.read_bytes_per_s.spread), make_share(roof.flops_per_s.spread)], " and "
        ),
        " lower.",
    )


NOT_KNOWN = "What is not known"  # title of the section on missing evidence
CAUSE_NAMES = {
    Cause.DEQUANTIZATION: "dequantization",
    Cause.KERNEL: "products (kernel)",
    Cause.CASTS: "copies and casts",
    Cause.ATTENTION: "attention and KV cache",
    Cause.NORMS: "norms, activations, plain arithmetic",
    Cause.SAMPLING: "sampling",
    Cause.OTHER: "operators that no pattern knows",
    Cause.FRAMEWORK: "framework",
    Cause.UNEXPLAINED: "unexplained",
}
REASONS = {
    Cause.DEQUANTIZATION: "its kernel expands the weights to dense ones before each product",
    Cause.KERNEL: "the products take longer than the bytes and operations of their weights ask for",
    Cause.ATTENTION: "attention and the KV cache do not shrink with the weights",
}
PATHS = {
    KernelPath.QUANTIZED: "multiplies low-bit weights with low-bit activations",
    KernelPath.WEIGHT_ONLY: "reads low-bit weights and expands them inside the product",
    KernelPath.DEQUANTIZED: "expands the weights to dense ones and multiplies those",
    KernelPath.DENSE: "is not quantized",
}


def format_phase_name(account: PhaseAccount) -> str:
    """Return the phase's name as a capitalized word."""
    return "Prefill" if account.phase is Phase.PREFILL else "Decode"


def describe_speed(explanation: Explanation) -> Phrase:
    """Return the measured speed and whether it differs from the baseline's.

    `Measured: 0.83× [0.82, 0.84] as fast as the baseline by output throughput (5,244 tok/s …): …`
    """
    speed = make_ratio(explanation.speed)
    definition = explanation.definition
    variant_metric = make_mean_quantity(explanation.own_primary_metric, definition)
    baseline_metric = make_mean_quantity(explanation.baseline_primary_metric, definition)
    if speed is None or variant_metric is None or baseline_metric is None:
        return say("Measured: nothing that can be compared.")
    return say(
        "Measured: ",
        speed,
        f" as fast as the baseline by {definition.name} (",
        variant_metric,
        " against ",
        baseline_metric,
        f"): {_describe_significance(explanation)}.",
    )


def is_explained_by_chance(speed: Estimate) -> bool:
    """Return True if the interval of a speed-up contains 1."""
    return speed.interval is not None and not speed.excludes(1)


def _describe_significance(explanation: Explanation) -> str:
    assert explanation.speed is not None
    if explanation.speed.interval is None:
        return "too few trials to say more"
    if is_explained_by_chance(explanation.speed):
        return "the difference is not significant"
    if explanation.speed.is_below(1):
        return "it is significantly slower"
    return "it is significantly faster"


def describe_expected_gain(explanation: Explanation) -> Phrase:
    """Return the expected gains, or an empty phrase if the size of the weights is unknown."""
    stored = explanation.own.stored_bytes
    baseline_stored = explanation.baseline.stored_bytes
    if stored is None or baseline_stored is None:
        return ()
    parts: list[Words] = [
        say(
            "Expected: its weights take ",
            make_size(stored),
            " where the baseline's take ",
            make_size(baseline_stored),
            ", so a step that only reads them would be ",
            Quantity(baseline_stored / stored, Unit.RATIO),
            " as fast",
        )
    ]
    for account in explanation.phases:
        if account.expected_gain is None:
            continue
        basis = " with KV cache and activations"
        if account.is_roofline and account.own.attainable is not None:
            bound = BOUNDS[account.own.attainable.bound]
            basis = f" under this machine's roof, where {bound} bounds it"
        gain = Quantity(account.expected_gain, Unit.RATIO)
        parts.append(say(f"{account.phase.value} ", gain, basis))
    return say(join_phrases(parts, "; "), ".")


def describe_kernel_path(explanation: Explanation) -> Phrase:
    """Return that the variant's weights become dense again, or an empty phrase if they do not."""
    variant = explanation.own
    if variant.is_expanded:
        return say(
            "It runs dense: its weights were expanded while they were loaded (",
            make_size(variant.stored_bytes),
            " stored, ",
            make_size(variant.loaded_bytes),
            " in memory), so a step reads no fewer bytes than the baseline's.",
        )
    if variant.path is not KernelPath.DEQUANTIZED or not variant.is_quantized:
        return ()
    untimed = f"; how much time that takes is not measured (see {NOT_KNOWN.lower()})"
    for account in explanation.phases:
        if any(part.cause is Cause.DEQUANTIZATION for part in account.parts):
            untimed = ""
    return say(
        "Its kernel makes dense weights of the stored ones before each product and multiplies "
        f"those{untimed}."
    )


def describe_warnings(explanation: Explanation) -> Phrase:
    """Return the engine's own warnings about speed, or an empty phrase if it has none."""
    warnings = [say("“", warning, "”") for warning in explanation.own.warnings]
    if not warnings:
        return ()
    return say("The engine warns: ", join_phrases(warnings, "; "), ".")


def describe_cause(explanation: Explanation, account: PhaseAccount, part: Part) -> Phrase:
    """Return one cause with its excess: `Decode, dequantization: 6.7 ms more per step than …`"""
    return say(
        f"{format_phase_name(account)}, {CAUSE_NAMES[part.cause]}: ",
        make_seconds(part.excess_s),
        " more per step than expected: ",
        _describe_reason(explanation, part),
        _describe_growth(part),
        ".",
    )


def _describe_growth(part: Part) -> Phrase:
    if part.own_s is None or part.baseline_s is None:
        return ()
    return say(
        ", ", make_seconds(part.own_s), " where the baseline takes ", make_seconds(part.baseline_s)
    )


def _describe_reason(explanation: Explanation, part: Part) -> Phrase:
    variant = explanation.own
    if part.cause is Cause.DEQUANTIZATION and variant.is_expanded:
        return say(
            "the weights are stored in ",
            make_size(variant.stored_bytes),
            " but take ",
            make_size(variant.loaded_bytes),
            " in memory",
            ", so each step reads dense weights",
        )
    if part.cause is Cause.FRAMEWORK:
        batch = explanation.workload.concurrency
        return say(f"work between the operators does not shrink at a batch of {batch}")
    return say(REASONS.get(part.cause, "they do not shrink with the weights"))


def describe_unexplained_time(account: PhaseAccount) -> Phrase:
    """Return how much of a step's time no cause explains."""
    assert account.unexplained is not None
    rest_s = account.unexplained.excess_s
    estimate = account.unexplained_s
    step_s = account.own.step.value
    head = say(
        f"{format_phase_name(account)}: a step takes ",
        make_seconds(step_s),
        ", expected ",
        make_seconds(account.expected_s),
        "; ",
    )
    unexplained = make_quantity(estimate, Unit.SECONDS) or make_seconds(rest_s)
    if estimate is not None and not estimate.excludes(0):
        return say(
            head,
            unexplained,
            " is left unexplained, which is within the error of the trials: it may be nothing.",
        )
    if rest_s < 0:
        return say(
            head, make_seconds(-rest_s), " less than the causes add up to, and that is unexplained."
        )
    return say(
        head,
        unexplained,
        " of it (",
        make_share(rest_s / step_s),
        " of the step) is unexplained: no record says where it goes.",
    )


def describe_shares(account: PhaseAccount) -> Phrase:
    """Return how the lines of a phase's table are computed."""
    assert account.expected_gain is not None
    basis = "by the roofline" if account.is_roofline else "by bytes alone"
    source = ""
    if account.is_profiled:
        source = (
            " Lines are the shares of operator profiles, applied to steps with the profiler off."
        )
    return say(
        "Expected is ",
        make_share(1 / account.expected_gain),
        f" of the baseline's time ({basis}). A line's excess is what it takes beyond that share of "
        "the baseline's line: it did not shrink, or it grew.",
        source,
    )


def describe_kernels(side: Side) -> Phrase:
    """Return the kernels of one side, the path of most layers, and the engine's notes."""
    path = ""
    if side.path:
        path = f"; most of its layers run on a kernel that {PATHS[side.path]}"
    kernels = join_phrases(side.kernels, "; ") or "the engine does not report its kernels"
    notes = [f" {note}." for note in side.notes]
    return say(Name(side.config.name), ": ", kernels, path, ".", *notes)


def describe_gap(explanation: Explanation, gap: Gap) -> Phrase:
    """Return what is unknown, and how to measure it."""
    batch = explanation.workload.concurrency
    sentences = {
        Missing.PROFILE: "Which operators take the time: there is no operator profile of both; ",
        Missing.PROFILE_BATCH: f"Which operators take the time at a batch of {batch}: profiles are "
        f"of batch {gap.detail}; ",
        Missing.PROFILER: "Which operators take the time: bitbench has no profiler for "
        f"{gap.detail}.",
        Missing.ROOF: "What this machine can do at most, and so what prefill could gain: "
        f"{gap.detail}.",
        Missing.COST: f"What a step of this model has to read and compute: {gap.detail}.",
        Missing.PHASES: "Prefill and decode apart: the records have no times of single tokens.",
        Missing.STARTS: "How much a restart would change: one side has a single start of its "
        "engine.",
    }
    sentence = sentences[gap.missing]
    if gap.missing not in (Missing.PROFILE, Missing.PROFILE_BATCH):
        return say(sentence)
    setting = Name(f"profile: {{batch: {batch}}}")
    return say(sentence, "add ", setting, " to study.yaml and repeat ", Name("bitbench run"), ".")
