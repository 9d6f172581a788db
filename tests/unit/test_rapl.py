"""Energy of processors from a folder that imitates /sys/class/powercap."""

from pathlib import Path

import pytest

from bitbench.analysis.summarize import summarize
from bitbench.analysis.trial import metrics_of_trial
from bitbench.measure.machine import watches
from bitbench.measure.machine.watches import EnergyMeter, energy_zones
from bitbench.records.folder import StudyRecords
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import Energy
from bitbench.reports.document.markdown import markdown
from bitbench.reports.study import study_document
from tests.unit.synthetic import demo_study, request_rows

RANGE_UJ = 65_532_610_987


def zone(root: Path, number: str, name: str, energy_uj: int) -> Path:
    folder = root / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    return folder / "energy_uj"


def test_packages_and_their_memory_are_counted_once(tmp_path: Path) -> None:
    package, memory = zone(tmp_path, "0", "package-0", 5_000_000), zone(tmp_path, "0:1", "dram", 1_000_000)
    inside = [zone(tmp_path, "0:0", "core", 0), zone(tmp_path, "1", "psys", 0)]
    with EnergyMeter(energy_zones(tmp_path)) as meter:
        package.write_text("12000000")
        memory.write_text("2500000")
        for file in inside:
            file.write_text("99000000")
    assert meter.energy_j == pytest.approx(8.5)
    assert meter.power_w is not None
    assert meter.power_w > 0


def test_a_counter_that_begins_again_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "READ_PERIOD_S", 3600.0)  # the meter is read below
    package = zone(tmp_path, "0", "package-0", RANGE_UJ - 1_000_000)
    with EnergyMeter(energy_zones(tmp_path)) as meter:
        package.write_text("2000000")
        meter._read()
        package.write_text("1000000")  # a whole range but one joule later
        meter._read()
        package.write_text("4000000")
    assert meter.energy_j == pytest.approx(3 + RANGE_UJ / 1e6 - 1 + 3)


@pytest.mark.parametrize("damage", ["missing", "unreadable", "empty"])
def test_what_cannot_be_read_is_unknown(damage: str, tmp_path: Path) -> None:
    if damage != "missing":
        zone(tmp_path, "0", "package-0", 0)
        counter = zone(tmp_path, "1", "package-1", 0)
        counter.unlink() if damage == "unreadable" else counter.write_text("")
    with EnergyMeter(energy_zones(tmp_path)) as meter:
        pass
    assert meter.energy_j is None
    assert meter.power_w is None


def test_a_counter_that_is_lost_meanwhile_is_unknown(tmp_path: Path) -> None:
    package = zone(tmp_path, "0", "package-0", 0)
    with EnergyMeter(energy_zones(tmp_path)) as meter:
        package.unlink()
    assert meter.energy_j is None


def test_joules_per_token_have_their_idle_share_named() -> None:
    rows = request_rows({"planned_s": 0.0, "chunk_s": [0.1, 0.2], "output_tokens": 2})
    figures = metrics_of_trial(RequestSums.of(rows), energy=Energy(gpus_j=4.0, cpus_j=10.0))
    assert (figures.energy_per_token, figures.cpu_energy_per_token) == (2.0, 5.0)
    assert metrics_of_trial(RequestSums.of(rows)).cpu_energy_per_token is None
    _, trials, instances, lock = demo_study()
    assert "CPU energy" not in markdown(
        study_document(summarize(StudyRecords("made-up", lock, trials, instances)), lock)
    )
    trials = [
        trial.model_copy(
            update={
                "duration_s": 2.0,
                "cpu_energy_j": 80.0,
                "metrics": trial.metrics.model_copy(update={"cpu_energy_per_token": 0.5}),
            }
        )
        for trial in trials
    ]
    lock = lock.model_copy(update={"idle_power_w": 15.0})
    summary = summarize(StudyRecords("made-up", lock, trials, instances))
    assert summary.idle_share == pytest.approx(15 * 2 / 80)
    page = markdown(study_document(summary, lock))
    assert "37.5 % of the processors' energy is what they take when idle" in page
    assert "15.0 W" in page
    assert "CPU energy" in page
