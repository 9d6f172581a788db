"""Why is this variant as fast as it is? What was expected, what was measured, and which group of operators takes the
difference.

With r = expected time / time of the baseline, each group of the profiles takes g(variant) − r · g(baseline) more than
its share of what was expected: a group that did not shrink though the step should have, or one that grew. These and
the unexplained rest add up to the whole difference. A profile divides its own step; its shares are applied to the
steps of the same instance with the profiler off, and what the trials took beyond those is not explained by it.

From the records of a study alone; what they do not tell is said.
"""

from collections.abc import Mapping, Sequence
from math import hypot
from statistics import median

from bitbench.analysis.absolute import mean_interval, metric_estimates, pooled_variance
from bitbench.analysis.configs import PhaseSide, Side, config_side, config_variant
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.roofline import phase_side, phase_step_sample, roofline_points
from bitbench.analysis.summarize import samples_by_point, summarize_speeds
from bitbench.analysis.trial import DEFINITIONS
from bitbench.analysis.unpaired import unpaired_ratio
from bitbench.engines import registry
from bitbench.features.explain.types import (
    Cause,
    Explanation,
    Gap,
    Missing,
    Part,
    PhaseAccount,
    Profiles,
    Roofline,
)
from bitbench.records.folder import StudyRecords
from bitbench.records.profile import OperatorProfile, Phase, ProfileGroup
from bitbench.records.trial import InstanceFacts, KernelPath
from bitbench.study.metrics import METRICS
from bitbench.study.model_cost import why_cost_unknown
from bitbench.study.plan import Config, Point
from bitbench.study.workload import Workload

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


def _explain_phase(
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
        return PhaseAccount(
            phase=phase, own=own, baseline=baseline, speed=speed, expected_gain=None
        )
    share = 1 / gain
    expanded = _expanded(own, baseline, share)
    parts = [expanded] if expanded else []
    if profiles is not None:
        groups = (_seconds(profiles[0], own.step.value), _seconds(profiles[1], baseline.step.value))
        parts = _from_groups(groups, share, sides[0], is_dense=expanded is not None)
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
        unexplained=Part(cause=Cause.UNEXPLAINED, excess_s=rest),
        unexplained_s=_rest(own, baseline, share, rest, confidence),
        is_profiled=profiles is not None,
    )


def _pick_profiles(
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


def _expanded(own: PhaseSide, baseline: PhaseSide, share: float) -> Part | None:
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
    return Part(cause=Cause.DEQUANTIZATION, excess_s=excess) if excess > 0 else None


def _from_groups(
    groups: tuple[Seconds, Seconds], share: float, side: Side, *, is_dense: bool
) -> list[Part]:
    """`is_dense`: its weights were expanded while they were loaded."""
    own, baseline = groups
    parts = []
    for cause in dict.fromkeys(CAUSES.values()):
        before, after = baseline.get(cause, 0.0), own.get(cause, 0.0)
        if before == after == 0:
            continue
        excess = after - share * before
        part = Part(cause=cause, excess_s=excess, baseline_s=before, own_s=after)
        if cause is Cause.KERNEL and is_dense and excess > 0:
            # The products read dense weights: so far as they take no longer than the baseline's, that is why.
            dense = min(excess, (1 - share) * before)
            parts.append(
                Part(
                    cause=Cause.DEQUANTIZATION,
                    excess_s=dense,
                    baseline_s=before,
                    own_s=after,
                )
            )
            part = part.model_copy(
                update={"excess_s": excess - dense, "baseline_s": None, "own_s": None}
            )
        elif (
            cause is Cause.CASTS
            and side.path is KernelPath.DEQUANTIZED
            and not is_dense
            and after > before
        ):
            part = part.model_copy(update={"cause": Cause.DEQUANTIZATION})
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


def _rest(
    own: PhaseSide, baseline: PhaseSide, share: float, rest: float, confidence: float
) -> Estimate | None:
    """As far as the trials vary; how a profile varies from instance to instance is not known."""
    ends = [side.step.interval for side in (own, baseline)]
    halves = [(end.high - end.low) / 2 for end in ends if end is not None]
    if len(halves) < len(ends):
        return None
    half = hypot(halves[0], share * halves[1])
    return Estimate(value=rest, low=rest - half, high=rest + half, confidence=confidence)


OPERATORS_IN_REPORT = 8


def summarize_profiles(of: StudyRecords) -> Profiles | None:
    """What a report shows of the operator profiles; None where there are none."""
    shown = tuple(map(_shortened, of.profiles))
    return Profiles(profiles=shown) if shown else None


def _shortened(profile: OperatorProfile) -> OperatorProfile:
    """Keep the operators that take the most time of their own, and no path of this machine."""
    return profile.model_copy(
        update={"operators": profile.operators[:OPERATORS_IN_REPORT], "facts": InstanceFacts()}
    )


def explain_roofline(of: StudyRecords) -> Roofline | None:
    """None where the roof of the machine was not measured, or no cost is known."""
    points = roofline_points(of)
    return Roofline(roof=of.roof, points=points) if of.roof is not None and points else None


def compute_explanation(
    of: StudyRecords, config: Config, baseline: Config, workload: Workload, *, no_roof: str = ""
) -> Explanation:
    """`no_roof`: why the roof of the machine was not measured, where it was not."""
    plan, confidence = of.plan, of.plan.study.measure.confidence
    metric = METRICS[plan.study.measure.metric].column
    definition = DEFINITIONS[metric]
    pair = (config, baseline)
    figures = metric_estimates(samples_by_point(of), metric, confidence)
    own, other = (figures.get(Point(config=each, workload=workload.name)) for each in pair)
    sides = (config_side(of, config, workload), config_side(of, baseline, workload))
    phases = tuple(_phases(of, pair, workload, sides))
    return Explanation(
        study=plan.study.name,
        workload=workload,
        definition=definition,
        own=sides[0],
        baseline=sides[1],
        own_primary_metric=own,
        baseline_primary_metric=other,
        speed=speeds_to_explain(of, config, baseline).get(workload.name),
        confidence=confidence,
        phases=phases,
        known_beforehand=next(
            (expectation.why for expectation in plan.expectations if expectation.config == config),
            None,
        ),
        roof=of.roof,
        gaps=tuple(_gaps(of, pair, phases, sides, no_roof)),
    )


def speeds_to_explain(of: StudyRecords, config: Config, baseline: Config) -> dict[str, Estimate]:
    """By every workload at which both have a result, by the primary metric of the study."""
    speeds = summarize_speeds(of, config)
    ratios = {
        workload.name: speeds.between(config, baseline, workload.name)
        for workload in of.plan.study.workloads
    }
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _phases(
    of: StudyRecords, pair: tuple[Config, Config], workload: Workload, sides: tuple[Side, Side]
) -> list[PhaseAccount]:
    confidence = of.plan.study.measure.confidence
    variants = [config_variant(of.plan, each) for each in pair]
    found = []
    for phase in Phase:
        points = [Point(config=each, workload=workload.name) for each in pair]
        own, other = (phase_step_sample(phase, workload, of.counted(point)) for point in points)
        if own is None or other is None or variants[0] is None or variants[1] is None:
            continue
        shared = pooled_variance([own, other])
        steps = [mean_interval(seconds, confidence, shared) for seconds in (own, other)]
        measured = [
            phase_side(phase, workload, variant, side, step=step, roof=of.roof)
            for variant, side, step in zip((variants[0], variants[1]), sides, steps, strict=True)
        ]
        found.append(
            _explain_phase(
                phase,
                *measured,
                speed=unpaired_ratio(other, own, confidence),
                sides=sides,
                profiles=_pick_profiles(of.profiles, pair, phase, workload.concurrency),
                confidence=confidence,
            )
        )
    return found


def _gaps(
    of: StudyRecords,
    pair: tuple[Config, Config],
    phases: Sequence[PhaseAccount],
    sides: tuple[Side, Side],
    no_roof: str,
) -> list[Gap]:
    gaps = []
    variant = config_variant(of.plan, pair[0])
    if not phases:
        gaps.append(Gap(missing=Missing.PHASES))
    elif not all(phase.is_profiled for phase in phases if phase.expected_gain is not None):
        own, other = (
            {profile.batch for profile in of.profiles if profile.config == config}
            for config in pair
        )
        batches = sorted(own & other)
        kind = Missing.PROFILE_BATCH if batches else Missing.PROFILE
        known, names = (
            registry.engines(),
            {of.plan.study.engine(config.engine).engine for config in pair},
        )
        unable = sorted(name for name in names if name not in known or not known[name].can_profile)
        gaps.append(
            Gap(missing=Missing.PROFILER, detail=" and ".join(unable))
            if unable
            else Gap(missing=kind, detail=", ".join(map(str, batches)))
        )
    if variant is None or (reason := why_cost_unknown(variant.facts)):
        gaps.append(Gap(missing=Missing.COST, detail=reason if variant else "the model is unknown"))
    elif sides[0].stored_bytes is None or sides[1].stored_bytes is None:
        gaps.append(
            Gap(
                missing=Missing.COST,
                detail="the engine does not report the size of the loaded weights",
            )
        )
    if of.roof is None:
        gaps.append(Gap(missing=Missing.ROOF, detail=no_roof))
    if any(len(side.instances.ids) == 1 for side in sides):
        gaps.append(Gap(missing=Missing.STARTS))
    return gaps
