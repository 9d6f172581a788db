import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bitbench.analysis.pairs import Floats
from bitbench.analysis.requests import compute_events_needed, estimate_percentile
from bitbench.analysis.results.estimate import (
    CountedEvent,
    PercentileEstimate,
    Verdict,
    check_against_limit,
    is_estimate_carried,
)
from bitbench.study.metrics import OBJECTIVES
from tests.length import by_length
from tests.support.simulated_requests import (
    P99_POINTS,
    Point,
    assert_covers,
    assert_seldom_met,
    covers,
    estimates,
    true_percentile,
)

STUDIES = by_length(250, 2500)


def even(starts: int, trials: int, requests: int) -> list[list[Floats]]:
    """Every trial has the times 1, 2, …, `requests`."""
    return [[np.arange(1.0, requests + 1)] * trials for _ in range(starts)]


def test_a_median_by_hand() -> None:
    """Two starts of 50 alike: their shares are equal, so the error is that of chance, √(0.25 / 100) = 0.05."""
    found = estimate_percentile(even(2, 1, 50), 50, 0.8)
    assert found is not None
    assert found.value == 25.5
    reach = stats.t.ppf(0.9, 1) * 0.05
    times = np.sort(np.tile(np.arange(1.0, 51), 2))
    assert found.low == times[int(np.floor((0.5 - reach) * 99))]
    assert found.high == times[int(np.ceil((0.5 + reach) * 99))]


def test_starts_that_differ_widen_it() -> None:
    alike = estimate_percentile(even(4, 3, 100), 50, 0.95)
    apart = estimate_percentile(
        [[np.arange(1.0, 101) + 20 * start] * 3 for start in range(4)], 50, 0.95
    )
    assert alike is not None
    assert apart is not None
    assert alike.interval is not None
    assert apart.interval is not None
    assert apart.interval.high - apart.interval.low > 2 * (alike.interval.high - alike.interval.low)


def test_too_few_requests_leave_it_open() -> None:
    found = estimate_percentile(even(3, 3, 8), 99, 0.95)
    assert found is not None
    assert found.high is None
    assert not found.is_carried


def test_one_start_says_nothing_of_the_next() -> None:
    found = estimate_percentile(even(1, 5, 1000), 50, 0.95)
    assert found is not None
    assert (found.low, found.high) == (None, None)


def test_what_is_missing() -> None:
    assert estimate_percentile([], 99, 0.95) is None
    assert estimate_percentile([[], [np.array([np.nan])]], 99, 0.95) is None
    with_gaps = [[*trials, np.array([np.nan])] for trials in even(3, 3, 50)]
    assert estimate_percentile(with_gaps, 50, 0.95) == estimate_percentile(even(3, 3, 50), 50, 0.95)


def test_from_how_many_requests_a_percentile_has_its_name() -> None:
    assert [
        (is_estimate_carried(events, 99), is_estimate_carried(events, 90))
        for events in (99, 100, 999, 1000)
    ] == [
        (False, False),
        (False, True),
        (False, True),
        (True, True),
    ]
    for metric in OBJECTIVES.values():  # the registry says the same
        if metric.percent is not None:
            assert (
                is_estimate_carried(metric.needs, metric.percent),
                is_estimate_carried(metric.needs - 1, metric.percent),
            ) == (True, False)


def test_what_is_shown_of_few_and_of_many() -> None:
    few, more, many = (
        estimate_percentile(even(6, 5, requests), 99, 0.95) for requests in (8, 30, 100)
    )
    assert few is not None
    assert more is not None
    assert many is not None
    assert (few.value, few.note) == (8.0, "slowest of 240")
    assert (more.value, more.note) == (30.0, "of 900")  # it has an upper end already
    assert (many.value, many.note) == (pytest.approx(99.01, abs=0.1), "")
    alone = estimate_percentile(even(1, 1, 8), 50, 0.95)
    assert alone is not None
    assert (alone.value, alone.low, alone.note) == (4.5, None, "of 8")


@pytest.mark.parametrize(("percent", "clusters"), [(99, 3), (99, 6), (90, 3), (50, 2)])
def test_from_how_many_requests_chance_leaves_an_upper_end(percent: float, clusters: int) -> None:
    needed = compute_events_needed(percent, clusters, 0.95)
    share, reach = percent / 100, stats.t.ppf(0.975, clusters - 1)

    def is_closed(events: int) -> bool:
        return bool(share + reach * np.sqrt(share * (1 - share) / events) <= 1 - 1 / (2 * events))

    assert is_closed(needed)
    assert not is_closed(needed - 1)


def test_a_batch_is_one_event() -> None:
    """Five starts of ten batches of 100: 5,000 requests, but 50 fates."""
    starts = even(5, 10, 100)
    batches = estimate_percentile(starts, 95, 0.95, event=CountedEvent.BATCH, shared_by=100)
    single = estimate_percentile(starts, 95, 0.95)
    assert batches is not None
    assert (batches.events, batches.is_carried, batches.high) == (50, False, None)
    assert batches.note == "slowest of 50 batches"
    assert single is not None
    assert (single.events, single.is_carried) == (5000, True)
    assert single.high is not None


def estimate(low: float, high: float | None) -> PercentileEstimate:
    return PercentileEstimate(
        percent=99,
        value=1.0,
        low=low,
        high=high,
        confidence=0.95,
        event=CountedEvent.REQUEST,
        events=2000,
        clusters=3,
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (estimate(0.8, 1.2), Verdict.MET),
        (estimate(0.8, 1.5), Verdict.MET),
        (estimate(0.8, 1.6), Verdict.INCONCLUSIVE),
        (estimate(0.8, None), Verdict.INCONCLUSIVE),
        (estimate(1.6, 1.8), Verdict.MISSED),
        (estimate(1.6, None), Verdict.MISSED),
    ],
)
def test_a_limit_is_met_only_with_an_upper_end(found: PercentileEstimate, verdict: Verdict) -> None:
    assert check_against_limit(found, 1.5) is verdict


@given(
    st.integers(0, 1000), st.integers(2, 5), st.sampled_from([50.0, 90.0, 99.0]), st.floats(0.1, 10)
)
def test_the_interval_holds_the_value_and_follows_the_unit(
    seed: int, starts: int, percent: float, unit: float
) -> None:
    rng = np.random.default_rng(seed)
    times = [[rng.exponential(size=20) for _ in range(2)] for _ in range(starts)]
    found = estimate_percentile(times, percent, 0.95)
    scaled = estimate_percentile(
        [[unit * trial for trial in start] for start in times], percent, 0.95
    )
    assert found is not None
    assert scaled is not None
    assert (found.low or 0.0) <= found.value
    assert found.high is None or found.value <= found.high
    assert scaled.value == pytest.approx(unit * found.value)
    assert scaled.low == (None if found.low is None else pytest.approx(unit * found.low))
    assert (scaled.high is None) is (found.high is None)


@pytest.mark.parametrize("point", P99_POINTS, ids=str)
def test_p99_is_covered(point: Point) -> None:
    assert_covers(point, 99, STUDIES)


@pytest.mark.parametrize("percent", [50, 90])
def test_other_percentiles_are_covered(percent: float) -> None:
    assert_covers(Point(3, 3, 32), percent, STUDIES)
    assert_covers(Point(8, 4, 100), percent, STUDIES)


@pytest.mark.parametrize("point", P99_POINTS, ids=str)
def test_a_missed_p99_is_seldom_met(point: Point) -> None:
    assert_seldom_met(point, STUDIES)


def test_a_p99_of_many_requests_has_an_upper_end() -> None:
    """Else an interval that is always open would cover, too."""
    found = estimates(Point(6, 5, 100), 99, STUDIES)
    assert np.mean([one.high is not None for one in found]) >= 0.9


def test_a_shared_fate_that_is_counted_as_many_is_not_covered() -> None:
    """All 32 requests of a batch have one time: counted as 32 events, the interval is too narrow."""
    rng = np.random.default_rng(1)
    truth = 1.0  # the median of a lognormal
    hits = {32: 0, 1: 0}
    for _ in range(STUDIES):
        batches = [[np.full(32, time) for time in np.exp(rng.normal(0, 0.3, 2))] for _ in range(12)]
        for shared_by in hits:
            found = estimate_percentile(batches, 50, 0.95, shared_by=shared_by)
            assert found is not None
            hits[shared_by] += covers(found, truth)
    assert hits[32] / STUDIES >= 0.94
    assert hits[1] <= hits[32]


def test_the_truth_of_the_simulation() -> None:
    found = estimates(Point(200, 20, 50), 99, 3)
    assert np.mean([one.value for one in found]) == pytest.approx(true_percentile(99), rel=0.03)
