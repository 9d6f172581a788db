import numpy as np
import pytest

from bitbench.analysis.summarize import list_outlier_positions


def test_the_run_that_was_averaged_in_silently() -> None:
    assert list_outlier_positions([4153.26, 1526.74, 3906.77]) == [1]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [100.0],
        [100.0, 1.0],  # of two, neither is the odd one
        [100.0, 100.01, 102.0],  # far in units of the pair's distance, but only 2 %
        [100.0, 115.0, 130.0],  # wide, and evenly so
    ],
)
def test_harmless(values: list[float]) -> None:
    assert list_outlier_positions(values) == []


def test_two_equal_values_and_a_third() -> None:
    assert list_outlier_positions([100.0, 100.0, 60.0]) == [2]


def test_false_flags_are_rare() -> None:
    rng = np.random.default_rng(2)
    for trials in range(3, 11):
        points = 1000
        flagged = sum(
            bool(list_outlier_positions(np.exp(0.02 * rng.normal(size=trials)).tolist()))
            for _ in range(points)
        )
        assert flagged <= points // 1000, f"{flagged} of {points} points with {trials} trials"


def test_real_outliers_are_found() -> None:
    rng = np.random.default_rng(3)
    for trials in range(5, 11):
        found = 0
        for _ in range(200):
            values = np.exp(0.02 * rng.normal(size=trials))
            values[0] *= 0.75
            found += 0 in list_outlier_positions(values.tolist())
        assert found >= 180, f"{found} of 200 with {trials} trials"
