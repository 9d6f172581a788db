"""Single requests of a point: percentiles over all trials."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from bitbench.analysis.requests import (
    COLUMNS,
    PointRequests,
    estimate_tails,
    pool_requests,
)
from bitbench.analysis.results.estimate import CountedEvent, PercentileEstimate
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.study.workload import BUILT_IN_WORKLOADS, Workload
from bitbench.util.errors import RowsNotKeptError
from tests.support.synthetic import make_plan, make_records, make_trial, request_rows

BATCH = BUILT_IN_WORKLOADS["base"]
PLAN = make_plan(["a"], [BATCH])
POINT = PLAN.points[0]


def rows(latencies: Sequence[float], failed: int = 0) -> pa.Table:
    """Requests of three tokens, the first at a tenth of the time."""
    made = [
        {"planned_s": float(i), "chunk_s": [i + one / 10, i + one / 2, i + one]}
        for i, one in enumerate(latencies)
    ]
    made += [
        {"planned_s": 99.0, "chunk_s": [], "status": "broken", "end_s": 999.0}
        for _ in range(failed)
    ]
    return request_rows(*made)


def read(tables: Sequence[pa.Table | None], **fields: object) -> PointRequests:
    """Of one trial per start; None: its rows were not kept."""
    trials = [
        make_trial(
            POINT, number, 0, id=f"t{number}", requests_file=f"requests/t{number}.parquet", **fields
        )
        for number, _ in enumerate(tables)
    ]

    def requests_of(trial: TrialRecord, columns: Sequence[str] | None) -> pa.Table:
        table = tables[trial.block]
        if table is None:
            raise RowsNotKeptError("gone")
        return table.select(list(columns or table.column_names))

    return pool_requests(make_records(PLAN, trials, requests_of=requests_of), trials)


def test_only_rows_that_count_and_exist_are_read() -> None:
    table = rows([1.0])
    assert read([table], kind="warmup").trials == []
    assert read([table], outcome=Outcome.CRASHED).trials == []
    assert [trial.id for trial in read([table, None, table]).trials] == ["t0", "t2"]
    assert set(COLUMNS) < set(table.column_names)


def found(workload: Workload, *, was_running: bool = False) -> dict[str, PercentileEstimate]:
    requests = read([rows(list(np.linspace(1.0, 2.0, 64))) for _ in range(4)])
    return estimate_tails(requests, workload, 0.95, was_running=was_running)


def test_every_percentile_that_a_service_can_promise_is_there() -> None:
    closed = Workload.model_validate({**BATCH.model_dump(), "arrival": "closed_loop"})
    made = found(closed)
    assert {"ttft_p50_s", "ttft_p99_s", "tpot_p90_s", "latency_p95_s", "itl_p99_s"} <= set(made)
    assert made["latency_p90_s"].value == pytest.approx(1.9, abs=0.02)
    assert made["ttft_p99_s"].value == pytest.approx(made["latency_p99_s"].value / 10)
    assert (made["ttft_p99_s"].event, made["ttft_p99_s"].events) == (CountedEvent.REQUEST, 256)
    assert (made["itl_p99_s"].event, made["itl_p99_s"].events) == (CountedEvent.GAP, 512)


def test_a_batch_is_one_event_of_each_time() -> None:
    made = found(BATCH)  # 32 at once, so these trials are two batches each
    assert {
        (made[name].event, made[name].events)
        for name in ("ttft_p99_s", "tpot_p99_s", "latency_p99_s")
    } == {(CountedEvent.BATCH, 8)}
    assert made["itl_p99_s"].events == 16


def test_starts_are_clusters_and_trials_of_a_server_that_was_running() -> None:
    requests = read([rows([1.0, 2.0]) for _ in range(3)], instance_id="i1")
    by_start, by_trial = (
        estimate_tails(requests, BATCH, 0.95, was_running=one)["ttft_p50_s"]
        for one in (False, True)
    )
    assert (by_start.clusters, by_trial.clusters) == (1, 3)
