"""Where a step takes longer than the roofline predicts.

With r = expected time / time of the baseline, each group of the profiles takes g(variant) − r · g(baseline) more than
its share of what was expected: a group that did not shrink though the step should have, or one that grew. These and the
unexplained rest add up to the whole difference. A profile divides its own step; its shares are applied to the steps of
the same instance with the profiler off, and what the trials took beyond those is not explained by it.
"""

from collections.abc import Mapping, Sequence
from math import hypot
from statistics import median

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.sides import PhaseSide, Side, Source
from bitbench.features.explain.types import Cause, Part, PhaseAccount
from bitbench.records.profile import OperatorProfile, Phase, ProfileGroup
from bitbench.records.trial import KernelPath
from bitbench.study.plan import Config

Seconds = dict[Cause, float]  # per step

CAUSES = {
    ProfileGroup.QUANTIZED_MATMUL: Cause.KERNEL,
    ProfileGroup.DENSE_MATMUL: Cause.KERNEL,
    ProfileGroup.COPIES_CASTS: Cause.CASTS,
    ProfileGroup.ATTENTION: Cause.ATTENTION,
    ProfileGroup.NORM_ACTIVATION: Cause.NORMS,
    ProfileGroup.SAMPLING: Cause.SAMPLING,
    ProfileGroup.OTHER: Cause.OTHER,
    ProfileGroup.FRAMEWORK: Cause.FRAMEWORK,
}


def account(
    phase: Phase,
    own: PhaseSide,
    baseline: PhaseSide,
    *,
    speed: Estimate | None,
    sides: tuple[Side, Side],
    profiles: tuple[OperatorProfile, OperatorProfile] | None,
    confidence: float,
) -> PhaseAccount:
    """`sides` and `profiles`: config, baseline."""
    gain = _gain(phase, own, baseline)
    if gain is None:
        return PhaseAccount(phase=phase, own=own, baseline=baseline, speed=speed, expected_gain=None)
    share = 1 / gain
    expanded = _expanded(own, baseline, share, sides[0])
    parts = [expanded] if expanded else []
    if profiles is not None:
        groups = (_seconds(profiles[0], own.step.value), _seconds(profiles[1], baseline.step.value))
        sources = tuple(Source(file=f"profiles/{profile.id}.json") for profile in profiles)
        parts = _from_groups(groups, share, sides[0], sources, is_dense=expanded is not None)
    excess = own.step.value - share * baseline.step.value
    rest = excess - sum(part.excess_s for part in parts)
    return PhaseAccount(
        phase=phase,
        own=own,
        baseline=baseline,
        speed=speed,
        expected_gain=gain,
        is_roofline=own.attainable is not None and baseline.attainable is not None,
        parts=tuple(sorted(parts, key=lambda part: -part.excess_s)),
        unexplained=Part(cause=Cause.UNEXPLAINED, excess_s=rest, sources=tuple(side.trials for side in sides)),
        unexplained_s=_rest(own, baseline, share, rest, confidence),
        profiler_overheads=(_overhead(profiles[0]), _overhead(profiles[1])) if profiles else None,
    )


def pick_profiles(
    profiles: Sequence[OperatorProfile], configs: tuple[Config, Config], phase: Phase, batch: int
) -> tuple[OperatorProfile, OperatorProfile] | None:
    """Of both, at the same batch and context; None where one is missing."""
    found: list[Mapping[int, OperatorProfile]] = [
        {
            profile.context_tokens: profile
            for profile in profiles
            if (profile.config, profile.phase, profile.batch) == (config, phase, batch)
        }
        for config in configs
    ]
    common = sorted(found[0].keys() & found[1].keys())
    return (found[0][common[0]], found[1][common[0]]) if common else None


def _gain(phase: Phase, own: PhaseSide, baseline: PhaseSide) -> float | None:
    """Under the roof where it is known. From bytes alone only decode can be told: a prefill computes."""
    if own.attainable and baseline.attainable:
        return baseline.attainable.seconds / own.attainable.seconds
    if own.cost and baseline.cost and phase is Phase.DECODE:
        return baseline.cost.size_bytes / own.cost.size_bytes
    return None


def _expanded(own: PhaseSide, baseline: PhaseSide, share: float, side: Side) -> Part | None:
    """What it costs that the weights lie dense in memory: as much of the baseline's time as their bytes are more.

    Only as far as memory bounds the step: one that computes all the while does not wait for them.
    """
    if own.loaded_cost is None or own.cost is None or baseline.cost is None:
        return None
    loaded = own.loaded_cost.size_bytes / baseline.cost.size_bytes
    if own.attainable and baseline.attainable:
        loaded_s = own.attainable.memory_s * own.loaded_cost.size_bytes / own.cost.size_bytes
        loaded = max(loaded_s, own.attainable.arithmetic_s) / baseline.attainable.seconds
    excess = (min(loaded, 1.0) - share) * baseline.step.value
    return Part(cause=Cause.DEQUANTIZATION, excess_s=excess, sources=(side.instances,)) if excess > 0 else None


def _from_groups(
    groups: tuple[Seconds, Seconds], share: float, side: Side, sources: tuple[Source, ...], *, is_dense: bool
) -> list[Part]:
    """`is_dense`: its weights were expanded while they were loaded."""
    own, baseline = groups
    parts = []
    for cause in dict.fromkeys(CAUSES.values()):
        before, after = baseline.get(cause, 0.0), own.get(cause, 0.0)
        if before == after == 0:
            continue
        excess = after - share * before
        part = Part(cause=cause, excess_s=excess, baseline_s=before, own_s=after, sources=sources)
        if cause is Cause.KERNEL and is_dense and excess > 0:
            # The products read dense weights: so far as they take no longer than the baseline's, that is why.
            dense = min(excess, (1 - share) * before)
            parts.append(
                Part(
                    cause=Cause.DEQUANTIZATION,
                    excess_s=dense,
                    baseline_s=before,
                    own_s=after,
                    sources=(*sources, side.instances),
                )
            )
            part = part.model_copy(update={"excess_s": excess - dense, "baseline_s": None, "own_s": None})
        elif cause is Cause.CASTS and side.path is KernelPath.DEQUANTIZED and not is_dense and after > before:
            part = part.model_copy(update={"cause": Cause.DEQUANTIZATION, "sources": (*sources, side.instances)})
        parts.append(part)
    return parts


def _seconds(profile: OperatorProfile, step_s: float) -> Seconds:
    """Of a usual step with the profiler off: the median, since a busy machine makes single steps many times longer.

    A profile that was taken while the machine was slower than in the trials gives its shares of a trial's step: no
    group takes more than there is.
    """
    scale = min(median(profile.unprofiled.seconds), step_s) / profile.groups_s
    found: Seconds = {}
    for group in profile.groups:
        if group.group in CAUSES:
            found[CAUSES[group.group]] = found.get(CAUSES[group.group], 0.0) + scale * group.step_s
    return found


def _overhead(profile: OperatorProfile) -> float | None:
    return profile.overhead if profile.overhead_is_clear else None


def _rest(own: PhaseSide, baseline: PhaseSide, share: float, rest: float, confidence: float) -> Estimate | None:
    """As far as the trials vary; how a profile varies from instance to instance is not known."""
    ends = [side.step.interval for side in (own, baseline)]
    halves = [(end.high - end.low) / 2 for end in ends if end is not None]
    if len(halves) < len(ends):
        return None
    half = hypot(halves[0], share * halves[1])
    return Estimate(value=rest, low=rest - half, high=rest + half, confidence=confidence)
