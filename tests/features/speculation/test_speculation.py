"""What drafts gain: from studies whose truth is known."""

import numpy as np
import pytest

from bitbench.analysis.results.summary import StudySummary
from bitbench.analysis.summarize import summarize
from bitbench.features.speculation.computing import (
    Speculation,
    Speculations,
    acceptance_length,
    summarize_speculation,
)
from bitbench.features.speculation.words import speculation_sentences
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import EngineMetrics, TrialMetrics
from bitbench.reports.document.markdown import render_markdown, render_markdown_phrase
from bitbench.reports.study import build_study_report
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Count, Measure, Study
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload
from tests.support.synthetic import make_instance, make_records, make_trial

NGRAM = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'
PLAIN, DRAFTS = "vllm speculative-config=unset", "vllm speculative-config=ngram,3,4"
STREAMS = (1, 4)
TOKENS, REQUESTS = 65, 8  # of an answer, of a trial
STEP_S = {
    1: 0.020,
    4: 0.032,
}  # without drafts, by streams: to check three tokens and one costs 1.6 steps
DRAFTED, DRAFT = 0.5, 3.0  # share of steps, tokens of a draft
LENGTHS = {"bf16": 3.2, "w4": 2.2}  # acceptance, by variant


def truth(length: float) -> tuple[float, float]:
    """Tokens per step, and what a step costs beside a plain one."""
    return 1 + DRAFTED * (length - 1), 1 + DRAFTED * (STEP_S[4] / STEP_S[1] - 1)


def counted(length: float) -> EngineMetrics:
    tokens = REQUESTS * (TOKENS - 1)
    drafts = DRAFTED * tokens / truth(length)[0]
    return EngineMetrics(
        drafts=drafts, draft_tokens=DRAFT * drafts, accepted_tokens=(length - 1) * drafts
    )


def made(
    *,
    streams: tuple[int, ...] = STREAMS,
    speculative: str = NGRAM,
    noise: float = 0.01,
    blocks: int = 4,
) -> StudyRecords:
    rng = np.random.default_rng(3)
    workloads = [
        Workload(name=f"at-{count}", concurrency=count, input_tokens=64, output_tokens=TOKENS)
        for count in streams
    ]
    study = Study.model_validate(
        {
            "name": "drafts",
            "models": ("m",),
            "recipes": tuple(LENGTHS),
            "engines": [
                {
                    "engine": "vllm",
                    "args": {"enforce-eager": True, "speculative-config": [None, speculative]},
                }
            ],
            "workloads": workloads,
            "measure": Measure(
                starts=Count(min=blocks, max=blocks), trials=Count(min=1, max=1), metric="tpot"
            ),
        }
    )
    plain, drafting = (setup.name for setup in study.engines)
    points, trials, instances = [], [], []
    for recipe, length in LENGTHS.items():
        for engine in (plain, drafting):
            config = Config(variant=f"m/{recipe}", engine=engine)
            for block in range(blocks):
                instances.append(make_instance(config, block, id=f"{config.name}-{block}"))
                for count in streams:
                    point = Point(config=config, workload=f"at-{count}")
                    points.append(point)
                    per_step, cost = truth(length) if engine == drafting else (1.0, 1.0)
                    seconds = STEP_S[count] * cost / per_step * float(np.exp(noise * rng.normal()))
                    own = (
                        {"engine_metrics": counted(length + noise * rng.normal())}
                        if engine == drafting
                        else {}
                    )
                    metrics = TrialMetrics(
                        tpot_s=seconds, output_throughput=TOKENS * 2.0, request_throughput=2.0
                    )
                    trials.append(
                        make_trial(
                            point,
                            block,
                            0,
                            id=f"{point.name}-{block}",
                            instance_id=f"{config.name}-{block}",
                            metrics=metrics,
                            requests=REQUESTS,
                            **own,
                        )
                    )
    variants = tuple(
        Variant(
            name=f"m/{recipe}",
            model="m",
            recipe=recipe,
            form="dense" if recipe == "bf16" else "compressed-tensors",
        )
        for recipe in LENGTHS
    )
    plan = Plan(study=study, variants=variants, points=tuple(dict.fromkeys(points)))
    return make_records(plan, trials, instances)


def found_in(records: StudyRecords, workload: str = "at-1") -> dict[str, Speculation]:
    found = summarize_speculation(records)
    assert found is not None
    return {
        one.config.variant.partition("/")[2]: one for one in found.rows if one.workload == workload
    }


def part_of(summary: StudySummary) -> Speculations:
    found = summary.part(Speculations)
    assert found is not None
    return found


def test_acceptance_and_gain_are_the_known_ones() -> None:
    found = found_in(made())
    for recipe, length in LENGTHS.items():
        one = found[recipe]
        per_step, cost = truth(length)
        assert one.plain == Config(variant=f"m/{recipe}", engine=PLAIN)
        assert one.acceptance_length is not None
        assert one.acceptance_length.interval is not None
        assert one.acceptance_length.value == pytest.approx(length, abs=0.02)
        assert one.acceptance_length.interval.low < length < one.acceptance_length.interval.high
        assert one.gain is not None
        assert one.gain.interval is not None
        assert one.gain.interval.low < per_step / cost < one.gain.interval.high
    assert found["bf16"].against_unquantized is None
    ratio = found["w4"].against_unquantized
    assert ratio is not None
    assert ratio.value == pytest.approx(2.2 / 3.2, rel=0.02)


def test_a_value_that_says_none_is_without_drafts_and_what_all_share_is_no_axis() -> None:
    study = Study.model_validate(
        {
            "name": "x",
            "engines": [
                {
                    "engine": "llamacpp",
                    "args": {"spec-type": ["none", "ngram-mod"], "spec-ngram-mod-n-match": 8},
                }
            ],
            "workloads": ["interactive"],
        }
    )
    points = [
        Point(config=Config(variant="none", engine=setup.name), workload="interactive")
        for setup in study.engines
    ]
    plan = Plan(
        study=study,
        variants=(Variant(name="none", model="none", recipe="none"),),
        points=tuple(points),
    )
    figures = TrialMetrics(tpot_s=0.01, output_throughput=100, request_throughput=2)
    trials = [make_trial(point, 0, index, metrics=figures) for index, point in enumerate(points)]
    found = summarize_speculation(make_records(plan, trials))
    assert found is not None
    (one,) = found.rows
    assert one.plain == points[0].config
    assert (one.config, one.acceptance_length) == (
        points[1].config,
        None,
    )  # the engine counted no draft


def test_a_study_without_drafts_has_no_such_section() -> None:
    records = made()
    points = tuple(point for point in records.plan.points if point.config.engine == PLAIN)
    summary = summarize(
        make_records(records.plan.model_copy(update={"points": points}), records.trials)
    )
    assert summary.parts == {}


def test_trials_without_counters_are_passed_over() -> None:
    (point,) = {made().plan.points[0]}
    bare = make_trial(point, 0, 0, metrics=TrialMetrics(output_throughput=10, request_throughput=1))
    assert acceptance_length(bare) is None
    none = bare.model_copy(
        update={"engine_metrics": EngineMetrics(drafts=0, accepted_tokens=0), "requests": 3}
    )
    assert acceptance_length(none) is None


def test_the_report_answers_first_and_explains_after() -> None:
    records = made()
    summary = summarize(records)
    said = [render_markdown_phrase(one) for one in speculation_sentences(part_of(summary), summary)]
    assert said[0].startswith(
        f"Speculation on `at-1` is faster than the same without: `bf16 @ {DRAFTS}` 1.6"
    )
    assert any("accepted drafts are shorter with" in one and "w4" in one for one in said)
    text = render_markdown(build_study_report(summary, records.lock))
    part = text.partition("## What speculation gains")[2].partition("\n## ")[0]
    assert "pays" in part
    assert text.index("Speculation on `at-1`") < text.index("## What speculation gains")


def test_drafts_that_do_not_pay_are_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LENGTHS, "w4", 1.2)
    summary = summarize(made())
    said = " ".join(
        render_markdown_phrase(one) for one in speculation_sentences(part_of(summary), summary)
    )
    assert f"Speculation on `at-1` is slower than the same without: `w4 @ {DRAFTS}` 0.8" in said
