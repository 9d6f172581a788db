"""The sentences of an explanation."""

from collections.abc import Callable, Iterator

from bitbench.core.found.explanation import Cause, Explanation, Gap, Missing, Part, PhaseAccount, Side
from bitbench.core.recorded.profile import Phase
from bitbench.core.recorded.trial import KernelPath
from bitbench.ground.units import show_bytes, show_percent, show_seconds
from bitbench.report.document.numbers import mean, scale_for, times
from bitbench.report.sections.roofline import BOUNDS

Quote = Callable[[str], str]

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
PATHS = {
    KernelPath.QUANTIZED: "multiplies low-bit weights with low-bit activations",
    KernelPath.WEIGHT_ONLY: "reads low-bit weights and expands them inside the product",
    KernelPath.DEQUANTIZED: "expands the weights to dense ones and multiplies those",
    KernelPath.DENSE: "is not quantized",
}


def measured_sentence(of: Explanation) -> str:
    """`Measured: 0.83× [0.82, 0.84] the output throughput of the baseline (5,244 and 6,305 tok/s): slower.`"""
    if of.speed is None or of.own_headline is None or of.baseline_headline is None:
        return "Measured: nothing that can be compared."
    scale = scale_for(of.definition, [of.own_headline.mean, of.baseline_headline.mean])
    figures = f"{mean(of.own_headline, scale)} against {mean(of.baseline_headline, scale)} {scale.unit}"
    return f"Measured: {times(of.speed)} as fast as the baseline by {of.definition.name} ({figures}): {_standing(of)}."


def _standing(of: Explanation) -> str:
    assert of.speed is not None
    interval = of.speed.interval
    if interval is None:
        return "too few trials to say more"
    if interval.low <= 1 <= interval.high:
        return "the two cannot be told apart"
    return "it is slower" if interval.high < 1 else "it is faster"


def expected_sentence(of: Explanation) -> str:
    own, baseline = of.own.stored_bytes, of.baseline.stored_bytes
    assert own is not None
    assert baseline is not None
    parts = [
        f"Expected: its weights take {show_bytes(own)} where the baseline's take {show_bytes(baseline)}, so a step "
        f"that did nothing but read them would be {baseline / own:.2f}× as fast"
    ]
    for one in of.phases:
        if one.expected_gain is None:
            continue
        how = "with KV cache and activations"
        if one.is_roofline and one.own.attainable is not None:
            how = f"under this machine's roof, where {BOUNDS[one.own.attainable.bound]} bounds it"
        parts.append(f"{one.phase.value} {one.expected_gain:.2f}× {how}")
    return f"{'; '.join(parts)}."


def reached_sentence(of: Explanation) -> str | None:
    """`Reached: in decode 21 % of what this machine could do, the baseline 34 %.`"""
    parts = [
        f"in {one.phase.value} {show_percent(one.own.roof_share)} of what this machine could do, the baseline "
        f"{show_percent(one.baseline.roof_share)}"
        for one in of.phases
        if one.own.roof_share is not None and one.baseline.roof_share is not None
    ]
    shares = [side.roof_share or 0 for one in of.phases for side in (one.own, one.baseline)]
    exceeded = (
        " More than all of it: the roof was measured while this machine was slower; remove roof.json to do it again."
        if max(shares, default=0) > 1
        else ""
    )
    return f"Reached: {'; '.join(parts)}.{exceeded}" if parts else None


def path_sentence(of: Explanation) -> str | None:
    """That its weights are made dense again, where the records show it."""
    if of.own.is_expanded:
        return (
            f"It runs dense: its weights were expanded while they were loaded ({show_bytes(of.own.stored_bytes)} "
            f"stored, {show_bytes(of.own.loaded_bytes)} in memory), so a step reads no fewer bytes than the baseline's."
        )
    if of.own.path is not KernelPath.DEQUANTIZED or not of.own.is_quantized:
        return None
    told = any(part.cause is Cause.DEQUANTIZATION for one in of.phases for part in one.parts)
    unmeasured = "" if told else "; how much time that takes is not measured (see what is not known)"
    return f"Its kernel makes dense weights of the stored ones before each product and multiplies those{unmeasured}."


def cause_sentence(of: Explanation, one: PhaseAccount, part: Part) -> str:
    """`Decode, dequantization: 6.7 ms more per step than expected: …`"""
    head = f"{_phase(one)}, {CAUSE_NAMES[part.cause]}: {show_seconds(part.excess_s)} more per step than expected"
    return f"{head}: {_why(of, part)}."


def _why(of: Explanation, part: Part) -> str:
    grown = ""
    if part.own_s is not None and part.baseline_s is not None:
        grown = f", {show_seconds(part.own_s)} where the baseline takes {show_seconds(part.baseline_s)}"
    match part.cause:
        case Cause.DEQUANTIZATION if of.own.is_expanded:
            return (
                f"the weights are stored in {show_bytes(of.own.stored_bytes)} but lie in memory in "
                f"{show_bytes(of.own.loaded_bytes)}, so each step reads dense weights{grown}"
            )
        case Cause.DEQUANTIZATION:
            return f"its kernel expands the weights to dense ones before each product{grown}"
        case Cause.KERNEL:
            return f"the products take longer than the bytes and operations of their weights ask for{grown}"
        case Cause.ATTENTION:
            return f"attention and the KV cache do not shrink with the weights{grown}"
        case Cause.FRAMEWORK:
            return f"work between the operators does not shrink at a batch of {of.workload.concurrency}{grown}"
        case _:
            return f"they do not shrink with the weights{grown}"


def unexplained_sentence(one: PhaseAccount) -> str:
    assert one.unexplained is not None
    assert one.excess_s is not None
    assert one.expected_s is not None
    rest, interval = one.unexplained.excess_s, one.unexplained_interval
    known = f" [{_signed(interval.low)}, {_signed(interval.high)}]" if interval else ""
    step = f"a step takes {show_seconds(one.own.step.mean)}, expected {show_seconds(one.expected_s)}"
    if interval is not None and interval.low <= 0 <= interval.high:
        return (
            f"{_phase(one)}: {step}; {_signed(rest)}{known} is left unexplained, which is within the error of the "
            "trials: it may be nothing."
        )
    if rest < 0:
        return f"{_phase(one)}: {step}; {show_seconds(-rest)} less than the causes add up to, and that is unexplained."
    return (
        f"{_phase(one)}: {step}; {show_seconds(rest)}{known} of it ({show_percent(rest / one.own.step.mean)} of the "
        "step) is unexplained: no record says where it goes."
    )


def kernel_sentences(of: Explanation, quote: Quote, text: Quote) -> Iterator[tuple[Side, str]]:
    for side in (of.own, of.baseline):
        how = f"; most of its layers run on a kernel that {PATHS[side.path]}" if side.path else ""
        kernels = "; ".join(text(kernel) for kernel in side.kernels) or "the engine does not say"
        notes = "".join(f" {text(note)}." for note in side.notes)
        yield side, f"{quote(side.contender.name)}: {kernels}{how}.{notes}"


def gap_sentence(of: Explanation, gap: Gap, text: Quote) -> str:
    batch = of.workload.concurrency
    command = f"add `profile: {{batch: {batch}}}` to study.yaml and give `bitbench run` again"
    match gap.missing:
        case Missing.PROFILE:
            return f"Which operators take the time: there is no operator profile of both; {command}."
        case Missing.PROFILE_BATCH:
            return (
                f"Which operators take the time at a batch of {batch}: profiles are of batch {gap.detail}; {command}."
            )
        case Missing.ROOF:
            return f"What this machine can do at most, and so what prefill could gain: {text(gap.detail)}."
        case Missing.COST:
            return f"What a step of this model has to read and compute: {text(gap.detail)}."
        case Missing.PHASES:
            return "Prefill and decode apart: the records have no times of single tokens."
        case Missing.STARTS:
            return "How much the next start would differ: one side rests on a single start of its engine."


def _signed(seconds: float) -> str:
    return f"{'−' if seconds < 0 else ''}{show_seconds(abs(seconds))}"


def _phase(one: PhaseAccount) -> str:
    return "Prefill" if one.phase is Phase.PREFILL else "Decode"
