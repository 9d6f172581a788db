"""Explain from the records of a study why a variant is as fast as it is.

An explanation compares the expected time of a step with its measured time. It then finds which
groups of operators take the difference.

With r = expected time / time of the baseline, each group of the profiles has the excess
g(variant) − r · g(baseline). A group has an excess if it did not shrink although the step should
have, or if it grew. The excesses and the unexplained rest add up to the whole difference.

A profile divides its own step. Its shares are applied to steps of the same instance with the
profiler off. Time that the trials took beyond those steps stays unexplained.

Only the records of a study are used. Missing evidence is listed as gaps.
"""

from collections.abc import Iterator, Sequence
from math import hypot
from statistics import median

from bitbench.analysis.absolute import estimate_mean, estimate_metric, pool_start_variances
from bitbench.analysis.configs import PhaseSide, Side, find_config_variant, summarize_config_side
from bitbench.analysis.intervals import Sample
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.roofline import find_phase_step_sample, list_roofline_points, make_phase_side
from bitbench.analysis.summarize import collect_samples, summarize_speeds
from bitbench.analysis.trial import DEFINITIONS
from bitbench.analysis.unpaired import estimate_unpaired_ratio
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
from bitbench.study.model_cost import explain_unknown_cost
from bitbench.study.plan import Config, Point
from bitbench.study.variant import Variant
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
    candidate: PhaseSide,
    baseline: PhaseSide,
    *,
    speed: Estimate | None,
    sides: tuple[Side, Side],
    profiles: tuple[OperatorProfile, OperatorProfile] | None,
    confidence: float,
) -> PhaseAccount:
    """Return where one phase takes more time than expected.

    `sides` and `profiles` hold the config's first, then the baseline's.
    """
    gain = _compute_expected_gain(phase, candidate, baseline)
    if gain is None:
        return PhaseAccount(
            phase=phase, own=candidate, baseline=baseline, speed=speed, expected_gain=None
        )
    share = 1 / gain
    expanded = _find_expansion_cost(candidate, baseline, share)
    parts: list[Part] = []
    if profiles is not None:
        candidate_seconds = _compute_cause_seconds(profiles[0], candidate.step.value)
        baseline_seconds = _compute_cause_seconds(profiles[1], baseline.step.value)
        parts = _list_parts(
            candidate_seconds, baseline_seconds, share, sides[0], is_dense=expanded is not None
        )
    elif expanded is not None:
        parts = [expanded]
    excess_s = candidate.step.value - share * baseline.step.value
    rest_s = excess_s - sum(part.excess_s for part in parts)
    return PhaseAccount(
        phase=phase,
        own=candidate,
        baseline=baseline,
        speed=speed,
        expected_gain=gain,
        is_roofline=candidate.attainable is not None and baseline.attainable is not None,
        parts=tuple(sorted(parts, key=lambda part: -part.excess_s)),
        unexplained=Part(cause=Cause.UNEXPLAINED, excess_s=rest_s),
        unexplained_s=_estimate_unexplained(candidate, baseline, share, rest_s, confidence),
        is_profiled=profiles is not None,
    )


def _pick_profiles(
    profiles: Sequence[OperatorProfile], pair: tuple[Config, Config], phase: Phase, batch: int
) -> tuple[OperatorProfile, OperatorProfile] | None:
    """Return the profiles of both configs at the shortest context that they share, or None."""
    candidate = _group_by_context(profiles, pair[0], phase, batch)
    baseline = _group_by_context(profiles, pair[1], phase, batch)
    shared = candidate.keys() & baseline.keys()
    if not shared:
        return None
    context_tokens = min(shared)
    return candidate[context_tokens], baseline[context_tokens]


def _group_by_context(
    profiles: Sequence[OperatorProfile], config: Config, phase: Phase, batch: int
) -> dict[int, OperatorProfile]:
    by_context: dict[int, OperatorProfile] = {}
    for profile in profiles:
        if (profile.config, profile.phase, profile.batch) == (config, phase, batch):
            by_context[profile.context_tokens] = profile
    return by_context


def _compute_expected_gain(phase: Phase, candidate: PhaseSide, baseline: PhaseSide) -> float | None:
    """Return the expected speed-up: by the roofline if it is known, else by bytes.

    Bytes alone predict only decoding, since a prefill is bound by arithmetic. None if unknown.
    """
    if candidate.attainable and baseline.attainable:
        return baseline.attainable.seconds / candidate.attainable.seconds
    if candidate.cost and baseline.cost and phase is Phase.DECODE:
        return baseline.cost.size_bytes / candidate.cost.size_bytes
    return None


def _find_expansion_cost(candidate: PhaseSide, baseline: PhaseSide, share: float) -> Part | None:
    """Return the excess time from weights that are dense in memory, or None if none exists.

    The time grows with the bytes, but only as far as memory bounds the step. A step that is
    bound by arithmetic does not wait for weights.
    """
    if candidate.loaded_cost is None or candidate.cost is None or baseline.cost is None:
        return None
    loaded_share = candidate.loaded_cost.size_bytes / baseline.cost.size_bytes
    roof = candidate.attainable
    if roof and baseline.attainable:
        loaded_s = roof.memory_s * candidate.loaded_cost.size_bytes / candidate.cost.size_bytes
        loaded_share = max(loaded_s, roof.arithmetic_s) / baseline.attainable.seconds
    excess_s = (min(loaded_share, 1.0) - share) * baseline.step.value
    if excess_s <= 0:
        return None
    return Part(cause=Cause.DEQUANTIZATION, excess_s=excess_s)


def _list_parts(
    candidate: Seconds, baseline: Seconds, share: float, side: Side, *, is_dense: bool
) -> list[Part]:
    """Return the excess of each cause.

    `is_dense` means that the candidate's weights were expanded while they were loaded.
    """
    expands_each_time = side.path is KernelPath.DEQUANTIZED and not is_dense
    parts = []
    for cause in dict.fromkeys(CAUSES.values()):
        baseline_s = baseline.get(cause, 0.0)
        own_s = candidate.get(cause, 0.0)
        if baseline_s == own_s == 0:
            continue
        excess_s = own_s - share * baseline_s
        part = Part(cause=cause, excess_s=excess_s, baseline_s=baseline_s, own_s=own_s)
        if cause is Cause.KERNEL and is_dense and excess_s > 0:
            # The products read dense weights, which explains all time up to the baseline's.
            dense_s = min(excess_s, (1 - share) * baseline_s)
            parts.append(
                Part(
                    cause=Cause.DEQUANTIZATION,
                    excess_s=dense_s,
                    baseline_s=baseline_s,
                    own_s=own_s,
                )
            )
            part = Part(cause=cause, excess_s=excess_s - dense_s)
        elif cause is Cause.CASTS and expands_each_time and own_s > baseline_s:
            part = part.model_copy(update={"cause": Cause.DEQUANTIZATION})
        parts.append(part)
    return parts


def _compute_cause_seconds(profile: OperatorProfile, step_s: float) -> Seconds:
    """Return each cause's seconds in a usual step with the profiler off.

    A usual step is the median, because a busy machine makes single steps many times longer.
    If the machine was slower during the profile than in the trials, `step_s` limits the sum:
    the groups together never take more than a step of the trials.
    """
    scale = min(median(profile.unprofiled.seconds), step_s) / profile.groups_s
    seconds: Seconds = {}
    for group in profile.groups:
        if group.group in CAUSES:
            cause = CAUSES[group.group]
            seconds[cause] = seconds.get(cause, 0.0) + scale * group.step_s
    return seconds


def _estimate_unexplained(
    candidate: PhaseSide, baseline: PhaseSide, share: float, rest_s: float, confidence: float
) -> Estimate | None:
    """Return the unexplained time with the error of the trials, or None if that is unknown.

    The interval leaves out how a profile varies between instances, which is unknown.
    """
    candidate_interval = candidate.step.interval
    baseline_interval = baseline.step.interval
    if candidate_interval is None or baseline_interval is None:
        return None
    candidate_half = (candidate_interval.high - candidate_interval.low) / 2
    baseline_half = (baseline_interval.high - baseline_interval.low) / 2
    half = hypot(candidate_half, share * baseline_half)
    return Estimate(value=rest_s, low=rest_s - half, high=rest_s + half, confidence=confidence)


OPERATORS_IN_REPORT = 8


def summarize_profiles(records: StudyRecords) -> Profiles | None:
    """Return the operator profiles for a report, shortened, or None if none exist."""
    profiles = tuple(map(_trim_profile, records.profiles))
    return Profiles(profiles=profiles) if profiles else None


def _trim_profile(profile: OperatorProfile) -> OperatorProfile:
    """Return the profile with its slowest operators only, and without paths of this machine."""
    return profile.model_copy(
        update={"operators": profile.operators[:OPERATORS_IN_REPORT], "facts": InstanceFacts()}
    )


def explain_roofline(records: StudyRecords) -> Roofline | None:
    """Return each point with the machine's roofline.

    Return None if the roofline was not measured, or if no cost is known.
    """
    points = list_roofline_points(records)
    if records.roof is None or not points:
        return None
    return Roofline(roof=records.roof, points=points)


def compute_explanation(
    records: StudyRecords,
    config: Config,
    baseline: Config,
    workload: Workload,
    *,
    no_roof: str = "",
) -> Explanation:
    """Return why `config` is as fast as it is compared with `baseline` at `workload`.

    `no_roof` is the reason if the machine's roofline was not measured.
    """
    plan = records.plan
    confidence = plan.study.measure.confidence
    metric = METRICS[plan.study.measure.metric].column
    pair = (config, baseline)
    estimates = estimate_metric(collect_samples(records), metric, confidence)
    sides = (
        summarize_config_side(records, config, workload),
        summarize_config_side(records, baseline, workload),
    )
    phases = tuple(_iter_phase_accounts(records, pair, workload, sides))
    reasons = [expected.why for expected in plan.expectations if expected.config == config]
    return Explanation(
        study=plan.study.name,
        workload=workload,
        definition=DEFINITIONS[metric],
        own=sides[0],
        baseline=sides[1],
        own_primary_metric=estimates.get(Point(config=config, workload=workload.name)),
        baseline_primary_metric=estimates.get(Point(config=baseline, workload=workload.name)),
        speed=collect_speeds(records, config, baseline).get(workload.name),
        confidence=confidence,
        phases=phases,
        known_beforehand=next(iter(reasons), None),
        roof=records.roof,
        gaps=tuple(_iter_gaps(records, pair, phases, sides, no_roof)),
    )


def collect_speeds(records: StudyRecords, config: Config, baseline: Config) -> dict[str, Estimate]:
    """Return the speed-up at each workload at which both have a result.

    The speed-up is by the primary metric of the study. Above 1, `config` is faster.
    """
    summary = summarize_speeds(records, config)
    speeds: dict[str, Estimate] = {}
    for workload in records.plan.study.workloads:
        speed = summary.between(config, baseline, workload.name)
        if speed is not None:
            speeds[workload.name] = speed
    return speeds


def _iter_phase_accounts(
    records: StudyRecords, pair: tuple[Config, Config], workload: Workload, sides: tuple[Side, Side]
) -> Iterator[PhaseAccount]:
    """Yield prefill and decode, as far as the trials of both configs have step times."""
    confidence = records.plan.study.measure.confidence
    variant = find_config_variant(records.plan, pair[0])
    baseline_variant = find_config_variant(records.plan, pair[1])
    if variant is None or baseline_variant is None:
        return
    for phase in Phase:
        sample = _find_step_sample(records, phase, workload, pair[0])
        baseline_sample = _find_step_sample(records, phase, workload, pair[1])
        if sample is None or baseline_sample is None:
            continue
        variance = pool_start_variances([sample, baseline_sample])
        yield _explain_phase(
            phase,
            make_phase_side(
                phase,
                workload,
                variant,
                sides[0],
                step=estimate_mean(sample, confidence, variance),
                roof=records.roof,
            ),
            make_phase_side(
                phase,
                workload,
                baseline_variant,
                sides[1],
                step=estimate_mean(baseline_sample, confidence, variance),
                roof=records.roof,
            ),
            speed=estimate_unpaired_ratio(baseline_sample, sample, confidence),
            sides=sides,
            profiles=_pick_profiles(records.profiles, pair, phase, workload.concurrency),
            confidence=confidence,
        )


def _find_step_sample(
    records: StudyRecords, phase: Phase, workload: Workload, config: Config
) -> Sample | None:
    trials = records.counted(Point(config=config, workload=workload.name))
    return find_phase_step_sample(phase, workload, trials)


def _iter_gaps(
    records: StudyRecords,
    pair: tuple[Config, Config],
    phases: Sequence[PhaseAccount],
    sides: tuple[Side, Side],
    no_roof: str,
) -> Iterator[Gap]:
    """Yield the evidence that is missing from the records."""
    predicted = [phase for phase in phases if phase.expected_gain is not None]
    if not phases:
        yield Gap(missing=Missing.PHASES)
    elif not all(phase.is_profiled for phase in predicted):
        yield _make_profile_gap(records, pair)
    cost_gap = _find_cost_gap(find_config_variant(records.plan, pair[0]), sides)
    if cost_gap is not None:
        yield Gap(missing=Missing.COST, detail=cost_gap)
    if records.roof is None:
        yield Gap(missing=Missing.ROOF, detail=no_roof)
    if any(len(side.instances.ids) == 1 for side in sides):
        yield Gap(missing=Missing.STARTS)


def _make_profile_gap(records: StudyRecords, pair: tuple[Config, Config]) -> Gap:
    """Return why the two configs have no operator profiles to compare."""
    engines = registry.engines()
    unable: set[str] = set()
    for config in pair:
        name = records.plan.study.engine(config.engine).engine
        if name not in engines or not engines[name].can_profile:
            unable.add(name)
    if unable:
        return Gap(missing=Missing.PROFILER, detail=" and ".join(sorted(unable)))
    batches = _list_profiled_batches(records, pair[0]) & _list_profiled_batches(records, pair[1])
    if not batches:
        return Gap(missing=Missing.PROFILE)
    return Gap(missing=Missing.PROFILE_BATCH, detail=", ".join(map(str, sorted(batches))))


def _list_profiled_batches(records: StudyRecords, config: Config) -> set[int]:
    return {profile.batch for profile in records.profiles if profile.config == config}


def _find_cost_gap(variant: Variant | None, sides: tuple[Side, Side]) -> str | None:
    """Return why the cost of a step is unknown, or None if it is known."""
    if variant is None:
        return "the model is unknown"
    if reason := explain_unknown_cost(variant.facts):
        return reason
    if sides[0].stored_bytes is None or sides[1].stored_bytes is None:
        return "the engine does not report the size of the loaded weights"
    return None
