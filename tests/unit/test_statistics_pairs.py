import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from bitbench.analysis.pairs import (
    LENDING_LIMIT,
    LogSpeeds,
    PairTable,
    TrialKey,
    collect_pair_tables,
    estimate_pooled_freedom,
    make_log_speeds,
)
from bitbench.study.plan import Config

A, B, C, D = (Config(variant="none", engine=name) for name in "abcd")
NAN = math.nan


def table(
    values: object, configs: Sequence[Config] = (A, B, C, D), baseline: Config | None = None
) -> PairTable:
    array = np.asarray(values, dtype=np.float64)
    return collect_pair_tables({"w": LogSpeeds(tuple(configs[: len(array)]), array)}, baseline)["w"]


def test_two_configs_by_hand() -> None:
    """Differences by block 0.1, 0.3, 0.2: mean 0.2, variance 0.01; nothing is lent."""
    (pair,) = table([[[0.1], [0.5], [0.3]], [[0.0], [0.2], [0.1]]]).pairs
    assert pair.log_mean == pytest.approx(0.2)
    assert pair.standard_error == pytest.approx(math.sqrt(0.01 / 3))
    assert (pair.degrees_of_freedom, pair.blocks) == (2, 3)
    assert pair.p_value == pytest.approx(stats.ttest_1samp([0.1, 0.3, 0.2], 0).pvalue)
    ratio = pair.ratio(0.95)
    half = stats.t.ppf(0.975, 2) * math.sqrt(0.01 / 3)
    assert ratio.value == pytest.approx(math.exp(0.2))
    assert ratio.interval is not None
    assert ratio.interval.low == pytest.approx(math.exp(0.2 - half))
    assert ratio.interval.high == pytest.approx(math.exp(0.2 + half))


def test_a_third_config_lends() -> None:
    """Of A − B: s² 0.02 in two blocks; A − C 0.08, B − C 0.02; pooled 0.04 with one degree of freedom."""
    made = table([[[0.0], [0.2]], [[0.0], [0.0]], [[0.0], [-0.2]]])
    pair = made.between(A, B)
    assert pair is not None
    assert pair.degrees_of_freedom == 2
    assert pair.standard_error**2 == pytest.approx((2 * 0.04 + 1 * 0.02) / 3 / 2)
    noisy = made.between(A, C)
    assert noisy is not None
    assert noisy.standard_error**2 == pytest.approx(0.08 / 2)  # its own variance is a floor


def test_rounds_are_a_floor() -> None:
    """Both blocks differ by 0.1 in the mean, but their rounds by 0 and 0.2: variance 0.02 / 2 rounds / 2 blocks."""
    (pair,) = table([[[0.0, 0.2], [0.0, 0.2]], [[0.0, 0.0], [0.0, 0.0]]]).pairs
    assert pair.standard_error**2 == pytest.approx(0.02 / 2 / 2)


def test_equal_figures_have_no_error() -> None:
    (pair,) = table(np.zeros((2, 2, 1))).pairs
    assert (pair.p_value, pair.standard_error) == (1.0, 0.0)
    (pair,) = table([[[1.0], [1.0]], [[0.0], [0.0]]]).pairs
    assert pair.p_value == 0.0


def test_only_common_rounds_count() -> None:
    made = table([[[0.1, 5.0], [0.3, NAN], [9.0, 9.0]], [[0.0, NAN], [0.0, 7.0], [NAN, NAN]]])
    (pair,) = made.pairs
    assert (pair.blocks, pair.log_mean) == (2, pytest.approx(0.2))


def test_one_common_block_is_no_pair() -> None:
    made = table([[[1.0], [2.0]], [[1.0], [NAN]], [[NAN], [1.0]]])
    assert made.pairs == ()
    assert made.configs == (A, B, C)
    assert made.between(A, B) is None


def test_one_config_and_none() -> None:
    assert table(np.zeros((1, 3, 2))).pairs == ()
    assert collect_pair_tables({}) == {}
    assert collect_pair_tables({"w": make_log_speeds({}, higher_is_better=True)})["w"].pairs == ()


Grid = npt.NDArray[np.float64]
VALUES = st.floats(-2, 2, allow_subnormal=False).map(lambda value: round(value, 3))
GRIDS = st.tuples(st.integers(2, 4), st.integers(2, 4), st.integers(1, 3)).flatmap(
    lambda shape: arrays(
        np.float64, shape, elements=st.one_of(VALUES, VALUES, VALUES, st.just(NAN))
    )
)
WHOLE = st.tuples(st.integers(2, 4), st.integers(2, 4), st.integers(1, 3)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=VALUES)
)


def recomputed(values: Grid, first: int, second: int) -> tuple[float, float, float]:
    """Mean, standard error and degrees of freedom of one pair of a full grid, from the formulas and one at a time."""
    configs, blocks, rounds = values.shape
    every = {
        (i, j): [float(np.mean(values[i, block] - values[j, block])) for block in range(blocks)]
        for i, j in combinations(range(configs), 2)
    }
    pooled = float(np.mean([np.var(found, ddof=1) for found in every.values()]))
    own = every[first, second]
    variance = float(np.var(own, ddof=1))
    freedom = min((configs - 1) * (blocks - 1), blocks - 1 + LENDING_LIMIT)
    moderated = (freedom * pooled + (blocks - 1) * variance) / (freedom + blocks - 1)
    by_rounds = [np.var(values[first, block] - values[second, block], ddof=1) / rounds for block in range(blocks)] \
        if rounds > 1 else [0.0]  # fmt: skip
    squared = max(moderated / blocks, variance / blocks, float(np.mean(by_rounds)) / blocks)
    return float(np.mean(own)), math.sqrt(squared), freedom


@given(WHOLE)
def test_the_formulas_one_pair_at_a_time(values: Grid) -> None:
    made = table(values)
    for i, j in combinations(range(len(values)), 2):
        pair = made.between((A, B, C, D)[i], (A, B, C, D)[j])
        assert pair is not None
        found = (pair.log_mean, pair.standard_error, pair.degrees_of_freedom)
        assert found == pytest.approx(recomputed(values, i, j), abs=1e-9)


def assert_same(one: PairTable, other: PairTable) -> None:
    assert [(pair.first, pair.second, pair.blocks) for pair in one.pairs] == [
        (pair.first, pair.second, pair.blocks) for pair in other.pairs
    ]
    for mine, its in zip(one.pairs, other.pairs, strict=True):
        assert mine.log_mean == pytest.approx(its.log_mean, abs=1e-9)
        assert mine.standard_error == pytest.approx(its.standard_error, abs=1e-7)
        assert mine.degrees_of_freedom == its.degrees_of_freedom


@given(GRIDS)
def test_a_shift_of_a_block_or_of_a_round_changes_nothing(values: Grid) -> None:
    shift = np.arange(values.shape[1] * values.shape[2]).reshape(values.shape[1:])
    assert_same(table(values), table(values + shift))


@given(GRIDS, st.floats(-3, 3))
def test_a_faster_config_moves_its_ratios_and_no_error(values: Grid, by: float) -> None:
    moved = values.copy()
    moved[0] += by
    for before, after in zip(table(values).pairs, table(moved).pairs, strict=True):
        assert after.log_mean == pytest.approx(
            before.log_mean + (by if before.first == A else 0), abs=1e-9
        )
        assert after.standard_error == pytest.approx(before.standard_error, abs=1e-7)


@given(GRIDS)
def test_turned_around_it_is_the_same_answer(values: Grid) -> None:
    made = table(values)
    back = table(values[::-1], (A, B, C, D)[: len(values)][::-1])
    for pair in made.pairs:
        other = back.between(pair.first, pair.second)
        turned = made.between(pair.second, pair.first)
        assert other is not None
        assert turned is not None
        assert other.log_mean == pytest.approx(pair.log_mean, abs=1e-9)
        assert turned.log_mean == -pair.log_mean
        assert turned.p_value == pytest.approx(pair.p_value)


@given(GRIDS)
def test_no_pair_is_more_exact_than_its_own_blocks(values: Grid) -> None:
    for pair in table(values).pairs:
        i, j = (A, B, C, D).index(pair.first), (A, B, C, D).index(pair.second)
        blocks = [
            row[np.isfinite(row)].mean() for row in values[i] - values[j] if np.isfinite(row).any()
        ]
        assert pair.blocks == len(blocks)
        assert pair.standard_error >= math.sqrt(np.var(blocks, ddof=1) / len(blocks)) - 1e-9
        assert pair.blocks - 1 <= pair.degrees_of_freedom <= pair.blocks - 1 + LENDING_LIMIT


@given(st.integers(2, 9), st.integers(2, 9))
def test_what_is_lent_in_a_full_study(configs: int, blocks: int) -> None:
    names = tuple(Config(variant="none", engine=str(number)) for number in range(configs))
    values = np.random.default_rng(1).normal(size=(configs, blocks, 2))
    expected = min(LENDING_LIMIT, (configs - 2) * (blocks - 1)) + blocks - 1
    assert {pair.degrees_of_freedom for pair in table(values, names).pairs} == {expected}


@given(st.integers(2, 9), st.integers(3, 9))
def test_a_ratio_to_the_baseline_has_the_freedom_of_a_sum_of_two_variances(
    configs: int, blocks: int
) -> None:
    """That of the baseline, from its own blocks, and that of the others."""
    names = tuple(Config(variant="none", engine=str(number)) for number in range(configs))
    values = np.random.default_rng(1).normal(size=(configs, blocks, 1))
    others = values[1:, :, 0]
    centred = others - others.mean(0)
    own = float(np.var(values[0, :, 0] - others.mean(0), ddof=1))
    rest = (
        float(np.sum((centred - centred.mean(1, keepdims=True)) ** 2))
        / (configs - 1)
        / (blocks - 1)
    )
    parts = own**2 / (blocks - 1)
    if configs > 2:
        parts += rest**2 / ((configs - 2) * (blocks - 1))
    expected = min((own + rest) ** 2 / parts, blocks - 1 + LENDING_LIMIT)
    made = table(values, names, baseline=names[0])
    for other in names[1:]:
        pair = made.between(other, names[0])
        assert pair is not None
        assert pair.degrees_of_freedom == pytest.approx(max(expected, blocks - 1))


def test_a_noisy_baseline_is_lent_nothing() -> None:
    names = tuple(Config(variant="none", engine=str(number)) for number in range(8))
    values = np.random.default_rng(1).normal(size=(8, 3, 1))
    values[0] *= 1000
    made = table(values, names, baseline=names[0])
    pairs = [made.between(other, names[0]) for other in names[1:]]
    assert {round(pair.degrees_of_freedom, 2) for pair in pairs if pair} == {2.0}
    assert estimate_pooled_freedom(8, 3) > 3


def test_workloads_lend_nothing_to_each_other() -> None:
    """They share the starts, and the luck of these."""
    values = np.random.default_rng(1).normal(size=(3, 3, 2))
    alone = table(values, baseline=A)
    study = {str(number): LogSpeeds((A, B, C), values + number) for number in range(4)}
    for made in collect_pair_tables(study, A).values():
        assert_same(made, alone)


def test_who_left_early_lends_only_what_was_seen_of_it() -> None:
    """Two of three go on for eight blocks. The third, with two, adds one degree of freedom to their seven."""
    values = np.random.default_rng(1).normal(size=(3, 8, 2))
    values[2, 2:] = NAN
    made = table(values)
    freedom = {(pair.first, pair.second): pair.degrees_of_freedom for pair in made.pairs}
    assert freedom == {(A, B): 8, (A, C): 1 + LENDING_LIMIT, (B, C): 1 + LENDING_LIMIT}


def test_those_that_never_met_in_rounds_have_ratios_to_the_baseline_alone() -> None:
    """B meets A in round 0, C meets A in round 1, in each of three blocks."""
    values = [
        [[1.0, 2.0], [1.0, 4.0], [3.0, 0.0]],
        [[1.5, NAN], [1.4, NAN], [3.6, NAN]],
        [[NAN, 2.1], [NAN, 4.4], [NAN, 0.1]],
    ]
    made = table(values, baseline=A)
    assert made.between(B, C) is None
    pair = made.between(B, A)
    assert pair is not None
    assert pair.log_mean == pytest.approx(0.5)


def test_figures_by_turn() -> None:
    figures = {
        TrialKey(A, 0, 0): 100.0,
        TrialKey(A, 4, 0): 50.0,
        TrialKey(B, 0, 0): 10.0,
        TrialKey(B, 4, 1): None,
        TrialKey(B, 4, 0): 0.0,
    }
    speeds = make_log_speeds(figures, higher_is_better=False)
    assert speeds.configs == (A, B)
    expected = [[[-math.log(100), NAN], [-math.log(50), NAN]], [[-math.log(10), NAN], [NAN, NAN]]]
    np.testing.assert_allclose(speeds.values, expected)


@given(WHOLE, st.floats(0.01, 100))
def test_the_unit_of_the_figures_does_not_matter(values: Grid, unit: float) -> None:
    turns = {
        TrialKey((A, B, C, D)[i], block, round_): float(np.exp(value))
        for (i, block, round_), value in np.ndenumerate(values)
    }
    scaled = {turn: unit * figure for turn, figure in turns.items()}
    made = collect_pair_tables({"w": make_log_speeds(turns, higher_is_better=True)})["w"]
    assert_same(
        made, collect_pair_tables({"w": make_log_speeds(scaled, higher_is_better=True)})["w"]
    )
