"""The sentences of an explanation, and the section that says how near each point comes to the roof."""

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
    mean_quantity,
    number,
    quantity,
    seconds,
    share,
    size,
    times,
)
from bitbench.reports.document.words import (
    Words,
    joined,
    number_column,
    paragraph,
    plural,
    say,
    small_print,
    table,
    words_column,
)
from bitbench.study.model_cost import StepCost

COUNTED = (
    "Counted for a step of the whole batch: weights once, keys and values, inputs and outputs of the linear layers, "
    "products and attention. Not counted: norms, sampling, what devices tell each other, and what an engine does "
    "besides. A decode step is timed as the time per output token, a prefill as the time until all requests of the "
    "batch have their first token."
)
EXPERTS_COUNTED = (
    "Of a mixture's experts those are read that the tokens of a step touch if its router sends them evenly; one that "
    "prefers some experts reads less."
)
BOUNDS = {Bound.MEMORY: "reading", Bound.ARITHMETIC: "computing"}


class RoofLine(NamedTuple):
    """A phase of a config at a workload: what a step asks for, and how fast it is."""

    workload: str
    phase: Phase
    config: str
    cost: StepCost
    attainable: Attainable | None
    step_s: float


def roofline_section(found: Roofline, _: StudySummary) -> Section:
    lines = [
        RoofLine(
            point.point.workload,
            point.phase,
            point.point.config.name,
            point.cost,
            point.attainable,
            point.step_s,
        )
        for point in found.points
    ]
    return asked_of_step_section("How near to the roof", lines, found.roof)


def asked_of_step_section(
    title: str, lines: Sequence[RoofLine], roof: MachineRoof | None
) -> Section:
    """What steps have to read and compute, how fast that could be here, and how fast it is."""
    asked = table(
        lines,
        words_column("Workload", lambda line: Name(line.workload)),
        words_column("Phase", lambda line: line.phase.value),
        words_column("Config", lambda line: Name(line.config)),
        number_column("Weights", Unit.BYTES, lambda line: line.cost.weight_bytes),
        number_column("Experts touched", Unit.SHARE, lambda line: line.cost.touched_experts),
        number_column("KV cache", Unit.BYTES, lambda line: line.cost.kv_bytes),
        number_column("Activations", Unit.BYTES, lambda line: line.cost.activation_bytes),
        number_column("Work", "Gflop", lambda line: line.cost.flops / 1e9),
        number_column(
            "Fastest here",
            Unit.SECONDS,
            lambda line: line.attainable.seconds if line.attainable else None,
        ),
        words_column(
            "Bound by", lambda line: BOUNDS[line.attainable.bound] if line.attainable else None
        ),
        number_column("Measured", Unit.SECONDS, lambda line: line.step_s),
        number_column(
            "Share reached",
            Unit.SHARE,
            lambda line: line.attainable.seconds / line.step_s if line.attainable else None,
        ),
        drop_empty=True,
    )
    has_experts = any(line.cost.touched_experts is not None for line in lines)
    counted = f"{COUNTED} {EXPERTS_COUNTED}" if has_experts else COUNTED
    blocks: list[Block] = [] if roof is None else [Paragraph(roof_sentence(roof))]
    if any(line.attainable and line.attainable.seconds > line.step_s for line in lines):
        blocks.append(
            paragraph(
                "More than all of the roof was reached: it was measured while this machine was slower; "
                "remove roof.json to repeat it."
            )
        )
    return Section(say(title), (*blocks, asked, small_print(counted)))


def roof_sentence(roof: MachineRoof) -> Phrase:
    def billions(rate: Readings, unit: str) -> Quantity | None:
        return number(rate.best / 1e9, unit)

    int8 = (
        say(", ", billions(roof.int8_ops_per_s, "Gop/s"), " in int8") if roof.int8_ops_per_s else ()
    )
    return say(
        "This machine reads ",
        billions(roof.read_bytes_per_s, "GB/s"),
        " and computes ",
        billions(roof.flops_per_s, "Gflop/s"),
        " in bfloat16, ",
        billions(roof.float32_flops_per_s, "Gflop/s"),
        " in float32",
        int8,
        f" with {plural(roof.threads, 'thread')}. These are the best readings; the median is ",
        joined([share(roof.read_bytes_per_s.spread), share(roof.flops_per_s.spread)], " and "),
        " lower.",
    )


NOT_KNOWN = "What is not known"  # the section that says what would tell more
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


def explained_phase_name(account: PhaseAccount) -> str:
    return "Prefill" if account.phase is Phase.PREFILL else "Decode"


def explained_speed_sentence(of: Explanation) -> Phrase:
    """`Measured: 0.83× [0.82, 0.84] as fast as the baseline by output throughput (5,244 tok/s against …): …`"""
    speed = times(of.speed)
    own, baseline = (
        mean_quantity(figure, of.definition)
        for figure in (of.own_primary_metric, of.baseline_primary_metric)
    )
    if speed is None or own is None or baseline is None:
        return say("Measured: nothing that can be compared.")
    what = f" as fast as the baseline by {of.definition.name} ("
    return say("Measured: ", speed, what, own, " against ", baseline, f"): {_standing(of)}.")


def is_explained_by_chance(speed: Estimate) -> bool:
    return speed.interval is not None and not speed.excludes(1)


def _standing(of: Explanation) -> str:
    assert of.speed is not None
    if of.speed.interval is None:
        return "too few trials to say more"
    if is_explained_by_chance(of.speed):
        return "the difference is not significant"
    return "it is significantly slower" if of.speed.is_below(1) else "it is significantly faster"


def expected_sentence(of: Explanation) -> Phrase:
    """Empty where the size of the weights is not known."""
    own, baseline = of.own.stored_bytes, of.baseline.stored_bytes
    if own is None or baseline is None:
        return ()
    takes = say(
        "Expected: its weights take ", size(own), " where the baseline's take ", size(baseline)
    )
    parts: list[Words] = [
        say(
            takes,
            ", so a step that only reads them would be ",
            Quantity(baseline / own, Unit.RATIO),
            " as fast",
        )
    ]
    for account in of.phases:
        if account.expected_gain is None:
            continue
        how = " with KV cache and activations"
        if account.is_roofline and account.own.attainable is not None:
            how = f" under this machine's roof, where {BOUNDS[account.own.attainable.bound]} bounds it"
        parts.append(
            say(f"{account.phase.value} ", Quantity(account.expected_gain, Unit.RATIO), how)
        )
    return say(joined(parts, "; "), ".")


def kernel_path_sentence(of: Explanation) -> Phrase:
    """That its weights are made dense again, where the records show it; else empty."""
    if of.own.is_expanded:
        return say(
            "It runs dense: its weights were expanded while they were loaded (",
            size(of.own.stored_bytes),
            " stored, ",
            size(of.own.loaded_bytes),
            " in memory), so a step reads no fewer bytes than the baseline's.",
        )
    if of.own.path is not KernelPath.DEQUANTIZED or not of.own.is_quantized:
        return ()
    is_timed = any(
        part.cause is Cause.DEQUANTIZATION for account in of.phases for part in account.parts
    )
    untimed = (
        "" if is_timed else f"; how much time that takes is not measured (see {NOT_KNOWN.lower()})"
    )
    return say(
        f"Its kernel makes dense weights of the stored ones before each product and multiplies those{untimed}."
    )


def explained_warnings_sentence(of: Explanation) -> Phrase:
    """What the engine itself says against its speed; empty where it says nothing."""
    said = [say("“", warning, "”") for warning in of.own.warnings]
    return say("The engine warns: ", joined(said, "; "), ".") if said else ()


def cause_sentence(of: Explanation, account: PhaseAccount, part: Part) -> Phrase:
    """`Decode, dequantization: 6.7 ms more per step than expected: …`"""
    head = f"{explained_phase_name(account)}, {CAUSE_NAMES[part.cause]}: "
    return say(
        head,
        seconds(part.excess_s),
        " more per step than expected: ",
        _why(of, part),
        _grown(part),
        ".",
    )


def _grown(part: Part) -> Phrase:
    if part.own_s is None or part.baseline_s is None:
        return ()
    return say(", ", seconds(part.own_s), " where the baseline takes ", seconds(part.baseline_s))


def _why(of: Explanation, part: Part) -> Phrase:
    if part.cause is Cause.DEQUANTIZATION and of.own.is_expanded:
        stored, loaded = size(of.own.stored_bytes), size(of.own.loaded_bytes)
        memory = say("the weights are stored in ", stored, " but take ", loaded, " in memory")
        return say(memory, ", so each step reads dense weights")
    if part.cause is Cause.FRAMEWORK:
        return say(
            f"work between the operators does not shrink at a batch of {of.workload.concurrency}"
        )
    return say(REASONS.get(part.cause, "they do not shrink with the weights"))


def unexplained_sentence(account: PhaseAccount) -> Phrase:
    assert account.unexplained is not None
    rest, known = account.unexplained.excess_s, account.unexplained_s
    step = account.own.step.value
    expected_step = seconds(account.expected_s)
    head = say(
        f"{explained_phase_name(account)}: a step takes ",
        seconds(step),
        ", expected ",
        expected_step,
        "; ",
    )
    left = quantity(known, Unit.SECONDS) or seconds(rest)
    if known is not None and not known.excludes(0):
        return say(
            head,
            left,
            " is left unexplained, which is within the error of the trials: it may be nothing.",
        )
    if rest < 0:
        return say(
            head, seconds(-rest), " less than the causes add up to, and that is unexplained."
        )
    of_step = share(rest / step)
    return say(
        head,
        left,
        " of it (",
        of_step,
        " of the step) is unexplained: no record says where it goes.",
    )


def shares_sentence(account: PhaseAccount) -> Phrase:
    """How the lines of a phase's table are made."""
    assert account.expected_gain is not None
    how = "by the roofline" if account.is_roofline else "by bytes alone"
    return say(
        "Expected is ",
        share(1 / account.expected_gain),
        f" of the baseline's time ({how}). A line's excess is what it takes beyond that share of the baseline's line: "
        "it did not shrink, or it grew.",
        " Lines are the shares of operator profiles, applied to steps with the profiler off."
        if account.is_profiled
        else "",
    )


def explained_kernel_sentence(side: Side) -> Phrase:
    how = f"; most of its layers run on a kernel that {PATHS[side.path]}" if side.path else ""
    kernels = joined(side.kernels, "; ") or "the engine does not report its kernels"
    return say(
        Name(side.config.name), ": ", kernels, how, ".", *(f" {note}." for note in side.notes)
    )


def gap_sentence(of: Explanation, found: Gap) -> Phrase:
    """What is not known, and what would tell."""
    batch = of.workload.concurrency
    said = {
        Missing.PROFILE: "Which operators take the time: there is no operator profile of both; ",
        Missing.PROFILE_BATCH: f"Which operators take the time at a batch of {batch}: profiles are of batch "
        f"{found.detail}; ",
        Missing.PROFILER: f"Which operators take the time: bitbench has no profiler for {found.detail}.",
        Missing.ROOF: f"What this machine can do at most, and so what prefill could gain: {found.detail}.",
        Missing.COST: f"What a step of this model has to read and compute: {found.detail}.",
        Missing.PHASES: "Prefill and decode apart: the records have no times of single tokens.",
        Missing.STARTS: "How much a restart would change: one side has a single start of its engine.",
    }[found.missing]
    if found.missing not in (Missing.PROFILE, Missing.PROFILE_BATCH):
        return say(said)
    setting = Name(f"profile: {{batch: {batch}}}")
    return say(said, "add ", setting, " to study.yaml and repeat ", Name("bitbench run"), ".")
