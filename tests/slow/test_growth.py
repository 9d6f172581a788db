"""A hundred thousand cells are planned, and a study of a thousand is run, at the price per cell of a small one."""

from pathlib import Path

import pytest

from tests.chain.test_growth import harness_s_per_trial
from tests.unit.test_growth import SLOWEST, plan_s


def test_a_hundred_thousand_cells_are_planned_within_twenty_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_s(tmp_path, capsys, 2, 2)
    took_s = plan_s(tmp_path, capsys, 320, 320)
    print(f"102,400 cells: {took_s:.1f} s")
    assert took_s < SLOWEST * 20.0


@pytest.mark.timeout(3600)
def test_a_trial_among_a_thousand_cells_costs_what_one_among_ten_does(tmp_path: Path) -> None:
    harness_s_per_trial(tmp_path / "first", engines=1, workloads=1)  # what is imported once
    few_s = harness_s_per_trial(tmp_path / "few", engines=2, workloads=5)
    many_s = harness_s_per_trial(tmp_path / "many", engines=200, workloads=5)
    print(f"per trial: {1e3 * few_s:.2f} ms of 10 cells, {1e3 * many_s:.2f} ms of 1,000")
    assert many_s < 1.5 * few_s
