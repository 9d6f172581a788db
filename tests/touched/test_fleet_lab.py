"""Simulated machines in namespaces of their own: faults of all kinds, in a short form; a core for each machine."""

from pathlib import Path

from tests.features.fleet.fleet_lab import in_fleet_lab
from tests.features.fleet.fleet_study import BLOCKS, STUDY, TRIALS


def test_random_faults() -> None:
    found = in_fleet_lab("faults", "5", "--blocks", "8", "--seed", "3")
    assert sum(found["faults"].values()) >= 5


def test_machines_with_a_core_each_are_one_class_and_a_factor_of_the_report(tmp_path: Path) -> None:
    study, into = tmp_path / "study.yaml", tmp_path / "out"
    study.write_text(STUDY)
    found = in_fleet_lab("engines", "--study", str(study), "--into", str(into))
    assert found["threads"] == {"m1": 1, "m2": 1}
    assert sum(machine["blocks"] for machine in found["machines"].values()) == BLOCKS
    assert sum(machine["trials"] for machine in found["machines"].values()) == 2 * BLOCKS * TRIALS
    assert 0 <= found["share_of_variation"] <= 1
    assert Path(found["report"]).is_relative_to(into)
