"""Open loops through the whole chain: what was planned is what was sent, and rows say so."""

from pathlib import Path

import pyarrow as pa
import pytest

from bitbench.analysis.trial import compute_trial_metrics
from bitbench.records.folder import StudyFolder
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import TrialRecord
from tests.chain.conftest import run_study_file

STUDY = """
name: open-loops
engines:
  - {engine: null, name: one, args: {ttft: 100ms, tpot: 2ms}}
  - {engine: null, name: other, args: {ttft: 150ms, tpot: 2ms}}
workloads:
  - name: poisson
    input_tokens: {min: 8, max: 64}
    output_tokens: 4
    arrival: {kind: poisson, rate: 40}
    requests: 60
  - name: replay
    input_tokens: 400
    output_tokens: 9
    arrival: {kind: trace, file: trace.jsonl, speed: 10}
    duration: 1s
  - name: talk
    input_tokens: 16
    output_tokens: 4
    arrival: {kind: constant, rate: 20}
    requests: 24
    conversation: {turns: 3, think: 150ms}
measure: {starts: 1, trials: 1, metric: ttft}
"""
TRACE = """{"timestamp": 100000, "input_length": 472, "output_length": 18}
{"timestamp": 103000, "input_length": 10, "output_length": 5}
{"timestamp": 111000, "input_length": 20, "output_length": 5}
"""


def rows_of(folder: StudyFolder, workload: str) -> list[pa.Table]:
    """Those of the first measured trial of each engine; also one in which a busy machine made the client late."""
    first: dict[str, TrialRecord] = {}
    for trial in folder.trials():
        if trial.point.workload == workload and trial.kind == "measured":
            first.setdefault(trial.point.config.engine, trial)
    assert set(first) == {"one", "other"}
    return [folder.requests_of(trial).sort_by("request") for trial in first.values()]


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    (tmp_path / "trace.jsonl").write_text(TRACE)
    return run_study_file(STUDY, tmp_path)


def test_what_was_planned_was_sent(folder: StudyFolder) -> None:
    one, other = rows_of(folder, "poisson")
    assert set(one["status"].to_pylist()) == {"ok"}
    assert one["scheduled_s"].to_pylist() == pytest.approx(
        other["scheduled_s"].to_pylist(), abs=1e-6
    )
    assert (
        one["asked_input_tokens"].to_pylist()
        == one["input_tokens"].to_pylist()
        == other["input_tokens"].to_pylist()
    )
    metrics = compute_trial_metrics(RequestSums.of(one))
    assert metrics.offered_rate == pytest.approx(40, rel=0.5)
    assert metrics.achieved_rate == pytest.approx(
        metrics.offered_rate, rel=0.2
    )  # a stall of 200 ms at its end is 13 %

    one, _ = rows_of(folder, "replay")
    assert one["scheduled_s"].to_pylist() == pytest.approx(
        [0.0, 0.3], abs=1e-6
    )  # the third comes after the duration
    assert one["input_tokens"].to_pylist() == [400, 10]
    assert one["output_tokens"].to_pylist() == [9, 5]

    one, _ = rows_of(folder, "talk")
    assert one["input_tokens"].to_pylist() == 8 * [16] + 8 * [36] + 8 * [56]
    planned, end = one["planned_s"].to_pylist(), one["end_s"].to_pylist()
    for conversation in range(8):
        assert planned[8 + conversation] == pytest.approx(end[conversation] + 0.15, abs=1e-6)

    report = (folder.report / "report.md").read_text()
    assert "Poisson arrivals at 40 requests/s" in report
    assert "replay" in report
