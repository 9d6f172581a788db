"""Settings that cannot change what a model says: its quality is measured with one of them, and is that of all."""

import numpy as np
import pyarrow as pa
import pytest

from bitbench.analysis.quality import RISE, quality_baseline, summarize_quality
from bitbench.analysis.recommend import recommend
from bitbench.analysis.results.estimate import Verdict
from bitbench.analysis.results.recommendation import Limits
from bitbench.analysis.summarize import summarize
from bitbench.engines.llamacpp import LlamaCppEngine
from bitbench.engines.openvino import OpenvinoEngine
from bitbench.engines.sglang import SglangEngine
from bitbench.engines.transformers import TransformersEngine
from bitbench.engines.vllm import VllmEngine
from bitbench.features.tune.types import alike_tune_setups
from bitbench.measure.budget import OneBlock
from bitbench.measure.estimate import Estimator
from bitbench.measure.progress import DISTURBED_REPEATS, Progress, progress_excuses
from bitbench.ports import Engine
from bitbench.records.folder import StudyRecords
from bitbench.records.quality import CorpusFacts, QualityRecord
from bitbench.records.trial import Outcome, TrialMetrics
from bitbench.reports.document.markdown import markdown
from bitbench.reports.study import study_document
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.quality import Quality
from bitbench.study.study import Study
from bitbench.study.study_file import parse_study
from bitbench.study.variant import Variant
from tests.support.synthetic import make_records, make_trial

ENGINES: dict[str, Engine] = {
    one.name: one for one in (LlamaCppEngine(), OpenvinoEngine(), SglangEngine(), TransformersEngine(), VllmEngine())
}
WINDOWS, LENGTH = 6, 10
LOSS = {"m/gguf-bf16": 0.0, "m/gguf-q4_0": 0.05}  # nats of every token


def alike(setups: str) -> list[tuple[str, ...]]:
    text = f"name: x\nmodels: [m]\nworkloads: [interactive]\nmeasure: {{budget: 10m}}\ntune: {{}}\nengines:\n{setups}"
    return list(alike_tune_setups(parse_study(text, name="s.yaml"), ENGINES))


def test_threads_and_limits_of_batches_leave_a_model_as_it_is_and_a_cache_does_not() -> None:
    assert alike("  - {engine: llamacpp, kv_cache: [f16, q8_0], args: {threads: [1, 2], --threads_batch: 2}}\n") == [
        ("llamacpp kv=f16 threads=1", "llamacpp kv=f16 threads=2"),
        ("llamacpp kv=q8_0 threads=1", "llamacpp kv=q8_0 threads=2"),
    ]
    assert alike("  - {engine: vllm, args: {max_num_seqs: [8, 32, 128], enforce-eager: true}}\n") == [
        ("vllm max_num_seqs=8", "vllm max_num_seqs=32", "vllm max_num_seqs=128")
    ]
    assert alike("  - {engine: openvino, args: {threads: [1, 2]}}\n") == [("openvino threads=1", "openvino threads=2")]


@pytest.mark.parametrize(
    "setups",
    [
        "  - {engine: vllm, kv_cache: [auto, fp8]}\n",
        "  - {engine: vllm, args: {enforce-eager: [true, false]}}\n",
        "  - {engine: vllm, args: {max-num-batched-tokens: [64, 2048]}}\n",
        '  - {engine: vllm, args: {speculative-config: [null, \'{"method": "ngram"}\']}}\n',
        "  - {engine: vllm, args: {an-option-of-tomorrow: [1, 2]}}\n",
        "  - {engine: llamacpp, args: {ubatch-size: [1, 512]}}\n",
        "  - {engine: llamacpp, args: {spec-type: [null, ngram-simple]}}\n",
        "  - vllm\n  - {engine: vllm, name: other, env: {VLLM_USE_V2: '1'}}\n",
        "  - vllm\n  - sglang\n",
        "  - {engine: transformers, args: {dtype: [bfloat16, float32]}}\n",
    ],
)
def test_what_is_not_known_to_leave_results_alone_counts_as_changing_them(setups: str) -> None:
    assert alike(setups) == []


def test_no_engine_takes_a_type_of_its_kv_cache_for_a_matter_of_speed() -> None:
    chosen = {name for one in ENGINES.values() for type in one.kv_cache_types.values() for name in type}
    assert chosen
    assert not any(chosen & one.speed_only for one in ENGINES.values())


def config(variant: str, threads: int) -> Config:
    return Config(variant=variant, engine=f"llamacpp threads={threads}")


def made_plan() -> Plan:
    """Two variants with one, two and four threads."""
    study = Study.model_validate(
        {
            "name": "s",
            "models": ("m",),
            "recipes": ("gguf-bf16", "gguf-q4_0"),
            "engines": [{"engine": "llamacpp", "args": {"threads": [1, 2, 4]}}],
            "workloads": ["interactive"],
            "quality": Quality(windows=WINDOWS, window_tokens=LENGTH + 1, answer_tokens=0),
            "baseline": "m/gguf-bf16 @ llamacpp threads=1",
            "tune": {},
        }
    )
    configs = tuple(config(variant, threads) for threads in (1, 2, 4) for variant in LOSS)
    return Plan(
        study=study,
        variants=tuple(
            Variant(name=name, model="m", recipe=name[2:], form=form)
            for name, form in zip(LOSS, ("gguf/dense", "gguf/q4_0"), strict=True)
        ),
        points=tuple(Point(config=one, workload="interactive") for one in configs),
        quality=configs,
        alike_setups=(tuple(setup.name for setup in study.engines),),
    )


PLAN = made_plan()
FIRST, SECOND, THIRD = (config("m/gguf-q4_0", threads) for threads in (1, 2, 4))
DENSE = config("m/gguf-bf16", 1)


def record(of: Config, outcome: Outcome = Outcome.OK) -> QualityRecord:
    corpus = CorpusFacts(
        description="made up", text_hash="x", windows_hash="y", windows=WINDOWS, window_tokens=LENGTH + 1, room=1000
    )
    return QualityRecord(
        id=of.name, config=of, instance_id="i", started_at="2026-11-16T10:00:00.000+00:00", duration_s=1.0,
        outcome=outcome, cause=None if outcome is Outcome.OK else "It ended.", corpus=corpus,
    )  # fmt: skip


def scores(of: QualityRecord) -> pa.Table:
    window = np.repeat(np.arange(WINDOWS), LENGTH)
    logprob = -1.0 - LOSS[of.config.variant] * (1 + 0.1 * np.sin(window))
    return pa.table(
        {
            "window": pa.array(window, pa.int32()),
            "position": pa.array(np.tile(np.arange(1, LENGTH + 1), WINDOWS), pa.int32()),
            "token": pa.array(np.ones(len(window)), pa.int32()),
            "logprob": pa.array(logprob, pa.float32()),
            "top_tokens": pa.array([[1]] * len(window), pa.list_(pa.int32())),
            "top_logprobs": pa.array(logprob[:, None].tolist(), pa.list_(pa.float32())),
        }
    )


def records(*quality: QualityRecord, plan: Plan = PLAN) -> StudyRecords:
    trials = [
        make_trial(point, block, 0, metrics=TrialMetrics(output_throughput=100.0 + block))
        for point in plan.points
        for block in range(2)
    ]
    return make_records(plan, trials, quality=quality, scores_of=scores)


def wanted(*quality: QualityRecord, plan: Plan = PLAN) -> list[Config]:
    progress = Progress(plan, OneBlock(1))
    progress.add(quality)
    return [one for one in plan.quality if progress.wants_quality(one)]


def test_one_of_those_that_share_it_is_measured() -> None:
    assert wanted() == [DENSE, FIRST]
    assert wanted(record(FIRST)) == [DENSE]
    assert wanted(record(FIRST), record(DENSE)) == []
    alone = PLAN.model_copy(update={"alike_setups": ()})
    assert wanted(record(FIRST), plan=alone) == [one for one in PLAN.quality if one != FIRST]


def test_where_the_first_fails_the_next_takes_its_place_at_once() -> None:
    failed = record(FIRST, Outcome.CRASHED)
    assert wanted(record(DENSE), failed) == [FIRST, SECOND]  # whichever is up next
    assert wanted(record(DENSE), failed, record(SECOND)) == []
    drawn = PLAN.only({DENSE, SECOND, THIRD})  # the first is not among those that are searched
    assert wanted(plan=drawn) == [DENSE, SECOND]


def test_what_was_disturbed_in_an_earlier_call_is_measured_again() -> None:
    disturbed = [record(DENSE, Outcome.DISTURBED)] * (DISTURBED_REPEATS + 1)
    assert DENSE not in wanted(record(FIRST), *disturbed)
    progress = Progress(PLAN, OneBlock(1), excused=progress_excuses(disturbed))
    progress.add([record(FIRST), *disturbed])
    assert progress.wants_quality(DENSE)


def test_an_estimate_counts_what_is_measured() -> None:
    assert PLAN.quality_once == (DENSE, FIRST)
    facts = {"parameters": 1_000_000}
    sized = PLAN.model_copy(
        update={"variants": tuple(Variant.model_validate({**dict(one), "facts": facts}) for one in PLAN.variants)}
    )
    alone = sized.model_copy(update={"alike_setups": ()})
    assert Estimator(alone, ENGINES).quality_s == pytest.approx(3 * Estimator(sized, ENGINES).quality_s)


def test_all_that_share_it_have_the_figures_of_the_one_that_was_measured() -> None:
    of = records(record(DENSE), record(FIRST, Outcome.CRASHED), record(SECOND))
    found = {one.config: one for one in summarize_quality(of)}
    assert set(found) == set(PLAN.quality)
    assert found[SECOND].measured_as is None
    for one in (FIRST, THIRD):
        assert found[one].measured_as == SECOND
        assert found[one].outcome is Outcome.OK
        assert found[one].estimates == found[SECOND].estimates
    assert found[THIRD].estimates[RISE].value == pytest.approx(np.expm1(0.05), rel=0.02)
    assert found[config("m/gguf-bf16", 4)].estimates[RISE].value == 0.0
    judged = recommend(summarize(of), Limits(quality_loss=0.06)).choices[0].judged
    assert {one.verdict for one in judged} == {Verdict.MET}


def test_the_unquantized_model_with_other_threads_is_what_is_compared_with_where_it_alone_was_drawn() -> None:
    drawn = PLAN.only({DENSE, SECOND})
    assert quality_baseline(SECOND, drawn) == DENSE
    assert quality_baseline(SECOND, PLAN) == config("m/gguf-bf16", 2)
    assert quality_baseline(SECOND, drawn.model_copy(update={"alike_setups": ()})) is None
    (_, own) = summarize_quality(records(record(DENSE), record(SECOND), plan=drawn))
    assert own.estimates[RISE].value == pytest.approx(np.expm1(0.05), rel=0.02)


def test_a_report_says_whose_quality_is_shared() -> None:
    of = records(record(DENSE), record(FIRST))
    text = markdown(study_document(summarize(of), of.lock))
    assert "Measured once for settings that change speed and nothing of what a variant says" in text
    assert "`gguf-q4_0 @ llamacpp threads=2` and `gguf-q4_0 @ llamacpp threads=4`" in text
