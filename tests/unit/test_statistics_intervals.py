from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitbench.analysis.absolute import estimate_mean, estimate_metric, pool_start_variances
from bitbench.analysis.intervals import (
    Sample,
    estimate_mean_uncertainty,
    estimate_t_mean,
    summarize_starts,
)
from bitbench.analysis.precision import has_enough_instances
from bitbench.analysis.unpaired import estimate_unpaired_ratio
from bitbench.study.plan import Config, Point
from bitbench.study.study import Count, Measure

T_95 = {1: 12.706, 2: 4.303, 4: 2.776}  # from a printed table
SPEED, SIZE = "output_throughput", "peak_bytes"


def of(*starts: list[float], was_running: bool = False) -> Sample:
    named = {(block, f"i{block}"): values for block, values in enumerate(starts)}
    return summarize_starts(named, was_running=was_running)


def test_width_is_students_on_the_scale_of_logarithms() -> None:
    known = estimate_mean(of([90.0], [100.0], [110.0]), 0.95)
    error = np.std([log(90), log(100), log(110)], ddof=1) / 3**0.5
    assert known.value == 100.0
    assert known.interval is not None
    assert log(known.interval.high / 100) == pytest.approx(T_95[2] * error, rel=1e-3)
    assert known.interval.low * known.interval.high == pytest.approx(100.0**2)


@given(st.lists(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5), min_size=1, max_size=5))
def test_an_interval_contains_the_mean_and_does_not_begin_at_zero(
    starts: list[list[float]],
) -> None:
    known = estimate_mean(of(*starts), 0.95)
    if known.interval is not None:
        assert 0 <= known.interval.low <= known.value * (1 + 1e-9)
        assert known.interval.high >= known.value * (1 - 1e-9)


@pytest.mark.parametrize("starts", [[[9.0, 10.0, 11.0]], [[9.0]], [[9.0], [10.0]]])
def test_too_few_starts_have_no_interval(starts: list[list[float]]) -> None:
    known = estimate_mean(of(*starts), 0.95)
    assert known.interval is None
    assert known.basis is not None
    assert known.basis.trials == sum(map(len, starts))


def test_trials_of_a_server_that_was_running_are_its_repetitions() -> None:
    known = estimate_mean(of([9.0, 10.0, 11.0], was_running=True), 0.95)
    same = estimate_mean(of([9.0], [10.0], [11.0]), 0.95)
    assert known.interval == same.interval is not None
    assert known.basis is not None
    assert known.basis.starts == 1


def test_a_figure_of_zero_has_no_logarithm() -> None:
    known = estimate_mean(of([0.0, 1.0], [1.0], [1.0], [2.0]), 0.95)
    assert (known.value, known.interval) == (1.125, None)


def test_close_starts_do_not_look_more_exact_than_their_trials() -> None:
    known = estimate_mean_uncertainty([[9.0, 11.0], [9.0, 11.0]])
    assert known is not None
    assert known.standard_error == pytest.approx((2.0 / 4) ** 0.5)


def test_every_start_weighs_the_same() -> None:
    known = estimate_mean(of([10.0] * 10, [20.0]), 0.95)
    assert known.basis is not None
    assert known.value == 15.0
    assert (known.basis.starts, known.basis.trials) == (2, 11)
    assert known.basis.trial_sd == pytest.approx(np.std([10.0] * 10 + [20.0], ddof=1))


def test_equal_values_have_an_interval_of_no_width() -> None:
    known = estimate_mean(of([5.0, 5.0], [5.0, 5.0], [5.0]), 0.95)
    assert known.interval is not None
    assert known.interval.low == known.interval.high == pytest.approx(5.0)


def test_one_group_has_students_t_whatever_its_sign() -> None:
    known = estimate_t_mean([-1.0, 0.0, 1.0], 0.95)
    assert known.interval is not None
    assert known.interval.high == pytest.approx(T_95[2] / 3**0.5, rel=1e-3)
    assert estimate_t_mean([2.0], 0.95).interval is None


# --- the variance that configs share ---


def point(number: int, workload: str = "w") -> Point:
    return Point(config=Config(variant=f"v{number}", engine="e"), workload=workload)


def study(
    noise: np.random.Generator, configs: int, blocks: int, mood: float
) -> dict[Point, dict[str, Sample]]:
    """All of them at a speed of 100; starts vary by 5.7 %, trials by 10 %, blocks by `mood`."""
    state = noise.normal(0, mood, blocks)
    found = {}
    for config in range(configs):
        starts = state + noise.normal(0, 0.057, blocks)
        trials = starts[:, np.newaxis] + noise.normal(0, 0.1, (blocks, 4))
        found[point(config)] = {SPEED: of(*(100 * np.exp(trials)).tolist())}
    return found


@pytest.mark.parametrize(
    ("configs", "blocks", "mood", "least"),
    [
        (4, 2, 0.06, 0.93),
        (8, 2, 0.0, 0.93),
        (2, 3, 0.1, 0.93),
        (4, 3, 0.06, 0.93),
        (8, 3, 0.2, 0.91),
        (4, 5, 0.2, 0.91),
    ],
)
def test_an_interval_covers_the_truth(configs: int, blocks: int, mood: float, least: float) -> None:
    """`mood`: how the machine varies from block to block, which all configs of a block share."""
    noise = np.random.default_rng(11)
    covered, shown, studies = 0, 0, 300
    for _ in range(studies):
        for known in estimate_metric(study(noise, configs, blocks, mood), SPEED, 0.95).values():
            if known.interval is not None:
                shown += 1
                covered += known.interval.low <= 100 <= known.interval.high
    assert shown >= 0.6 * studies * configs
    assert covered / shown >= least


def test_two_starts_borrow_from_the_other_configs() -> None:
    noise = np.random.default_rng(3)
    samples = study(noise, 8, 2, mood=0.0)
    known = estimate_metric(samples, SPEED, 0.95)
    assert all(estimate.interval is not None for estimate in known.values())
    alone = estimate_metric({point(0): samples[point(0)]}, SPEED, 0.95)
    assert alone[point(0)].interval is None


def test_starts_that_only_follow_the_machine_are_worth_one() -> None:
    """Two blocks in which all configs moved alike know the machine twice, however many configs there are."""
    alike = [of([100.0], [130.0]) for _ in range(8)]
    assert pool_start_variances(alike).degrees_of_freedom == pytest.approx(1.0)
    apart = [of([100.0], [130.0]) if number % 2 else of([130.0], [100.0]) for number in range(8)]
    assert pool_start_variances(apart).degrees_of_freedom == pytest.approx(8 / (1 + 7 / 4))


def test_a_noisy_config_keeps_its_own_variance() -> None:
    samples = {point(number): {SPEED: of([100.0], [100.1], [99.9])} for number in range(6)}
    samples[point(6)] = {SPEED: of([50.0], [100.0], [200.0])}
    known = estimate_metric(samples, SPEED, 0.95)[point(6)]
    assert known.interval is not None
    error = log(2) / 3**0.5
    assert log(known.interval.high / known.interval.low) >= 2 * 1.96 * error


def test_memory_has_the_range_of_its_starts() -> None:
    samples = {point(0): {SIZE: of([1e9], [3e9])}, point(1): {SIZE: of([5e9])}}
    known = estimate_metric(samples, SIZE, 0.95)
    assert (known[point(0)].kind, known[point(0)].low, known[point(0)].high) == (
        "extremes",
        1e9,
        3e9,
    )
    assert known[point(0)].confidence is None
    assert (known[point(1)].value, known[point(1)].interval) == (5e9, None)


# --- ratios of two samples ---


def test_a_ratio_is_symmetric() -> None:
    fast, slow = (
        of([11.0, 11.1], [10.9, 11.2], [11.0, 11.3]),
        of([10.0, 10.1], [9.9, 10.2], [10.0, 10.2]),
    )
    one, other = (
        estimate_unpaired_ratio(fast, slow, 0.95),
        estimate_unpaired_ratio(slow, fast, 0.95),
    )
    assert one is not None
    assert other is not None
    assert one.value == pytest.approx(1 / other.value)
    assert one.p_value == pytest.approx(other.p_value)
    assert one.interval is not None
    assert other.interval is not None
    assert one.interval.low == pytest.approx(1 / other.interval.high)


@given(st.integers(0, 10_000), st.floats(0.9, 1.1))
def test_a_ratio_is_significant_exactly_when_its_interval_excludes_one(
    seed: int, speed: float
) -> None:
    noise = np.random.default_rng(seed)
    first = of(*(100 * speed * np.exp(0.02 * noise.normal(size=(3, 3)))).tolist())
    second = of(*(100 * np.exp(0.02 * noise.normal(size=(3, 3)))).tolist())
    ratio = estimate_unpaired_ratio(first, second, 0.95)
    assert ratio is not None
    assert ratio.interval is not None
    assert ratio.p_value is not None
    assert (ratio.p_value < 0.05) == (not ratio.interval.low <= 1 <= ratio.interval.high)


def test_welch_by_hand() -> None:
    """Equal errors of 1 % with 2 degrees of freedom each: 1.414 % with 4."""
    spread = np.exp(0.01 * 3**0.5)  # of three starts, so that the standard error is 1 %
    first = of([100 / spread], [100.0], [100 * spread])
    second = of([50 / spread], [50.0], [50 * spread])
    ratio = estimate_unpaired_ratio(first, second, 0.95)
    assert ratio is not None
    assert ratio.interval is not None
    width = np.log(ratio.interval.high / ratio.interval.low)
    assert width == pytest.approx(2 * T_95[4] * 2**0.5 * 0.01, rel=1e-3)


@pytest.mark.parametrize("single", [[10.0], [9.0, 10.0, 11.0]])
def test_one_start_cannot_be_compared(single: list[float]) -> None:
    ratio = estimate_unpaired_ratio(of(single), of([20.0], [21.0], [22.0]), 0.95)
    assert ratio is not None
    assert (ratio.interval, ratio.p_value) == (None, None)


def test_exact_values_that_differ_are_told_apart() -> None:
    ratio = estimate_unpaired_ratio(
        of([10.0, 10.0], [10.0, 10.0]), of([20.0, 20.0], [20.0, 20.0]), 0.95
    )
    assert ratio is not None
    assert ratio.p_value == 0.0


MEASURE = Measure(starts=Count(min=3, max=6), trials=Count(min=3, max=5))


@pytest.mark.parametrize(
    ("means", "enough"),
    [
        ([], False),
        ([100.0, 100.0], False),
        ([100.0, 100.1, 99.9], True),
        ([100.0, 100.6, 99.4], False),  # half width 1.5 %, but that may be luck
        ([100.0, 100.6, 99.4, 100.1, 99.9], True),  # half width 0.5 %, and sure of it
        ([100.0, 130.0, 70.0, 100.0, 100.0, 100.0], True),
    ],
)
def test_enough_instances(means: list[float], enough: bool) -> None:
    assert has_enough_instances([[mean] * 3 for mean in means], MEASURE) is enough
