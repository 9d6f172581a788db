"""The search for the highest rate contains the truth in its interval, and verifies the lower end of it."""

from collections.abc import Callable

import numpy as np
import pytest

from bitbench.analysis.rate_search import (
    GROWTH,
    VERIFICATIONS,
    RateTrial,
    find_next_rate,
    summarize_rate_search,
)
from bitbench.analysis.results.summary import RateAnswer, SearchStop
from bitbench.study.objective import RateTrialKind, SearchLimits
from tests.length import by_length
from tests.support.queue_simulation import SimulatedServer, measure_search_coverage

LIMITS = SearchLimits(start=1.0, lowest=1 / 16, highest=4096.0)
Ask = Callable[[float], bool]


def search(ask: Ask, limits: SearchLimits = LIMITS) -> tuple[RateAnswer, list[RateTrial]]:
    trials: list[RateTrial] = []
    while (wanted := find_next_rate(trials, limits)) is not None:
        requests = limits.count_trial_requests(wanted.rate, wanted.kind)
        is_verifying = wanted.kind is RateTrialKind.VERIFYING
        trials.append(RateTrial(wanted.rate, ask(wanted.rate), requests, is_verifying))
        assert len(trials) <= limits.trials + VERIFICATIONS
    return summarize_rate_search(trials, limits), trials


def server(capacity: float, rng: np.random.Generator, *, noise: float = 0.0) -> Ask:
    def ask(rate: float) -> bool:
        return rate <= capacity * float(np.exp(rng.normal(0.0, noise)))

    return ask


QUEUES = {
    "four slots": (SimulatedServer(4, 0.1), "ttft_p99=200ms"),
    "its own queue": (SimulatedServer(8, 0.67), "ttft_p99=200ms"),
    "its own queue, loose limit": (SimulatedServer(8, 0.67), "ttft_p99=1s"),
}


@pytest.mark.parametrize("queue", QUEUES)
def test_nine_searches_of_ten_contain_the_truth_under_poisson_arrivals(queue: str) -> None:
    found = measure_search_coverage(*QUEUES[queue], by_length(20, 200))
    assert found.covered >= 0.9
    assert abs(found.bias) <= 0.05
    assert found.half_width <= 0.2
    assert found.verified >= 0.95
    assert found.verified_too_much <= 0.1


CAPACITIES = [float(capacity) for capacity in np.geomspace(0.2, 300, 25)]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_steady_server_is_found_within_two_percent(capacity: float) -> None:
    found, trials = search(server(capacity, np.random.default_rng(0)))
    assert found.rate == pytest.approx(capacity, rel=0.02)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= capacity <= found.high
    assert max(trial.rate for trial in trials) <= max(GROWTH * capacity, LIMITS.start)


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
def test_the_interval_of_a_noisy_server_is_honest(noise: float) -> None:
    rng = np.random.default_rng(7)
    capacities = np.exp(rng.uniform(np.log(1), np.log(300), 40))
    covered = 0
    for capacity in capacities:
        found, _ = search(server(capacity, rng, noise=noise))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= capacity <= found.high
    assert covered >= 36


def test_one_wrong_answer_far_below_the_edge_widens_the_interval_or_is_outvoted() -> None:
    """Something else ran on the machine during the second trial, and it failed."""
    asked: list[float] = []

    def ask(rate: float) -> bool:
        asked.append(rate)
        return rate <= 40.0 and len(asked) != 2

    found, _ = search(ask)
    assert found.high is not None
    assert found.high >= 3.9


def test_it_goes_on_from_records_alone() -> None:
    _, trials = search(server(40.0, np.random.default_rng(0)))
    for cut, trial in enumerate(trials):
        wanted = find_next_rate(trials[:cut], LIMITS)
        assert wanted is not None
        assert (wanted.rate, wanted.kind is RateTrialKind.VERIFYING) == (
            trial.rate,
            trial.is_verifying,
        )
        assert summarize_rate_search(trials[:cut], LIMITS).stop is None


def test_it_says_why_it_stopped() -> None:
    highest, trials = search(lambda _: True)
    assert (highest.stop, highest.rate, highest.high) == (SearchStop.HIGHEST, LIMITS.highest, None)
    assert highest.verified == LIMITS.highest
    assert (
        len(trials) == 9
    )  # 1, 4, 16, 64, 256, 1020, 4080, the limit itself, and again to verify it
    lowest, _ = search(lambda _: False)
    assert (lowest.stop, lowest.rate, lowest.high) == (SearchStop.LOWEST, None, LIMITS.lowest)
    assert lowest.verified is None
    few, _ = search(server(40.0, np.random.default_rng(0)), LIMITS.model_copy(update={"trials": 4}))
    assert few.stop is SearchStop.TRIALS
    many, _ = search(
        server(40.0, np.random.default_rng(0)), LIMITS.model_copy(update={"trials": 40})
    )
    assert many.stop is SearchStop.PRECISE
    assert many.high is not None
    assert many.low is not None
    assert many.high - many.low <= 2 * LIMITS.precision * 40.0 * 1.02


def test_a_long_trial_at_the_lower_end_verifies_the_answer() -> None:
    found, trials = search(server(40.0, np.random.default_rng(0)))
    *searched, last = trials
    assert [trial.is_verifying for trial in searched] == [False] * len(searched)
    assert last.is_verifying
    assert last.requests is not None
    assert last.requests >= 3 * LIMITS.needed
    assert (found.verified, found.verified_requests, found.refuted) == (
        last.rate,
        last.requests,
        (),
    )
    assert found.low is not None
    assert found.low * 0.99 < last.rate <= found.low


def test_an_answer_that_is_refuted_moves_down_until_one_is_verified() -> None:
    """A server that slows down in long trials: short ones hold up to 40, long ones up to 32."""
    limits = LIMITS.model_copy(update={"needed": 1000})
    trials: list[RateTrial] = []
    while (wanted := find_next_rate(trials, limits)) is not None:
        is_verifying = wanted.kind is RateTrialKind.VERIFYING
        edge = 34.0 if is_verifying else 40.0
        trials.append(RateTrial(wanted.rate, wanted.rate <= edge, None, is_verifying))
    found = summarize_rate_search(trials, limits)
    assert found.refuted
    assert found.verified is not None
    assert found.verified < min(found.refuted)
    assert found.verified <= 34.0


def test_an_answer_that_no_long_trial_meets_is_not_verified() -> None:
    trials: list[RateTrial] = []
    while (wanted := find_next_rate(trials, LIMITS)) is not None:
        is_verifying = wanted.kind is RateTrialKind.VERIFYING
        trials.append(
            RateTrial(wanted.rate, wanted.rate <= 40.0 and not is_verifying, None, is_verifying)
        )
    found = summarize_rate_search(trials, LIMITS)
    assert found.verified is None
    assert len(found.refuted) == VERIFICATIONS
    assert list(found.refuted) == sorted(found.refuted, reverse=True)


def test_trials_are_short_until_both_sides_are_known_and_then_long_enough_for_the_percentile() -> (
    None
):
    _, trials = search(server(40.0, np.random.default_rng(0)))
    first_failure = next(place for place, trial in enumerate(trials) if not trial.holds)
    for trial in trials[: first_failure + 1]:
        assert trial.requests == LIMITS.count_trial_requests(trial.rate, RateTrialKind.SHORT)
    for trial in trials[first_failure + 1 :]:
        assert trial.requests is not None
        assert trial.requests >= LIMITS.needed + 10 * trial.rate - 1


def test_a_search_that_is_continued_verifies_its_new_answer() -> None:
    narrow = LIMITS.model_copy(update={"highest": 4.0})
    found, trials = search(lambda _: True, narrow)
    assert (found.stop, found.verified) == (SearchStop.HIGHEST, 4.0)
    wide = LIMITS.model_copy(update={"highest": 16.0})
    assert summarize_rate_search(trials, wide).verified is None
    while (wanted := find_next_rate(trials, wide)) is not None:
        trials.append(RateTrial(wanted.rate, True, None, wanted.kind is RateTrialKind.VERIFYING))
    assert summarize_rate_search(trials, wide).verified == 16.0


def test_short_trials_say_less() -> None:
    def width(requests: int) -> float:
        trials = [RateTrial(10.0, True, requests), RateTrial(12.0, False, requests)] * 4
        found = summarize_rate_search(trials, LIMITS)
        assert found.low is not None
        assert found.high is not None
        return found.high / found.low

    assert width(50) > 1.2 * width(1000)
    assert width(4000) == width(1000)
