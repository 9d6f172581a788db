"""The noise of a machine is measured once an hour, and kept in bitbench's home."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bitbench.measure import runner
from bitbench.measure.machine import noise
from bitbench.measure.machine.noise import keep_noise, kept_noise
from bitbench.measure.offers import LogObserver
from bitbench.measure.workplace import Workplace
from bitbench.records.folder import StudyFolder
from bitbench.records.lock import HostFacts, HostNoise, Lock
from bitbench.reports.document.markdown import markdown
from bitbench.reports.study import study_document
from bitbench.study.study_file import parse_study
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.unit.synthetic import make_plan, summarize

HOST = HostFacts(cpu_model="x", threads=2)
STUDY = """
bitbench: 1
name: short
engines: [null]
workloads: [{name: one, concurrency: 1, input_tokens: 8, output_tokens: 2}]
measure: {starts: 1, trials: 1}
"""


def noise_since(ago: timedelta) -> HostNoise:
    measured_at = (datetime.now(UTC) - ago).isoformat()
    return HostNoise(
        measured_at=measured_at,
        repetitions=3,
        compute_spread=0.1,
        compute_worst=0.2,
        memory_spread=0.3,
        memory_worst=0.4,
    )


RECENT = noise_since(timedelta(minutes=1))


def test_it_is_kept_for_an_hour(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert kept_noise(home, HOST) is None
    measured = noise_since(timedelta(minutes=50))
    keep_noise(home, HOST, measured)
    assert kept_noise(home, HOST) == measured
    for ago in (timedelta(minutes=61), timedelta(minutes=-5)):  # the latter: the clock was set
        keep_noise(home, HOST, noise_since(ago))
        assert kept_noise(home, HOST) is None


def test_that_of_another_machine_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_noise(tmp_path, HOST, RECENT)
    assert kept_noise(tmp_path, HOST.model_copy(update={"threads": 64})) is None
    (tmp_path / "boot_id").write_text("another start\n")
    monkeypatch.setattr(noise, "BOOT_ID", tmp_path / "boot_id")
    assert kept_noise(tmp_path, HOST) is None


def test_that_of_another_account_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_noise(tmp_path, HOST, RECENT)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert kept_noise(tmp_path, HOST) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"noise": {}}', "x" * 10**6, "[" * 10**5])
def test_a_damaged_file_is_passed_over_and_replaced(content: str, tmp_path: Path) -> None:
    (tmp_path / noise.FILE).write_text(content)
    assert kept_noise(tmp_path, HOST) is None
    keep_noise(tmp_path, HOST, RECENT)
    assert kept_noise(tmp_path, HOST) == RECENT


@pytest.mark.parametrize("wrong", [None, "yesterday", "2026-11-02T10:00:00"])
def test_a_time_that_says_nothing_is_passed_over(wrong: str | None, tmp_path: Path) -> None:
    """The last one has no zone."""
    keep_noise(tmp_path, HOST, RECENT)
    text = json.loads((tmp_path / noise.FILE).read_text())
    text["noise"]["measured_at"] = wrong
    (tmp_path / noise.FILE).write_text(json.dumps(text))
    assert kept_noise(tmp_path, HOST) is None


def test_what_is_no_file_keeps_none_and_stops_no_study(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / noise.FILE)
    keep_noise(tmp_path, HOST, RECENT)
    assert kept_noise(tmp_path, HOST) is None


def test_two_studies_of_an_hour_measure_it_once_and_say_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[HostNoise] = []

    def measure() -> HostNoise:
        measured.append(noise_since(timedelta(0)))
        return measured[-1]

    monkeypatch.setattr(runner, "measure_noise", measure)
    study, home = parse_study(STUDY, name="study"), tmp_path / "home"
    for name in ("first", "second"):
        runner.measure_study(study, tmp_path / name, LogObserver(), Workplace(home))
    locks = [StudyFolder(tmp_path / name).lock() for name in ("first", "second")]
    assert len(measured) == 1
    assert [lock.noise for lock in locks if lock] == 2 * measured


def test_the_report_says_when_it_was_measured() -> None:
    plan = make_plan(["a"], [BUILT_IN_WORKLOADS["interactive"]])
    lock = Lock(plan=plan, noise=RECENT, created_at="2026-11-02T10:00:00.000+00:00")
    text = markdown(study_document(summarize(plan, [], []), lock))
    assert f"(3 repetitions, measured {RECENT.measured_at})" in text
