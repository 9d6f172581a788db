"""The search finds a known edge within 3 % in at most 12 trials, and knows how sure it is."""

from collections.abc import Callable

import numpy as np
import pytest

from bitbench.analysis.rate_search import GROWTH, RateTrial, next_rate, rate_search_answer
from bitbench.analysis.results.summary import RateAnswer, SearchStop
from bitbench.study.objective import SearchLimits

LIMITS = SearchLimits(start=1.0, lowest=1 / 16, highest=4096.0)


def search(ask: Callable[[float], RateTrial], limits: SearchLimits = LIMITS) -> tuple[RateAnswer, list[RateTrial]]:
    trials: list[RateTrial] = []
    while (rate := next_rate(trials, limits)) is not None:
        trials.append(ask(rate))
        assert len(trials) <= limits.trials
    return rate_search_answer(trials, limits), trials


def server(
    capacity: float, rng: np.random.Generator, *, noise: float = 0.0, lapses: float = 0.0
) -> Callable[[float], RateTrial]:
    def ask(rate: float) -> RateTrial:
        edge = capacity * float(np.exp(rng.normal(0.0, noise)))
        holds = rate <= edge and rng.random() >= lapses
        return RateTrial(rate, holds, min(rate, capacity))

    return ask


CAPACITIES = [float(capacity) for capacity in np.geomspace(0.2, 300, 25)]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_steady_server_is_found_within_one_percent(capacity: float) -> None:
    found, trials = search(server(capacity, np.random.default_rng(0)))
    assert found.rate == pytest.approx(capacity, rel=0.01)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= capacity <= found.high
    assert max(trial.rate for trial in trials) <= max(GROWTH * capacity, LIMITS.start)


def test_a_noisy_server_is_found_and_the_interval_is_honest() -> None:
    rng = np.random.default_rng(7)
    found = [
        (capacity, search(server(capacity, rng, noise=0.01))[0])
        for capacity in np.exp(rng.uniform(np.log(1), np.log(300), 40))
    ]
    close = [abs((one.rate or 0.0) / capacity - 1) <= 0.03 for capacity, one in found]
    covered = [(one.low or 0.0) <= capacity <= (one.high or np.inf) for capacity, one in found]
    assert sum(close) >= 39
    assert sum(covered) >= 37
    assert sum(one.stop is SearchStop.PRECISE for _, one in found) >= 20


def test_one_wrong_answer_far_below_the_edge_widens_the_interval_or_is_outvoted() -> None:
    """Something else ran on the machine during the second trial, and it failed."""
    steady = server(40.0, np.random.default_rng(0))
    asked: list[float] = []

    def ask(rate: float) -> RateTrial:
        asked.append(rate)
        return RateTrial(rate, False, rate) if len(asked) == 2 else steady(rate)

    found, _ = search(ask)
    assert found.high is not None
    assert found.high >= 3.9


def test_it_goes_on_from_records_alone() -> None:
    ask = server(40.0, np.random.default_rng(0))
    _, trials = search(ask)
    for cut in range(len(trials)):
        assert next_rate(trials[:cut], LIMITS) == trials[cut].rate
    assert rate_search_answer(trials[:3], LIMITS).stop is None


def test_it_says_why_it_stopped() -> None:
    def always(holds: bool) -> Callable[[float], RateTrial]:
        return lambda rate: RateTrial(rate, holds, None)

    highest, trials = search(always(True))
    assert (highest.stop, highest.rate, highest.high) == (SearchStop.HIGHEST, LIMITS.highest, None)
    assert len(trials) == 8  # 1, 4, 16, 64, 256, 1020, 4080 and the limit itself
    lowest, _ = search(always(False))
    assert (lowest.stop, lowest.rate, lowest.high) == (SearchStop.LOWEST, None, LIMITS.lowest)
    few, _ = search(server(40.0, np.random.default_rng(0)), LIMITS.model_copy(update={"trials": 4}))
    assert few.stop is SearchStop.TRIALS
    exact, _ = search(server(40.0, np.random.default_rng(0)))
    assert exact.stop is SearchStop.PRECISE


def test_a_server_that_slows_down_before_it_is_full_is_found_too() -> None:
    """What it serves in overload is twice the rate that holds: the hint is wrong."""
    found, _ = search(lambda rate: RateTrial(rate, rate <= 20.0, min(rate, 40.0)))
    assert found.rate == pytest.approx(20.0, rel=0.03)
