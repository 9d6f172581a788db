"""Simulated machines for long: fifty faults, a cut cable, the time that more machines take, and real engines; by ssh
and by Ray.

Real engines need the environments transformers and llamacpp, and the model smollm2-135m.
"""

from pathlib import Path

import pytest

from tests.features.fleet.fleet_lab import in_fleet_lab

pytestmark = pytest.mark.timeout(3600)
WAYS = pytest.mark.parametrize("way", [(), ("--ray",)], ids=["ssh", "ray"])


@WAYS
def test_fifty_faults(way: tuple[str, ...]) -> None:
    found = in_fleet_lab("faults", "50", "--long", *way)
    assert sum(found["faults"].values()) >= 50
    assert sum(study["lost_blocks"] for study in found["studies"]) > 0


@WAYS
def test_a_cut_cable_is_noticed(way: tuple[str, ...]) -> None:
    assert in_fleet_lab("cable", *way)["noticed_s"] < 90


@WAYS
def test_four_machines_are_nearly_four_times_as_quick(way: tuple[str, ...]) -> None:
    """On an idle machine: its engines wait, but to start them takes the processor."""
    found = in_fleet_lab("times", "1", "2", "4", *way)
    assert [found[count]["machines"] for count in ("1", "2", "4")] == [1, 2, 4]
    assert found["4"]["speedup"] >= 3.5


@WAYS
def test_real_engines_on_two_machines_at_once(way: tuple[str, ...], tmp_path: Path) -> None:
    found = in_fleet_lab("engines", "--into", str(tmp_path / "out"), *way)
    assert [found["machines"][name]["blocks"] for name in ("m1", "m2")] == [2, 2]
    assert Path(found["report"]).is_file()
