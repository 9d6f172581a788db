"""Why is this variant as fast as it is? From the records of a study alone; what they do not tell is said."""

from collections.abc import Sequence

from bitbench.analysis.configs import TRIALS, side_of, variant_of
from bitbench.analysis.crossover import find_crossovers
from bitbench.analysis.intervals import estimate
from bitbench.analysis.phases import phase_side, step_sample
from bitbench.analysis.results.crossover import Crossover, CrossoverAxis, CrossoverSide
from bitbench.analysis.results.sides import Side, Source
from bitbench.analysis.roofline import point_roofs
from bitbench.analysis.summarize import samples_by_point, speeds_of
from bitbench.analysis.trial import DEFINITIONS
from bitbench.analysis.unpaired import compare
from bitbench.engines.options import tensor_parallel_size
from bitbench.features.explain.attribution import account, pick_profiles
from bitbench.features.explain.types import (
    Explanation,
    Gap,
    Missing,
    OtherOperators,
    PhaseAccount,
    Profiles,
    Roofline,
    ShortProfile,
    WorkloadSpeed,
)
from bitbench.records.profile import OperatorProfile, Phase
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import InstanceFacts
from bitbench.study.metrics import METRICS
from bitbench.study.model_cost import summed_bytes, why_not
from bitbench.study.plan import Config, Point
from bitbench.study.workload import Workload
from bitbench.util.units import show_bytes

OPERATORS_IN_REPORT = 8


def summarize_profiles(of: StudyRecords) -> Profiles | None:
    """What a report shows of the operator profiles; None where there are none."""
    shown = tuple(shorten(profile, OPERATORS_IN_REPORT) for profile in of.profiles)
    return Profiles(profiles=shown) if shown else None


def shorten(profile: OperatorProfile, limit: int | None) -> ShortProfile:
    """Keep the operators that take the most time of their own; None: all."""
    kept = profile.operators if limit is None else profile.operators[:limit]
    rest = profile.operators[len(kept) :]
    others = OtherOperators(
        count=len(rest),
        calls=sum(operator.calls for operator in rest),
        self_cpu_s=sum(operator.self_cpu_s for operator in rest),
        self_cpu_share=sum(operator.self_cpu_share for operator in rest),
    )
    facts = InstanceFacts(compile_s=profile.facts.compile_s)  # the others have paths of this machine
    short = profile.model_copy(update={"operators": kept, "facts": facts})
    return ShortProfile(profile=short, others=others if rest else None)


def summarize_roofline(of: StudyRecords) -> Roofline | None:
    """None where the roof of the machine was not measured, or no cost is known."""
    points = point_roofs(of)
    return Roofline(roof=of.roof, points=points) if of.roof is not None and points else None


def explain(
    of: StudyRecords, config: Config, baseline: Config, workload: Workload, *, no_roof: str = ""
) -> Explanation:
    """`no_roof`: why the roof of the machine was not measured, where it was not."""
    plan, confidence = of.plan, of.plan.study.measure.confidence
    metric = METRICS[plan.study.measure.metric].column
    definition = DEFINITIONS[metric]
    pair = (config, baseline)
    samples = samples_by_point(of)
    own, other = (samples.get(Point(config=each, workload=workload.name), {}).get(metric) for each in pair)
    speeds = workload_speeds(of, config, baseline)
    sides = (side_of(of, config, workload), side_of(of, baseline, workload))
    crossovers = tuple(
        crossover
        for crossover in find_crossovers(plan, speeds_of(of, config), baseline)
        if crossover.config == config and any(point.workload == workload.name for point in crossover.points)
    )
    phases = tuple(_phases(of, pair, workload, sides))
    return Explanation(
        study=plan.study.name,
        workload=workload,
        definition=definition,
        own=sides[0],
        baseline=sides[1],
        own_primary_metric=estimate(own, confidence) if own else None,
        baseline_primary_metric=estimate(other, confidence) if other else None,
        speed=next((speed.speed for speed in speeds if speed.workload == workload.name), None),
        confidence=confidence,
        phases=phases,
        elsewhere=tuple(speed for speed in speeds if speed.workload != workload.name),
        crossovers=crossovers,
        beyond=tuple(crossover for crossover in crossovers if _is_beyond(crossover, workload)),
        known_beforehand=next(
            (expectation.why for expectation in plan.expectations if expectation.config == config), None
        ),
        roof=of.roof,
        gaps=(*_gaps(of, pair, phases, sides, no_roof), *_communication(of, pair, workload)),
    )


def workload_speeds(of: StudyRecords, config: Config, baseline: Config) -> list[WorkloadSpeed]:
    """Every workload at which both have a result, by the primary metric of the study."""
    speeds = speeds_of(of, config)
    found = []
    for workload in of.plan.study.workloads:
        points = [Point(config=each, workload=workload.name) for each in (config, baseline)]
        if (ratio := speeds.between(config, baseline, workload.name)) is not None:
            sources = tuple(Source(file=TRIALS, ids=tuple(trial.id for trial in of.counted(point))) for point in points)
            found.append(WorkloadSpeed(workload=workload.name, speed=ratio, sources=sources))
    return found


def _phases(
    of: StudyRecords, pair: tuple[Config, Config], workload: Workload, sides: tuple[Side, Side]
) -> list[PhaseAccount]:
    confidence = of.plan.study.measure.confidence
    variants = [variant_of(of.plan, each) for each in pair]
    found = []
    for phase in Phase:
        points = [Point(config=each, workload=workload.name) for each in pair]
        own, other = (step_sample(phase, workload, of.counted(point)) for point in points)
        if own is None or other is None or variants[0] is None or variants[1] is None:
            continue
        measured = [
            phase_side(phase, workload, variant, side, seconds=seconds, confidence=confidence, roof=of.roof)
            for variant, side, seconds in zip((variants[0], variants[1]), sides, (own, other), strict=True)
        ]
        found.append(
            account(
                phase,
                *measured,
                speed=compare(other, own, confidence),
                sides=sides,
                profiles=pick_profiles(of.profiles, pair, phase, workload.concurrency),
                confidence=confidence,
            )
        )
    return found


def _is_beyond(crossover: Crossover, workload: Workload) -> bool:
    """The nearest sure crossing before this workload made it slower."""
    place = workload.concurrency if crossover.axis is CrossoverAxis.CONCURRENCY else workload.input_tokens
    before = [crossing for crossing in crossover.crossings if isinstance(place, int) and place >= crossing.before]
    return bool(before) and before[-1].is_sure and before[-1].becomes is CrossoverSide.SLOWER


def _gaps(
    of: StudyRecords,
    pair: tuple[Config, Config],
    phases: Sequence[PhaseAccount],
    sides: tuple[Side, Side],
    no_roof: str,
) -> list[Gap]:
    gaps = []
    variant = variant_of(of.plan, pair[0])
    if not phases:
        gaps.append(Gap(missing=Missing.PHASES))
    elif not all(phase.is_profiled for phase in phases if phase.expected_gain is not None):
        own, other = ({profile.batch for profile in of.profiles if profile.config == config} for config in pair)
        batches = sorted(own & other)
        kind = Missing.PROFILE_BATCH if batches else Missing.PROFILE
        gaps.append(Gap(missing=kind, detail=", ".join(map(str, batches))))
    if variant is None or (reason := why_not(variant.facts)):
        gaps.append(Gap(missing=Missing.COST, detail=reason if variant else "the model is unknown"))
    elif sides[0].stored_bytes is None or sides[1].stored_bytes is None:
        gaps.append(Gap(missing=Missing.COST, detail="the engine does not report the size of the loaded weights"))
    if of.roof is None:
        gaps.append(Gap(missing=Missing.ROOF, detail=no_roof))
    if any(len(side.instances.ids) == 1 for side in sides):
        gaps.append(Gap(missing=Missing.STARTS))
    return gaps


def _communication(of: StudyRecords, pair: tuple[Config, Config], workload: Workload) -> list[Gap]:
    """Of tensor parallelism, one for each number of devices."""
    found = []
    for config in pair:
        variant, devices = variant_of(of.plan, config), tensor_parallel_size(of.plan.study.engine(config.engine).args)
        if variant is None or devices == 1:
            continue
        summed = summed_bytes(variant.facts, workload.concurrency)
        what = "an unknown amount" if summed is None else show_bytes(summed)
        detail = f"{devices} devices sum at least {what} in a decode step, two sums per layer"
        found.append(Gap(missing=Missing.COMMUNICATION, detail=detail))
    return list(dict.fromkeys(found))
