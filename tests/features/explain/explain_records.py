"""Records of a study with a dense and a quantized variant, made up so that the cause of every difference is known."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from bitbench.records.folder import StudyRecords
from bitbench.records.profile import GroupTime, OperatorProfile, Phase, ProfileGroup, StepTimes
from bitbench.records.roof import MachineRoof
from bitbench.records.trial import (
    InstanceFacts,
    InstanceRecord,
    KernelChoice,
    KernelPath,
    TrialMetrics,
    TrialRecord,
)
from bitbench.study.base import Json
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Argument, Count, EngineSetup, Measure, Study
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import Workload
from tests.support.synthetic import make_instance, make_records, make_trial
from tests.unit.test_model_cost import ROOF, SMOLLM2

DENSE_BYTES, QUANTIZED_BYTES = 269_060_552, 163_226_688
PLAIN = Config(variant="m/bf16", engine="engine")
QUANTIZED = Config(variant="m/w8", engine="engine")

StepSeconds = Callable[[Config, int], float]  # of a decode step, by concurrency


def choice(path: KernelPath, kernel: str = "linear") -> KernelChoice:
    return KernelChoice(kind="linear", kernel=kernel, layers=210, path=path, source="modules")


def evidence(
    step_s: StepSeconds,
    *,
    path: KernelPath = KernelPath.WEIGHT_ONLY,
    loaded_bytes: int | None = None,
    places: tuple[int, ...] = (1,),
    groups: Mapping[Config, Mapping[ProfileGroup, float]] | None = None,
    roof: MachineRoof | None = ROOF,
    facts: ModelFacts = SMOLLM2,
    args: Mapping[str, Argument] = MappingProxyType({}),
    warnings: tuple[str, ...] = (),
) -> StudyRecords:
    """Three starts of three trials, with a hundredth of noise that is no accident: always the same."""
    workloads = tuple(
        Workload(name=f"c{at}", concurrency=at, input_tokens=128, output_tokens=32) for at in places
    )
    variants = (
        _variant(PLAIN.variant, "dense", DENSE_BYTES, facts),
        _variant(QUANTIZED.variant, "compressed-tensors/w8a16-int", QUANTIZED_BYTES, facts),
    )
    study = Study(
        name="why",
        models=("m",),
        recipes=("bf16", "w8"),
        engines=(EngineSetup(name="engine", engine="vllm", args=dict(args)),),
        workloads=workloads,
        measure=Measure(starts=Count(min=3, max=3), trials=Count(min=3, max=3)),
        baseline=PLAIN.name,
    )
    points = tuple(
        Point(config=one, workload=at.name) for one in (PLAIN, QUANTIZED) for at in workloads
    )
    plan = Plan(study=study, variants=variants, points=points)
    trials = [
        trial
        for point in points
        for trial in _trials(point, study.workload(point.workload), step_s)
    ]
    instances = [
        *_instances(PLAIN, KernelPath.DENSE, DENSE_BYTES),
        *_instances(QUANTIZED, path, loaded_bytes, warnings),
    ]
    profiles = [profile(config, one) for config, one in (groups or {}).items()]
    return make_records(plan, trials, instances, profiles=profiles, roof=roof)


def _variant(name: str, form: str, weight_bytes: int, facts: ModelFacts) -> Variant:
    return Variant(
        name=name,
        model="m",
        recipe=name.partition("/")[2],
        path=Path("/models/m"),
        weight_bytes=weight_bytes,
        form=form,
        facts=facts,
    )


def _trials(point: Point, workload: Workload, step_s: StepSeconds) -> list[TrialRecord]:
    records = []
    for block in range(3):
        for index in range(3):
            seconds = step_s(point.config, workload.concurrency) * (
                1 + 0.004 * (block - 1) + 0.002 * (index - 1)
            )
            metrics = TrialMetrics(tpot_s=seconds, output_throughput=workload.concurrency / seconds)
            names: dict[str, Json] = {
                "id": f"t-{point.name}-{block}-{index}",
                "instance_id": _id(point.config, block),
            }
            records.append(make_trial(point, block, index, metrics=metrics, **names))
    return records


def _instances(
    config: Config, path: KernelPath, loaded_bytes: int | None, warnings: tuple[str, ...] = ()
) -> list[InstanceRecord]:
    facts = InstanceFacts(
        kernel_choices=(choice(path),),
        kernels=("words",),
        weight_bytes_loaded=loaded_bytes,
        warnings=warnings,
    )
    return [make_instance(config, block, id=_id(config, block), facts=facts) for block in range(3)]


def _id(config: Config, block: int) -> str:
    return f"i-{config.variant}-{block}"


def profile(config: Config, groups: Mapping[ProfileGroup, float]) -> OperatorProfile:
    """The profiler makes steps a fifth slower."""
    total = sum(groups.values())
    return OperatorProfile(
        id=f"p-{config.variant.partition('/')[2]}",
        config=config,
        instance_id="i-profile",
        phase=Phase.DECODE,
        batch=1,
        context_tokens=144,
        steps=10,
        profiled=StepTimes(seconds=(1.2 * total,)),
        unprofiled=StepTimes(seconds=(0.99 * total, total, 1.01 * total)),
        operators=(),
        groups=tuple(
            GroupTime(group=one, step_s=1.2 * seconds, calls=1.0) for one, seconds in groups.items()
        ),
    )
