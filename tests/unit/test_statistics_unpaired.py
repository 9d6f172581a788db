import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bitbench.analysis.pairs import LogRatio
from bitbench.analysis.unpaired import Starts, collect_unpaired_ratios
from bitbench.study.plan import Config, Point
from tests.support.simulated_claims import allowed

A, B = (Config(variant="none", engine=name) for name in "ab")
ONE, OTHER, ELSEWHERE = (
    Point(config=A, workload="w"),
    Point(config=B, workload="w"),
    Point(config=A, workload="v"),
)


def test_a_single_point_is_welch() -> None:
    before, after = [0.1, 0.3, 0.2], [0.6, 0.5, 0.9, 0.6]
    found = collect_unpaired_ratios(
        {ONE: [[value] for value in before]}, {ONE: [[value] for value in after]}
    )[ONE]
    expected = stats.ttest_ind(after, before, equal_var=False)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.degrees_of_freedom == pytest.approx(expected.df)
    assert found.ratio(0.95).value == pytest.approx(math.exp(0.65 - 0.2))


def test_other_points_lend() -> None:
    """s² 0.02 on both sides of ONE, 0.08 of the others. OTHER lends 2 degrees of freedom at the 0.05 of its workload,
    ELSEWHERE (0.05 / 0.08)² / 2 of its two at 0.08."""
    narrow, broad = [[0.0], [0.2]], [[0.0], [0.4]]
    study: dict[Point, Starts] = {ONE: narrow, OTHER: broad, ELSEWHERE: broad}
    found = collect_unpaired_ratios(study, study)[ONE]
    elsewhere = (0.05 / 0.08) ** 2
    assert found.degrees_of_freedom == pytest.approx(2 + 2 + elsewhere)
    expected = (2 * 0.05 + elsewhere * 0.08 + 2 * 0.02) / (2 + 2 + elsewhere)
    assert found.standard_error**2 == pytest.approx(expected)


def test_its_own_variance_and_its_trials_are_floors() -> None:
    broad: Starts = [[0.0], [0.4]]
    calm: Starts = [[0.1], [0.1]]
    found = collect_unpaired_ratios({ONE: broad, OTHER: calm}, {ONE: broad, OTHER: calm})[ONE]
    assert found.standard_error**2 == pytest.approx(0.08 / 2 + 0.08 / 2)
    by_trials: Starts = [[0.0, 0.2], [0.0, 0.2]]
    found = collect_unpaired_ratios({ONE: by_trials}, {ONE: by_trials})[ONE]
    assert found.standard_error**2 == pytest.approx(2 * 0.02 / 4)


def test_only_points_with_two_starts_on_both_sides() -> None:
    two: Starts = [[0.1], [0.2]]
    assert set(
        collect_unpaired_ratios(
            {ONE: two, OTHER: [[0.1, 0.2]], ELSEWHERE: two}, {ONE: two, OTHER: two}
        )
    ) == {ONE}
    assert collect_unpaired_ratios({}, {ONE: two}) == {}
    assert collect_unpaired_ratios({ONE: [[], [0.1]]}, {ONE: two}) == {}


def test_equal_figures_have_no_error() -> None:
    same: Starts = [[0.1], [0.1]]
    assert collect_unpaired_ratios({ONE: same}, {ONE: same})[ONE].p_value == 1.0


@given(st.integers(0, 10_000))
def test_the_other_way_round_it_is_the_inverse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = (
        {point: rng.normal(0, 0.1, (3, 2)).tolist() for point in (ONE, OTHER)} for _ in range(2)
    )
    forth, back = (
        collect_unpaired_ratios(before, after)[ONE],
        collect_unpaired_ratios(after, before)[ONE],
    )
    assert forth.log_mean == -back.log_mean
    assert forth.p_value == pytest.approx(back.p_value)


def studies(rng: np.random.Generator, later: float) -> LogRatio:
    """Two studies of eight points, three starts of three trials each; the first point differs by `later`."""
    points = [Point(config=one, workload=str(number)) for one in (A, B) for number in range(4)]

    def study() -> dict[Point, Starts]:
        luck = {
            one: rng.normal(0, 0.05, 3) for one in (A, B)
        }  # of a start, shared by its workloads
        return {
            point: (luck[point.config] + rng.normal(0, 0.05, 3))[:, np.newaxis]
            + rng.normal(0, 0.08, (3, 3))
            for point in points
        }  # type: ignore[return-value]

    before, after = study(), study()
    after[points[0]] = np.asarray(after[points[0]]) + later  # type: ignore[assignment]
    return collect_unpaired_ratios(before, after)[points[0]]


def test_equal_studies_are_seldom_told_apart_and_others_are() -> None:
    rng = np.random.default_rng(1)
    count = 600
    wrong = np.mean([studies(rng, 0.0).p_value < 0.05 for _ in range(count)])
    assert wrong <= allowed(count)
    seen = np.mean([studies(rng, 0.3).p_value < 0.05 for _ in range(count)])
    assert seen >= 0.85
