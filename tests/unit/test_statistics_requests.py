"""Single requests: percentiles over all trials of a cell, and the slowest by its name."""

import numpy as np
import pyarrow as pa
import pytest

from bitbench.core.asked.workload import BUILT_IN_WORKLOADS
from bitbench.core.recorded.trial import Outcome
from bitbench.statistics.requests import COLUMNS, MIN_REQUESTS, spread_of_requests, worth_reading
from tests.unit.synthetic import make_plan, make_trial, request_rows

CELL = make_plan(["a"], [BUILT_IN_WORKLOADS["base"]]).cells[0]


def rows(latencies: list[float], failed: int = 0) -> pa.Table:
    """Requests of two tokens, the first at a tenth of the time."""
    made = [{"planned_s": float(i), "chunk_s": [i + one / 10, i + one]} for i, one in enumerate(latencies)]
    made += [{"planned_s": 99.0, "chunk_s": [], "status": "broken", "end_s": 999.0} for _ in range(failed)]
    return request_rows(*made).select(list(COLUMNS))


def test_percentiles_are_over_all_trials_and_failed_requests_do_not_count() -> None:
    latencies = list(np.linspace(1.0, 2.0, 60))
    ttft, latency = spread_of_requests(CELL, [("t1", rows(latencies[:30], failed=3)), ("t2", rows(latencies[30:]))])
    assert (ttft.metric, latency.metric) == ("ttft_s", "latency_s")
    assert latency.requests == 60
    assert latency.p50 == pytest.approx(1.5, abs=1e-5)
    assert latency.p99 == pytest.approx(float(np.percentile(latencies, 99)), abs=1e-5)
    assert ttft.p95 == pytest.approx(latency.p95 / 10, abs=1e-5)
    assert (latency.highest_trial, latency.highest_request) == ("t2", 29)


def test_too_few_requests_have_no_spread() -> None:
    assert spread_of_requests(CELL, [("t1", rows([1.0] * (MIN_REQUESTS - 1)))]) == []
    assert spread_of_requests(CELL, []) == []


def test_only_rows_that_count_are_read() -> None:
    good = make_trial(CELL, 0, 0, requests=MIN_REQUESTS, requests_file="requests/t1.parquet")
    warm = good.model_copy(update={"kind": "warmup"})
    bad = good.model_copy(update={"outcome": Outcome.CRASHED})
    assert worth_reading([warm, good, bad]) == {CELL: [good]}
    assert worth_reading([good.model_copy(update={"requests": 3})]) == {}
