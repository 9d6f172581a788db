"""Sums of request rows: percentiles of sketches within their error, and the same verdict however rows are divided."""

import numpy as np
import pyarrow as pa
import pytest

import bitbench.records.request_sums as request_sums_module
from bitbench.analysis.objectives import judge_objectives
from bitbench.analysis.trial import compute_trial_metrics
from bitbench.records.request_sums import (
    HIGHEST_S,
    LOWEST_S,
    RELATIVE_ERROR,
    RequestSums,
    TimeSketch,
)
from bitbench.study.objective import Objective
from tests.support.synthetic import request_rows

SHARES = (0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0)
OBJECTIVES = (
    Objective(metric="ttft", statistic="p99", limit=0.4),
    Objective(metric="latency", statistic="mean", limit=9),
)


def sketch_of(*parts: np.ndarray, kept: int = 0) -> TimeSketch:
    whole = TimeSketch(kept)
    for part in parts:
        sketch = TimeSketch(kept)
        sketch.add(part)
        whole.merge(sketch)
    return whole


@pytest.mark.parametrize("seed", range(5))
def test_every_percentile_is_within_the_error(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = np.exp(random.normal(-3, 2, size=int(random.choice([7, 300, 5_000]))))
    sketch = sketch_of(values)
    for share in SHARES:
        assert sketch.quantile(share) == pytest.approx(
            np.quantile(values, share), rel=RELATIVE_ERROR * 1.0001
        )
    assert sketch.statistic("mean") == pytest.approx(values.mean())


@pytest.mark.parametrize("kept", [0, 500, 1_000])
def test_merged_sketches_are_one_of_all_values_and_exact_up_to_their_limit(kept: int) -> None:
    values = np.exp(np.random.default_rng(1).normal(-5, 3, size=1_000))
    merged, together = (
        sketch_of(values[:300], values[300:], kept=kept),
        sketch_of(values, kept=kept),
    )
    assert merged.count == together.count == 1_000
    assert merged.is_exact == (kept == 1_000)
    for share in SHARES:
        assert merged.quantile(share) == together.quantile(share)
        assert not merged.is_exact or merged.quantile(share) == np.quantile(values, share)


def test_nothing_has_no_percentile_and_extremes_are_counted_at_the_edge() -> None:
    assert TimeSketch().quantile(0.5) is None
    sketch = sketch_of(np.array([0.0, -1.0, 1e9, np.nan]))
    assert sketch.count == 3
    assert sketch.quantile(0.0) == pytest.approx(LOWEST_S, rel=0.02)
    assert sketch.quantile(1.0) == pytest.approx(HIGHEST_S, rel=0.03)


def many_rows(count: int) -> pa.Table:
    random = np.random.default_rng(4)
    rows = []
    for number, planned in enumerate(np.sort(random.uniform(0, 10, count))):
        first = planned + random.lognormal(-3, 0.5) + 0.02 * planned  # a queue that grows
        chunks = (first + np.cumsum(random.lognormal(-5, 0.3, 4))).tolist()
        rows.append(
            {"request": number, "planned_s": planned, "scheduled_s": planned, "chunk_s": chunks}
        )
    return request_rows(*rows)


def test_requests_of_several_processes_add_up_to_those_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Means, rates, and counts are exact, percentiles where all times are kept, and else within 1 %."""
    table = many_rows(2_000)
    whole = RequestSums.of(table, OBJECTIVES)
    exact = compute_trial_metrics(whole)
    streams = np.arange(table.num_rows) % 4
    parts = [RequestSums.of(table.filter(pa.array(streams == own)), OBJECTIVES) for own in range(4)]
    for part in parts[1:]:
        parts[0].merge(part)
    assert compute_trial_metrics(parts[0]).model_dump() == pytest.approx(exact.model_dump())
    assert not parts[0].is_sketched
    monkeypatch.setattr(request_sums_module, "KEPT", 100)
    monkeypatch.setattr(TimeSketch.__init__, "__defaults__", (100,))
    sketched = RequestSums(OBJECTIVES)
    for begin in range(0, table.num_rows, 300):
        sketched.add(table.slice(begin, 300))
    assert sketched.is_sketched
    assert len(sketched.course) <= 100
    found = compute_trial_metrics(sketched)
    for name, expected in exact:
        error = RELATIVE_ERROR * 1.0001 if "_p" in name else 1e-9
        assert getattr(found, name) == (
            None if expected is None else pytest.approx(expected, rel=error)
        )
    judged, judged_exactly = judge_objectives(sketched), judge_objectives(whole)
    assert judged is not None
    assert judged_exactly is not None
    assert judged.holds is judged_exactly.holds is False
    assert judged.growth == pytest.approx(judged_exactly.growth, rel=0.05)


def test_the_first_failure_and_the_first_wrong_request_are_found_in_any_order() -> None:
    good = {"planned_s": 0.0, "chunk_s": [1.0]}
    late = request_rows({**good, "request": 0, "status": "broken", "error": "second", "end_s": 2.0})
    early = request_rows(
        {**good, "request": 9, "status": "stalled", "error": "first", "end_s": 1.5}
    )
    wrong = request_rows(
        {**good, "request": 5, "output_tokens": 3}, {**good, "request": 7, "output_tokens": 4}
    )
    for tables in ((late, early, wrong), (wrong, early, late)):
        sums = RequestSums.of(tables[0])
        for table in tables[1:]:
            sums.merge(RequestSums.of(table))
        assert sums.first_failure is not None
        assert sums.first_failure["error"] == "first"
        assert (sums.requests, sums.failed) == (4, 2)
        assert sums.wrong_tokens["output"] == (2, 5, 1, 3)
