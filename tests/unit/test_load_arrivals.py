"""Arrivals have the distribution that was asked for, and follow from the seed alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bitbench.loadgen.requests import Times, open_loop_times
from bitbench.study.base import Json
from bitbench.study.workload import Workload

SEEDS = [(seed, 7) for seed in range(5)]


def times_of(arrival: Json, seed: tuple[int, ...] = (0,), **count: Json) -> Times:
    workload = Workload.model_validate(
        {"name": "w", "input_tokens": 4, "output_tokens": 2, "arrival": arrival, **count}
    )
    return open_loop_times(workload, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_poisson_gaps_are_exponential(seed: tuple[int, ...]) -> None:
    gaps = np.diff(times_of({"kind": "poisson", "rate": 500}, seed, requests=15_000))
    assert stats.kstest(gaps, stats.expon(scale=1 / 500).cdf).pvalue > 0.001
    assert (
        stats.kstest(gaps, stats.expon(scale=1 / 450).cdf).pvalue < 0.001
    )  # the test would see another rate
    assert (
        abs(stats.pearsonr(gaps[1:], gaps[:-1]).statistic) < 0.04
    )  # four standard errors: gaps are independent


def test_a_constant_rate_is_even() -> None:
    assert times_of({"kind": "constant", "rate": 4}, duration="2s").tolist() == [
        0.25 * k for k in range(8)
    ]


ARRIVALS: list[Json] = [
    {"kind": "constant", "rate": 3},
    {"kind": "poisson", "rate": 3},
]


@settings(max_examples=60, deadline=None)
@given(
    arrival=st.sampled_from(ARRIVALS),
    seed=st.tuples(st.integers(0, 2**32), st.integers(0, 9)),
    count=st.integers(1, 200),
)
def test_a_plan_follows_from_its_seed(arrival: Json, seed: tuple[int, ...], count: int) -> None:
    times = times_of(arrival, seed, requests=count)
    assert times.tolist() == times_of(arrival, seed, requests=count).tolist()
    assert times.size == count
    assert times[0] == 0
    assert np.all(np.diff(times) >= 0)
    assert np.all(np.isfinite(times))


def test_another_seed_gives_other_times() -> None:
    poisson = {"kind": "poisson", "rate": 3}
    assert (
        times_of(poisson, (1,), requests=9).tolist() != times_of(poisson, (2,), requests=9).tolist()
    )
