import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitbench.analysis.intervals import (
    Resampler,
    Sample,
    interval_skew,
    mean_interval,
    mean_uncertainty,
    resample_groups,
)
from bitbench.analysis.precision import enough_instances
from bitbench.analysis.unpaired import unpaired_ratio
from bitbench.study.study import Count, Measure

T_95 = {1: 12.706, 2: 4.303, 4: 2.776}  # from a printed table


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def of(*groups: list[float]) -> Sample:
    return resample_groups(groups, Resampler(rng()))


@pytest.mark.parametrize("instances", [2, 3, 5])
@pytest.mark.parametrize("trials", [3, 6])
@pytest.mark.parametrize("between", [0.0, 1.0, 3.0])
def test_a_95_percent_interval_covers_the_truth(instances: int, trials: int, between: float) -> None:
    noise = np.random.default_rng(11)
    covered = 0
    studies = 400
    for _ in range(studies):
        groups = 100 + between * noise.normal(size=(instances, 1)) + noise.normal(size=(instances, trials))
        interval = mean_interval(resample_groups(groups.tolist(), Resampler(noise)), 0.95).interval
        assert interval is not None
        covered += interval.low <= 100 <= interval.high
    assert covered / studies >= 0.93


def test_a_plain_percentile_bootstrap_would_not() -> None:
    """Why the width is calibrated: if this ever covers, the calibration can go."""
    noise = np.random.default_rng(12)
    covered = 0
    for _ in range(300):
        groups = 100 + 3 * noise.normal(size=(3, 1)) + noise.normal(size=(3, 4))
        low, high = np.quantile(Resampler(noise).means(groups.tolist()), [0.025, 0.975])
        covered += low <= 100 <= high
    assert covered / 300 < 0.85


def test_width_is_students() -> None:
    known = mean_interval(of([109.0, 111.0], [119.0, 121.0], [129.0, 131.0]), 0.95)
    assert known.basis is not None
    assert known.value == 120.0
    assert known.basis.standard_error == pytest.approx(10 / 3**0.5)
    assert known.basis.degrees_of_freedom == 2
    assert known.interval is not None
    assert known.interval.high - known.interval.low == pytest.approx(2 * T_95[2] * 10 / 3**0.5, rel=1e-3)
    assert known.basis.relative_half_width == pytest.approx(T_95[2] * 10 / 3**0.5 / 120, rel=1e-3)
    assert known.covers_starts


def test_an_interval_that_knows_little_does_not_go_below_zero() -> None:
    known = mean_interval(of([1.0, 1.1], [2.0, 2.1]), 0.95)
    assert known.interval is not None
    assert known.interval.low == 0.0


def test_close_instance_means_do_not_look_more_exact_than_their_trials() -> None:
    known = mean_uncertainty([[9.0, 11.0], [9.0, 11.0]])
    assert known is not None
    assert known.standard_error == pytest.approx((2.0 / 4) ** 0.5)


def test_every_instance_weighs_the_same() -> None:
    known = mean_interval(of([10.0] * 10, [20.0]), 0.95)
    assert known.basis is not None
    assert known.value == 15.0
    assert (known.basis.starts, known.basis.trials) == (2, 11)


def test_one_instance_says_nothing_of_starts() -> None:
    known = mean_interval(of([9.0, 10.0, 11.0]), 0.95)
    assert known.basis is not None
    assert not known.covers_starts
    assert known.basis.degrees_of_freedom == 2
    assert known.interval is not None


def test_one_trial_has_no_interval() -> None:
    known = mean_interval(of([9.0]), 0.95)
    assert known.basis is not None
    assert (known.value, known.interval, known.basis.relative_half_width, known.basis.trial_sd) == (
        9.0,
        None,
        None,
        None,
    )


def test_one_trial_in_each_of_three_instances_has_one() -> None:
    known = mean_interval(of([9.0], [10.0], [11.0]), 0.95)
    assert known.basis is not None
    assert known.interval is not None
    assert known.basis.degrees_of_freedom == 2


@given(
    st.lists(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=5), min_size=1, max_size=5),
)
def test_the_interval_contains_the_mean(groups: list[list[float]]) -> None:
    known = mean_interval(resample_groups(groups, Resampler(rng())), 0.95)
    if known.interval is not None:
        assert known.interval.low <= known.value <= known.interval.high


def test_equal_values_have_an_interval_of_no_width() -> None:
    known = mean_interval(of([5.0, 5.0], [5.0, 5.0]), 0.95)
    assert known.basis is not None
    assert known.interval is not None
    assert known.interval.low == known.interval.high == 5.0
    assert known.basis.relative_half_width == 0


def test_skew_moves_the_sides_not_the_width() -> None:
    below, above = interval_skew(np.random.default_rng(1).exponential(size=5000) - 1, 0.95)
    assert above > 2 * below > 0
    assert below + above == pytest.approx(2)


def test_bootstrap_draws_never_mix_trials_of_two_instances() -> None:
    draws = Resampler(rng()).means([[1.0], [100.0, 100.0, 100.0]])
    assert set(draws.round(9)) == {1.0, 50.5, 100.0}


def test_a_ratio_is_symmetric() -> None:
    fast, slow = of([11.0, 11.1], [10.9, 11.2], [11.0, 11.3]), of([10.0, 10.1], [9.9, 10.2], [10.0, 10.2])
    one, other = unpaired_ratio(fast, slow, 0.95), unpaired_ratio(slow, fast, 0.95)
    assert one is not None
    assert other is not None
    assert one.value == pytest.approx(1 / other.value)
    assert one.p_value == pytest.approx(other.p_value)
    assert one.interval is not None
    assert other.interval is not None
    assert one.interval.low == pytest.approx(1 / other.interval.high)


@given(st.integers(0, 10_000), st.floats(0.9, 1.1))
def test_a_ratio_is_significant_exactly_when_its_interval_excludes_one(seed: int, speed: float) -> None:
    noise = np.random.default_rng(seed)
    first = resample_groups((100 * speed * np.exp(0.02 * noise.normal(size=(3, 3)))).tolist(), Resampler(noise))
    second = resample_groups((100 * np.exp(0.02 * noise.normal(size=(3, 3)))).tolist(), Resampler(noise))
    ratio = unpaired_ratio(first, second, 0.95)
    assert ratio is not None
    assert ratio.interval is not None
    assert ratio.p_value is not None
    assert (ratio.p_value < 0.05) == (not ratio.interval.low <= 1 <= ratio.interval.high)


def test_welch_by_hand() -> None:
    """Equal relative errors of 1 % with 2 degrees of freedom each: 1.414 % with 4."""
    spread = 0.01 * 3**0.5  # of three instance means, so that the standard error is 1 %
    first = of([100 * (1 - spread)], [100.0], [100 * (1 + spread)])
    second = of([50 * (1 - spread)], [50.0], [50 * (1 + spread)])
    ratio = unpaired_ratio(first, second, 0.95)
    assert ratio is not None
    assert ratio.interval is not None
    width = np.log(ratio.interval.high / ratio.interval.low)
    assert width == pytest.approx(2 * T_95[4] * 2**0.5 * 0.01, rel=1e-3)


def test_one_trial_cannot_be_compared() -> None:
    ratio = unpaired_ratio(of([10.0]), of([20.0, 21.0, 22.0]), 0.95)
    assert ratio is not None
    assert (ratio.interval, ratio.p_value) == (None, None)


def test_exact_values_that_differ_are_told_apart() -> None:
    ratio = unpaired_ratio(of([10.0, 10.0], [10.0, 10.0]), of([20.0, 20.0], [20.0, 20.0]), 0.95)
    assert ratio is not None
    assert ratio.p_value == 0.0


MEASURE = Measure(starts=Count(min=3, max=6), trials=Count(min=3, max=5), target_precision=0.02)


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
    assert enough_instances([[mean] * 3 for mean in means], MEASURE) is enough
