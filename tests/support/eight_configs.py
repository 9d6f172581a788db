"""A study of eight configs under rising load: recipes that differ by a few percent and by fractions of a MiB."""

import itertools

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.trial import InstanceFacts, InstanceRecord, Memory, TrialRecord
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Count, EngineSetup, Measure, Study
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload
from tests.support.synthetic import make_instance, make_trial, speed_metrics, summarize

MODEL = "smollm2-135m"
RECIPES = ("bf16", "w8a8-rtn", "w8a8-gptq", "w4a16-awq")
SPEEDS = {"vllm": (100.0, 131.0, 133.0, 92.0), "transformers": (38.0, 12.0, 12.5, 9.0)}
LOADS = (1, 2, 4, 8, 16)
STARTS = 3


def eight_configs(
    models: tuple[str, ...] = (MODEL,),
) -> tuple[Plan, list[TrialRecord], list[InstanceRecord]]:
    """Each further model is twenty times as fast as the one before: nobody would compare them."""
    workloads = tuple(
        Workload(name=f"c{load}", concurrency=load, input_tokens=128, output_tokens=64)
        for load in LOADS
    )
    variants = [
        Variant(name=f"{model}/{recipe}", model=model, recipe=recipe, weight_bytes=270 * 2**20)
        for model, recipe in itertools.product(models, RECIPES)
    ]
    study = Study(
        name="eight",
        models=models,
        recipes=RECIPES,
        engines=tuple(EngineSetup(name=name, engine=name) for name in SPEEDS),
        workloads=workloads,
        measure=Measure(starts=Count(min=1, max=STARTS), trials=Count(min=2, max=2)),
        baseline=f"{models[0]}/bf16 @ vllm",
    )
    configs = [
        Config(variant=one.name, engine=name) for one, name in itertools.product(variants, SPEEDS)
    ]
    points = tuple(
        Point(config=one, workload=load.name) for load, one in itertools.product(workloads, configs)
    )
    plan = Plan(study=study, variants=tuple(variants), points=points)
    trials = [
        _trial(plan, point, block, index)
        for point in points
        for block in range(STARTS)
        for index in range(2)
    ]
    instances = [_instance(config, block) for config in configs for block in range(STARTS)]
    return plan, trials, instances


def eight_summary(models: tuple[str, ...] = (MODEL,)) -> StudySummary:
    return summarize(*eight_configs(models))


def _trial(plan: Plan, point: Point, block: int, index: int) -> TrialRecord:
    config, workload = point.config, plan.study.workload(point.workload)
    variant = plan.variant(config.variant)
    place = RECIPES.index(variant.recipe)
    noise = 1 + 0.01 * ((block + place) % 3 - 1) + 0.002 * index
    scale = 20.0 ** plan.study.models.index(variant.model)
    speed = scale * SPEEDS[config.engine][place] * workload.concurrency**0.6 * noise
    peak = int(2**20 * (900 + 0.2 * place + (300 if config.engine == "vllm" else 0)))
    return make_trial(
        point,
        block,
        index,
        id=f"{point.name}-{block}-{index}",
        instance_id=f"{config.name}-{block}",
        metrics=speed_metrics(workload, speed),
        memory=Memory(resident_bytes=peak - 2**20, peak_bytes=peak),
    )


def _instance(config: Config, block: int) -> InstanceRecord:
    reserve = 250 * 2**20 if config.engine == "vllm" else None
    facts = InstanceFacts(engine_version="1.0", kv_cache_bytes=reserve)
    return make_instance(config, block, id=f"{config.name}-{block}", facts=facts)
