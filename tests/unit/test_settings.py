"""Settings of one engine: divergence by position, and what their quality is held against."""

import numpy as np
import pytest

from bitbench.analysis.divergence import Scores
from bitbench.analysis.quality import (
    estimate_divergence_by_position,
    find_quality_baseline,
    has_quantized_cache,
)
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import EngineMetrics, InstanceFacts, TrialMetrics
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.quality import Quality
from bitbench.study.study import Count, Measure, Study
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload
from tests.support.synthetic import make_instance, make_records, make_trial

LENGTHS = (512, 2048, 8000)
BYTES = {"f16": 23_040, "q8_0": 12_240}
# Seconds of a token: what does not depend on the context, and what each token of it adds.
STEPS = {"f16": (0.010, 2.0e-6), "q8_0": (0.0124, 1.0e-6)}


def config(type: str, variant: str = "m/gguf-q8_0") -> Config:
    return Config(variant=variant, engine=f"llamacpp kv={type}")


def made_study(*, lengths: tuple[int, ...] = LENGTHS, drafts: bool = False) -> StudyRecords:
    """Three starts; a start is as a whole one per cent slower than the one before."""
    workloads = tuple(
        Workload(name=f"in-{length}", concurrency=1, input_tokens=length, output_tokens=128)
        for length in lengths
    )
    study = Study.model_validate(
        {
            "name": "kv",
            "models": ("m",),
            "recipes": ("gguf-q8_0",),
            "engines": [{"engine": "llamacpp", "kv_cache": list(BYTES)}],
            "workloads": workloads,
            "measure": Measure(
                starts=Count(min=3, max=3), trials=Count(min=1, max=1), metric="tpot"
            ),
            "baseline": "llamacpp kv=f16",
        }
    )
    points = tuple(
        Point(config=config(type), workload=one.name) for type in BYTES for one in workloads
    )
    trials = []
    for point, block in ((point, block) for point in points for block in range(3)):
        base, each = STEPS[point.config.engine.partition("=")[2]]
        seconds = (base + each * (int(point.workload.partition("-")[2]) + 64)) * (1 + 0.01 * block)
        counted = EngineMetrics(drafts=10, draft_tokens=40, accepted_tokens=12) if drafts else None
        metrics = TrialMetrics(tpot_s=seconds, output_throughput=1 / seconds)
        trials.append(make_trial(point, block, 0, metrics=metrics, engine_metrics=counted))
    instances = [
        make_instance(config(type), block, facts=InstanceFacts(kv_bytes_per_token=size))
        for type, size in BYTES.items()
        for block in range(3)
    ]
    variant = Variant(name="m/gguf-q8_0", model="m", recipe="gguf-q8_0", form="gguf/q8_0")
    return make_records(Plan(study=study, variants=(variant,), points=points), trials, instances)


def scores(shift: float) -> Scores:
    """Two windows of 200 tokens with two likely tokens each; from place 128 on, `shift` moves mass between them."""
    count = 2 * 200
    position = np.tile(np.arange(1, 201), 2)
    first = np.where(position < 128, 0.6, 0.6 - shift)
    return Scores(
        window=np.repeat([0, 1], 200),
        token=np.zeros(count, dtype=np.int64),
        logprob=np.log(first),
        top_tokens=np.tile([0, 1], (count, 1)),
        top_logprobs=np.log(np.stack([first, 0.9 - first], axis=1)),
    )


def test_divergence_by_position_is_where_it_is() -> None:
    parts = estimate_divergence_by_position(scores(0.2), scores(0.0), 0.95)
    assert [(part.first, part.last) for part in parts] == [(1, 63), (64, 127), (128, 200)]
    assert [part.divergence.value for part in parts[:2]] == [0.0, 0.0]
    assert parts[2].divergence.value == pytest.approx(
        0.6 * np.log(0.6 / 0.4) + 0.3 * np.log(0.3 / 0.5), rel=1e-6
    )


def test_short_windows_are_one_stretch() -> None:
    short = Scores(
        window=np.repeat([0, 1], 7),
        token=np.zeros(14, dtype=np.int64),
        logprob=np.full(14, -1.0),
        top_tokens=np.zeros((14, 1), dtype=np.int64),
        top_logprobs=np.full((14, 1), -1.0),
    )
    assert [
        (part.first, part.last) for part in estimate_divergence_by_position(short, short, 0.95)
    ] == [(1, 7)]


def test_quality_of_a_setting_is_held_against_the_same_weights_in_the_baselines_setting() -> None:
    plan = made_study().plan
    study = plan.study.model_copy(update={"quality": Quality()})
    asked = plan.model_copy(update={"study": study, "quality": plan.configs})
    assert find_quality_baseline(config("q8_0"), asked) == config("f16")
    assert find_quality_baseline(config("f16"), asked) == config("f16")
    alone = asked.model_copy(update={"points": (), "quality": (config("f16"),)})
    assert find_quality_baseline(config("f16"), alone) is None


def test_a_quantized_cache_is_held_against_the_whole_one_whatever_the_weights() -> None:
    """Else the loss of the cache would be in both and cancel out."""
    setups = [{"engine": "llamacpp", "kv_cache": ["f16", "q4_0"]}, "vllm"]
    study = Study.model_validate(
        {"name": "kv", "models": ["m"], "recipes": ["bf16", "q4"], "engines": setups, "quality": {}}
    )
    variants = tuple(
        Variant(name=f"m/{recipe}", model="m", recipe=recipe, form=form)
        for recipe, form in (("bf16", "gguf/dense"), ("q4", "gguf/q4"))
    )
    known = [config(type, f"m/{recipe}") for recipe in ("bf16", "q4") for type in ("f16", "q4_0")]
    plan = Plan(study=study, variants=variants, points=(), quality=tuple(known))
    assert {find_quality_baseline(one, plan) for one in known} == {config("f16", "m/bf16")}
    alone = plan.model_copy(
        update={"quality": tuple(one for one in known if one.engine.endswith("q4_0"))}
    )
    assert find_quality_baseline(config("q4_0", "m/q4"), alone) == config(
        "q4_0", "m/bf16"
    )  # there is no other
    assert has_quantized_cache(config("q4_0"), study)
    assert not has_quantized_cache(config("f16"), study)
