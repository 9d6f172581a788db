"""Why is this variant as fast as it is? From the records of a study alone; what they do not tell is said."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bitbench.core.cell import Cell, Contender, Plan
from bitbench.core.crossover import Axis, Crossover, Standing
from bitbench.core.explanation import Explanation, Gap, Missing, PhaseAccount, Side, Source, WorkloadSpeed
from bitbench.core.model_cost import why_not
from bitbench.core.profile import OperatorProfile, Phase
from bitbench.core.roof import MachineRoof
from bitbench.core.trial import InstanceRecord, KernelPath, TrialRecord
from bitbench.core.variant import DENSE, Variant
from bitbench.core.workload import Workload
from bitbench.statistics.attribution import account, pick_profiles
from bitbench.statistics.comparison import compare, compare_speed
from bitbench.statistics.crossover import find_crossovers
from bitbench.statistics.intervals import estimate
from bitbench.statistics.phases import phase_side, step_sample
from bitbench.statistics.summarize import HEADLINES, counted_trials, samples_by_cell
from bitbench.statistics.trial import DEFINITIONS

# Weights that an engine holds in so much more than they are stored in were expanded: 8 bits to 16 is 1.65 times even
# with an embedding that stays as it is; rounding up to blocks and scales kept apart is a few per cent.
EXPANDED = 1.25
TRIALS = "trials.jsonl"
_PLAIN_LAYERS = re.compile(r"^\d+ linear layers? in (bfloat16|float16|float32)$")


@dataclass(frozen=True)
class Evidence:
    """What a study folder holds."""

    plan: Plan
    trials: Sequence[TrialRecord]
    instances: Sequence[InstanceRecord]
    profiles: Sequence[OperatorProfile] = ()
    roof: MachineRoof | None = None
    no_roof: str = ""  # why there is none


def explain(of: Evidence, contender: Contender, baseline: Contender, workload: Workload) -> Explanation:
    plan, confidence = of.plan, of.plan.study.measure.confidence
    metric = HEADLINES[plan.study.measure.headline]
    definition = DEFINITIONS[metric]
    pair = (contender, baseline)
    samples = samples_by_cell(plan, of.trials)
    own, other = (samples.get(Cell(contender=one, workload=workload.name), {}).get(metric) for one in pair)
    speeds = workload_speeds(of, contender, baseline)
    sides = (_side(of, contender, workload), _side(of, baseline, workload))
    crossovers = tuple(
        one
        for one in find_crossovers(plan, samples, baseline, metric)
        if one.contender == contender and any(point.workload == workload.name for point in one.points)
    )
    phases = tuple(_phases(of, pair, workload, sides))
    return Explanation(
        study=plan.study.name,
        workload=workload,
        definition=definition,
        own=sides[0],
        baseline=sides[1],
        own_headline=estimate(own, confidence) if own else None,
        baseline_headline=estimate(other, confidence) if other else None,
        speed=next((one.speed for one in speeds if one.workload == workload.name), None),
        confidence=confidence,
        phases=phases,
        elsewhere=tuple(one for one in speeds if one.workload != workload.name),
        crossovers=crossovers,
        beyond=tuple(one for one in crossovers if _is_beyond(one, workload)),
        known_beforehand=next((one.why for one in plan.expectations if one.contender == contender), None),
        roof=of.roof,
        gaps=tuple(_gaps(of, pair, phases, sides)),
    )


def workload_speeds(of: Evidence, contender: Contender, baseline: Contender) -> list[WorkloadSpeed]:
    """Every workload at which both have a result, by the headline of the study."""
    metric = HEADLINES[of.plan.study.measure.headline]
    samples = samples_by_cell(of.plan, of.trials)
    found = []
    for workload in of.plan.study.workloads:
        cells = [Cell(contender=one, workload=workload.name) for one in (contender, baseline)]
        own, other = (samples.get(cell, {}).get(metric) for cell in cells)
        ratio = compare_speed(
            own, other, of.plan.study.measure.confidence, higher_is_better=DEFINITIONS[metric].higher_is_better
        )
        if ratio is not None:
            sources = tuple(Source(file=TRIALS, ids=_ids(of.trials, cell)) for cell in cells)
            found.append(WorkloadSpeed(workload=workload.name, speed=ratio, sources=sources))
    return found


def _ids(trials: Sequence[TrialRecord], cell: Cell) -> tuple[str, ...]:
    return tuple(trial.id for trial in counted_trials(trial for trial in trials if trial.cell == cell))


def _side(of: Evidence, contender: Contender, workload: Workload) -> Side:
    cell = Cell(contender=contender, workload=workload.name)
    trials = counted_trials(trial for trial in of.trials if trial.cell == cell)
    used = {trial.instance_id for trial in trials}
    instances = [one for one in of.instances if one.id in used]
    variant = _variant(of.plan, contender)
    loaded = next((one.facts.weight_bytes_loaded for one in instances if one.facts.weight_bytes_loaded), None)
    stored = loaded if variant and variant.at_load else variant.weight_bytes if variant else None
    kernels = tuple(dict.fromkeys(kernel for one in instances for kernel in one.facts.kernels))
    is_quantized = bool(variant and variant.form not in (None, DENSE))
    path = _path(instances, kernels, is_quantized=is_quantized)
    is_expanded = path is KernelPath.DEQUANTIZED and loaded is not None and stored is not None
    return Side(
        contender=contender,
        is_quantized=is_quantized,
        stored_bytes=stored,
        loaded_bytes=loaded,
        kernels=kernels,
        path=path,
        is_expanded=is_expanded and (loaded or 0) > EXPANDED * (stored or 0),
        notes=tuple(dict.fromkeys(note for one in instances for note in one.facts.notes)),
        trials=Source(file=TRIALS, ids=tuple(trial.id for trial in trials)),
        instances=Source(file="instances.jsonl", ids=tuple(one.id for one in instances)),
    )


def _variant(plan: Plan, contender: Contender) -> Variant | None:
    return next((one for one in plan.variants if one.name == contender.variant), None)


def _path(instances: Sequence[InstanceRecord], kernels: Sequence[str], *, is_quantized: bool) -> KernelPath | None:
    """Of most quantized layers; in records from before kernels had paths, what their words leave no doubt about."""
    counts: Counter[KernelPath] = Counter()
    for one in instances:
        for choice in one.facts.kernel_choices:
            if choice.path is not None:
                counts[choice.path] += choice.layers or 1
    if len(counts) > 1:
        del counts[KernelPath.DENSE]  # an output head that stays as it is
    if counts:
        return counts.most_common(1)[0][0]
    layers = [kernel for kernel in kernels if " linear layer" in kernel]
    if layers and all(_PLAIN_LAYERS.match(kernel) for kernel in layers):
        return KernelPath.DEQUANTIZED if is_quantized else KernelPath.DENSE
    return None


def _phases(
    of: Evidence, pair: tuple[Contender, Contender], workload: Workload, sides: tuple[Side, Side]
) -> list[PhaseAccount]:
    confidence = of.plan.study.measure.confidence
    variants = [_variant(of.plan, one) for one in pair]
    found = []
    for phase in Phase:
        cells = [Cell(contender=one, workload=workload.name) for one in pair]
        own, other = (
            step_sample(phase, workload, counted_trials(trial for trial in of.trials if trial.cell == cell))
            for cell in cells
        )
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


def _is_beyond(one: Crossover, workload: Workload) -> bool:
    """The nearest sure crossing before this workload made it slower."""
    place = workload.concurrency if one.axis is Axis.CONCURRENCY else workload.input_tokens
    before = [crossing for crossing in one.crossings if isinstance(place, int) and place >= crossing.before]
    return bool(before) and before[-1].is_sure and before[-1].becomes is Standing.SLOWER


def _gaps(
    of: Evidence,
    pair: tuple[Contender, Contender],
    phases: Sequence[PhaseAccount],
    sides: tuple[Side, Side],
) -> list[Gap]:
    gaps = []
    variant = _variant(of.plan, pair[0])
    if not phases:
        gaps.append(Gap(missing=Missing.PHASES))
    elif not all(one.is_profiled for one in phases):
        batches = sorted({one.batch for one in of.profiles if one.contender in pair})
        kind = Missing.PROFILE_BATCH if batches else Missing.PROFILE
        gaps.append(Gap(missing=kind, detail=", ".join(map(str, batches))))
    if variant is None or (reason := why_not(variant.facts)):
        gaps.append(Gap(missing=Missing.COST, detail=reason if variant else "nothing is known of the model"))
    elif sides[0].stored_bytes is None or sides[1].stored_bytes is None:
        gaps.append(Gap(missing=Missing.COST, detail="the engine does not say how much the loaded weights take"))
    if of.roof is None:
        gaps.append(Gap(missing=Missing.ROOF, detail=of.no_roof))
    if any(len(side.instances.ids) == 1 for side in sides):
        gaps.append(Gap(missing=Missing.STARTS))
    return gaps
