"""What the records of a study say a config is: its weight in bytes, its kernels."""

from collections import Counter
from collections.abc import Sequence

from bitbench.analysis.engine_metrics import summarize_engine
from bitbench.analysis.results.sides import Side, Source
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import InstanceRecord, KernelPath
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload

# Weights that an engine holds in so much more than they are stored in were expanded: 8 bits to 16 is 1.65 times even
# with an embedding that stays as it is; rounding up to blocks and scales kept apart is a few per cent.
EXPANDED = 1.25
FLOAT32_BYTES = 4
TRIALS = "trials.jsonl"


def side_of(of: StudyRecords, config: Config, workload: Workload) -> Side:
    point = Point(config=config, workload=workload.name)
    trials = of.counted(point)
    used = {trial.instance_id for trial in trials}
    instances = [instance for instance in of.instances if instance.id in used]
    variant = variant_of(of.plan, config)
    loaded = next((one.facts.weight_bytes_loaded for one in instances if one.facts.weight_bytes_loaded), None)
    stored = loaded if variant and variant.at_load else variant.weight_bytes if variant else None
    if variant and variant.is_dense and _dtype(of.plan, config) == "float32" and variant.facts.parameters:
        stored = FLOAT32_BYTES * variant.facts.parameters
    kernels = tuple(dict.fromkeys(kernel for one in instances for kernel in one.facts.kernels))
    is_quantized = bool(variant and variant.form is not None and not variant.is_dense)
    path = _path(instances)
    is_expanded = path is KernelPath.DEQUANTIZED and loaded is not None and stored is not None
    return Side(
        config=config,
        is_quantized=is_quantized,
        stored_bytes=stored,
        loaded_bytes=loaded,
        kernels=kernels,
        path=path,
        is_expanded=is_expanded and (loaded or 0) > EXPANDED * (stored or 0),
        notes=tuple(dict.fromkeys(note for one in instances for note in one.facts.notes)),
        kv_bytes_per_token=next(filter(None, (one.facts.kv_bytes_per_token for one in instances)), None),
        engine=summarize_engine(trials),
        trials=Source(file=TRIALS, ids=tuple(trial.id for trial in trials)),
        instances=Source(file="instances.jsonl", ids=tuple(one.id for one in instances)),
    )


def _dtype(plan: Plan, config: Config) -> str | None:
    """What it computes in, as the study or the plan says; None: the engine's default."""
    named = plan.study.engine(config.engine).args.get("dtype")
    return str(named) if named is not None else plan.chosen_dtypes.get(config)


def variant_of(plan: Plan, config: Config) -> Variant | None:
    return next((variant for variant in plan.variants if variant.name == config.variant), None)


def _path(instances: Sequence[InstanceRecord]) -> KernelPath | None:
    """Of most quantized layers; None where the engine does not say."""
    counts: Counter[KernelPath] = Counter()
    for instance in instances:
        for choice in instance.facts.kernel_choices:
            if choice.path is not None:
                counts[choice.path] += choice.layers or 1
    if len(counts) > 1:
        del counts[KernelPath.DENSE]  # an output head that stays as it is
    return counts.most_common(1)[0][0] if counts else None
