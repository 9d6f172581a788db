"""How long a trial will take, before anything was measured."""

from itertools import permutations

import pytest

from bitbench.engines.null import NullEngine
from bitbench.planning.estimate import (
    NULL_TOKEN_S,
    Estimator,
    estimate_assumptions,
    guess_quality_s,
    guess_trial_s,
)
from bitbench.quantize import catalog
from bitbench.quantize.backends import guess_backend_s
from bitbench.records.trial import Outcome, TrialMetrics
from bitbench.study.base import Json
from bitbench.study.hardware import Level
from bitbench.study.quality import Quality, Scoring
from bitbench.study.variant import NO_MODEL, ModelFacts, Variant
from bitbench.study.workload import Workload
from tests.support.synthetic import make_instance, make_plan, make_trial

NOTHING = Variant(name=NO_MODEL, model=NO_MODEL, recipe=NO_MODEL)
LARGE = Variant(
    name="l", model="l", recipe="bf16", weight_bytes=20 * 10**9, facts=ModelFacts(parameters=10**10)
)


def guess(variant: Variant = NOTHING, **asked: Json) -> float:
    return guess_trial_s(
        variant,
        Workload.model_validate({"name": "w", "input_tokens": 100, "output_tokens": 50, **asked}),
    )


ONE_S = 50 * NULL_TOKEN_S


@pytest.mark.parametrize(
    ("asked", "expected_s"),
    [
        ({"concurrency": 8}, ONE_S),
        ({"concurrency": 8, "arrival": "closed_loop", "requests": 16}, 2 * ONE_S),
        ({"arrival": {"kind": "poisson", "rate": 5}, "duration": "1m"}, 60 + ONE_S),
        ({"arrival": {"kind": "poisson", "rate": 5}, "requests": 300}, 60 + ONE_S),
        ({"arrival": {"kind": "trace", "file": "t"}, "duration": "90s"}, 90 + ONE_S),
        (
            {
                "arrival": {"kind": "constant", "rate": 1},
                "requests": 30,
                "conversation": {"turns": 3, "think": 4},
            },
            10 + 3 * ONE_S + 8,
        ),
        ({"concurrency": 2, "conversation": {"turns": 3, "think": 4}}, 3 * ONE_S + 8),
    ],
)
def test_the_schedule_of_an_open_loop_decides(asked: Json, expected_s: float) -> None:
    assert guess(**asked) == pytest.approx(expected_s)


def test_a_warm_up_tells_how_long_a_trial_takes() -> None:
    """One of two rounds of requests, and 8 of 50 tokens: the rest comes at its pace."""
    asked: Json = {
        "name": "w",
        "input_tokens": 100,
        "output_tokens": 50,
        "concurrency": 8,
        "arrival": "closed_loop",
    }
    plan = make_plan(["a"], [Workload.model_validate({**asked, "requests": 16})])
    (point,) = plan.points
    estimator = Estimator(plan, {"null": NullEngine()})
    assert estimator.trial_s(point) == pytest.approx(2 * ONE_S)
    assert estimator.estimate_warm_up_s(point) == pytest.approx(8 * NULL_TOKEN_S)
    at_its_pace = TrialMetrics(tpot_s=0.1)
    estimator.add(make_trial(point, 0, 0, kind="warmup", duration_s=3.0, metrics=at_its_pace))
    assert estimator.estimate_warm_up_s(point) == pytest.approx(3.0)
    assert estimator.trial_s(point) == pytest.approx(2 * (3.0 + 42 * 0.1))
    estimator.add(make_trial(point, 0, 0, duration_s=16.4))
    assert estimator.estimate_warm_up_s(point) == pytest.approx(3.0)
    assert estimator.trial_s(point) == pytest.approx((14.4 + 16.4) / 2)


def test_an_engine_that_cannot_keep_up_takes_as_long_as_it_takes() -> None:
    closed = guess(LARGE, concurrency=64, arrival="closed_loop", requests=640)
    asked: Json = {
        "arrival": {"kind": "constant", "rate": 1000},
        "requests": 640,
        "concurrency": 64,
    }
    assert guess(LARGE, **asked) == pytest.approx(closed)
    assert guess(LARGE, **asked) > 10 * guess(NOTHING, **asked)


SMALL = Variant(
    name="s",
    model="s",
    recipe="bf16",
    weight_bytes=269_000_000,
    facts=ModelFacts(parameters=134_515_008),
)


@pytest.mark.parametrize("level", [None, *Level])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_trial_takes_about_what_was_measured_on_such_a_processor(
    level: Level | None, concurrency: int
) -> None:
    """SmolLM2-135M on vLLM and transformers: the gallery's cpu-shootout, on amx and on avx512."""
    plan = make_plan(
        ["a"], [Workload(name="w", input_tokens=128, output_tokens=32, concurrency=concurrency)]
    )
    plan = plan.model_copy(update={"variants": (SMALL.model_copy(update={"name": NO_MODEL}),)})
    has_bf16 = level is None or level in {Level.AMX, Level.AVX512_BF16, Level.NEON_BF16}
    measured_s = {(1, True): 1.0, (8, True): 1.5, (1, False): 3.4, (8, False): 8.5}[
        concurrency, has_bf16
    ]
    guessed_s = Estimator(plan, {"null": NullEngine()}, level).trial_s(plan.points[0])
    assert measured_s / 1.6 < guessed_s < 1.6 * measured_s


def test_quality_takes_longer_without_bf16_instructions() -> None:
    slow_s, quick_s = (
        guess_quality_s(
            SMALL,
            Quality(windows=8, window_tokens=128),
            Scoring.PROMPT_LOGPROBS,
            estimate_assumptions(level),
        )
        for level in (Level.AVX512_VNNI, Level.AMX)
    )
    assert 1.5 * quick_s < slow_s < 6 * quick_s


def test_starts_are_expected_as_in_the_newest_block_whatever_is_read_first() -> None:
    plan = make_plan(["a"], [Workload(name="w", input_tokens=100, output_tokens=50, concurrency=1)])
    config = plan.configs[0]
    starts = [(0, 50.0), (0, 60.0), (1, 20.0), (2, 7.0), (2, 5.0)]
    for order in permutations(starts):
        estimator = Estimator(plan, {"null": NullEngine()})
        assert estimator.start_s("a") == estimator.estimate_first_start_s("a") == NullEngine.start_s
        for block, ready_s in order:
            estimator.add(make_instance(config, block, ready_s=ready_s))
        estimator.add(make_instance(config, 3, ready_s=None, outcome=Outcome.CRASHED))
        assert estimator.start_s("a") == pytest.approx(6.0)
        assert estimator.estimate_first_start_s("a") == pytest.approx(55.0)


@pytest.mark.parametrize(
    ("recipe", "measured_s"),  # SmolLM2-135M on two cores, processor time
    [
        ("w4a16-gptq", 134),
        ("w8a8-smooth-gptq", 210),
        ("w8a8-sparse-smooth-gptq", 338),
        ("w4a16-awq", 240),
    ],
)
def test_creating_a_variant_takes_about_what_was_measured(recipe: str, measured_s: float) -> None:
    assert guess_backend_s(catalog.find_recipe(recipe), 134_515_008) == pytest.approx(
        measured_s, rel=0.3
    )


def test_what_is_not_made_takes_no_time_and_a_larger_model_takes_longer() -> None:
    assert (
        guess_backend_s(catalog.find_recipe("bf16"), 10**9)
        == guess_backend_s(catalog.find_recipe("torchao-int8wo"), 10**9)
        == 0.0
    )
    for recipe in catalog.list_built_in_recipes():
        small, large = (guess_backend_s(recipe, parameters) for parameters in (10**8, 10**10))
        assert small < large or small == large == 0.0
