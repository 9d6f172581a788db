import numpy as np
import pytest

from bitbench.analysis.trial import DEFINITIONS, compute_trial_metrics
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import Memory, TrialMetrics
from bitbench.study.objective import Objective
from tests.support.synthetic import request_rows, request_sums


def test_every_figure_by_hand() -> None:
    metrics = compute_trial_metrics(
        request_sums(
            {"planned_s": 0.0, "sent_s": 0.5, "chunk_s": [1.0, 1.5, 2.0], "end_s": 2.5},
            {
                "planned_s": 1.0,
                "chunk_s": [4.0, 4.1, 4.2, 4.3, 4.4],
                "end_s": 5.0,
                "input_tokens": 30,
            },
        )
    )
    assert metrics.latency_s == pytest.approx((2.5 + 4.0) / 2)  # from planned, not from sent
    assert metrics.ttft_s == pytest.approx((1.0 + 3.0) / 2)
    assert metrics.tpot_s == pytest.approx((0.5 + 0.1) / 2)
    assert metrics.itl_p99_s == pytest.approx(np.percentile([0.5, 0.5, 0.1, 0.1, 0.1, 0.1], 99))
    assert metrics.output_throughput == pytest.approx(8 / 5)
    assert metrics.overall_throughput == pytest.approx(48 / 5)
    assert metrics.request_throughput == pytest.approx(2 / 5)
    assert metrics.input_throughput == pytest.approx(
        40 / 4.0
    )  # waiting from 0 to 1 and from 1 to 4


def test_percentiles_are_over_requests() -> None:
    rows = [
        {"planned_s": 0.0, "chunk_s": [k / 100, k / 100 + k / 1000, k / 100 + 2 * k / 1000]}
        for k in range(1, 201)
    ]
    metrics = compute_trial_metrics(request_sums(*rows))
    assert metrics.ttft_p99_s == pytest.approx(np.percentile(np.arange(1, 201) / 100, 99))
    assert metrics.tpot_p99_s == pytest.approx(np.percentile(np.arange(1, 201) / 1000, 99))


def scheduled(latencies: list[float], each_s: float = 0.5) -> TrialMetrics:
    return compute_trial_metrics(
        request_sums(
            *(
                {
                    "planned_s": k * each_s,
                    "scheduled_s": k * each_s,
                    "chunk_s": [k * each_s + latency],
                }
                for k, latency in enumerate(latencies)
            )
        )
    )


def test_a_server_that_keeps_up_achieves_what_is_offered() -> None:
    metrics = scheduled([3.0] * 9)
    assert metrics.offered_rate == pytest.approx(2.0)
    assert metrics.achieved_rate == pytest.approx(2.0)
    assert metrics.request_throughput == pytest.approx(
        9 / 7
    )  # the makespan also holds the last answer


def test_a_server_that_falls_behind_achieves_less() -> None:
    metrics = scheduled([1.0 + 0.5 * k for k in range(9)])  # one each second
    assert metrics.offered_rate == pytest.approx(2.0)
    assert metrics.achieved_rate == pytest.approx(1.0)


def test_a_closed_loop_offers_no_rate() -> None:
    metrics = compute_trial_metrics(
        request_sums(
            {"planned_s": 0.0, "scheduled_s": 0.0, "chunk_s": [1.0]},
            {"planned_s": 0.0, "scheduled_s": 0.0, "chunk_s": [2.0]},
            {"planned_s": 1.0, "chunk_s": [3.0]},
        )
    )
    assert metrics.offered_rate is None
    assert metrics.achieved_rate is None


def test_turns_that_follow_an_answer_are_not_offered() -> None:
    metrics = compute_trial_metrics(
        request_sums(
            {"planned_s": 0.0, "scheduled_s": 0.0, "chunk_s": [1.0]},
            {"planned_s": 4.0, "scheduled_s": 4.0, "chunk_s": [5.0]},
            {"planned_s": 1.0, "chunk_s": [9.0]},
        )
    )
    assert metrics.offered_rate == metrics.achieved_rate == pytest.approx(0.25)


def test_the_first_token_of_the_answer_is_reported_where_reasoning_came() -> None:
    thinking = {"planned_s": 1.0, "chunk_s": [2.0, 6.0], "first_answer_s": 6.0}
    plain = {"planned_s": 1.0, "chunk_s": [2.0, 6.0], "first_answer_s": 2.0}
    assert compute_trial_metrics(request_sums(thinking, plain)).first_answer_s == pytest.approx(3.0)
    assert compute_trial_metrics(request_sums(thinking, plain)).ttft_s == pytest.approx(1.0)
    assert compute_trial_metrics(request_sums(plain)).first_answer_s is None


def test_waiting_counts_overlaps_once_and_leaves_out_pauses() -> None:
    metrics = compute_trial_metrics(
        request_sums(
            {"planned_s": 0.0, "chunk_s": [4.0, 5.0]},
            {"planned_s": 1.0, "chunk_s": [2.0, 3.0]},  # inside the first
            {"planned_s": 3.0, "chunk_s": [6.0, 7.0]},  # overlaps it
            {"planned_s": 9.0, "chunk_s": [10.0, 11.0]},  # after a pause
        )
    )
    assert metrics.input_throughput == pytest.approx(40 / 7.0)


def test_one_token_has_no_time_per_token_and_no_gap() -> None:
    metrics = compute_trial_metrics(request_sums({"planned_s": 0.0, "chunk_s": [1.0]}))
    assert metrics.tpot_s is None
    assert metrics.itl_p99_s is None
    assert metrics.ttft_s == 1.0


def test_several_tokens_in_a_chunk_do_not_change_tpot() -> None:
    metrics = compute_trial_metrics(
        request_sums({"planned_s": 0.0, "chunk_s": [1.0, 3.0], "output_tokens": 11})
    )
    assert metrics.tpot_s == pytest.approx(0.2)


@pytest.mark.parametrize(
    "status", ["refused", "http_error", "rate_limited", "broken", "stalled", "timeout"]
)
def test_nothing_complete_gives_none_never_zero(status: str) -> None:
    assert (
        compute_trial_metrics(
            request_sums({"planned_s": 0.0, "chunk_s": [1.0, 2.0], "status": status})
        )
        == TrialMetrics()
    )
    assert (
        compute_trial_metrics(RequestSums.of(request_rows({"planned_s": 0.0}).slice(0, 0)))
        == TrialMetrics()
    )


def test_unknown_token_counts_give_no_throughput() -> None:
    metrics = compute_trial_metrics(
        request_sums({"planned_s": 0.0, "chunk_s": [1.0, 2.0], "input_tokens": None})
    )
    assert metrics.overall_throughput is None
    assert metrics.input_throughput is None
    assert metrics.output_throughput == pytest.approx(1.0)


def test_a_stream_without_chunks_between_two_others() -> None:
    metrics = compute_trial_metrics(
        request_sums(
            {"planned_s": 0.0, "chunk_s": [1.0, 1.25]},
            {
                "planned_s": 0.0,
                "chunk_s": None,
                "first_token_s": 1.0,
                "last_token_s": 1.0,
                "end_s": 1.0,
            },
            {"planned_s": 0.0, "chunk_s": [2.0, 2.25]},
        )
    )
    assert metrics.itl_p99_s == pytest.approx(0.25)


def test_every_metric_is_defined() -> None:
    assert DEFINITIONS.keys() == TrialMetrics.model_fields.keys() | Memory.model_fields.keys()


def test_goodput_is_the_rate_of_requests_that_kept_the_objectives() -> None:
    rows = request_rows(
        {"planned_s": 0.0, "chunk_s": [1.0, 2.0]},
        {"planned_s": 0.0, "chunk_s": [3.0, 4.0]},
    )
    assert compute_trial_metrics(RequestSums.of(rows)).goodput is None
    promise = Objective(metric="ttft", statistic="p99", limit=2.0)
    assert compute_trial_metrics(RequestSums.of(rows, [promise])).goodput == pytest.approx(
        0.5 * 2 / 4
    )
