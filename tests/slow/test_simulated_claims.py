"""The simulated studies of tests/unit/test_simulated_claims.py, ten times as many."""

import pytest

from tests.unit.machine_simulation import MACHINES, Schedule
from tests.unit.simulated_claims import (
    DESIGNS,
    POWER,
    SHIFTS,
    SPREADS,
    Power,
    assert_equality_is_honest,
    assert_honest,
    assert_power,
    fixed_plan,
    interrupted_shifts,
    sequential,
    several_workloads,
)

pytestmark = pytest.mark.shares

STUDIES = 2500
LONG_STUDIES = 1000


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("count", "schedule"), DESIGNS)
def test_equal_contenders_are_seldom_told_apart(machine: str, count: int, schedule: Schedule) -> None:
    assert_honest(fixed_plan(MACHINES[machine], [1.0] * count, schedule), STUDIES)


@pytest.mark.parametrize("budget_s", [420, 600, 1200])
@pytest.mark.parametrize("machine", MACHINES)
def test_nor_are_they_when_looked_at_after_each_block(machine: str, budget_s: int) -> None:
    assert_honest(sequential(MACHINES[machine], [1.0] * 8, budget_s), LONG_STUDIES)


@pytest.mark.parametrize("spreads", SPREADS, ids=["alike", "unlike"])
@pytest.mark.parametrize("count", [2, 4])
def test_workloads_lend_no_false_claim(count: int, spreads: tuple[float, ...]) -> None:
    assert_honest(several_workloads(count, spreads), STUDIES)


@pytest.mark.parametrize("blocks", [2, 4])
def test_shifts_whose_baseline_was_started_anew(blocks: int) -> None:
    assert_honest(interrupted_shifts(blocks), STUDIES)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("count", "schedule"), SHIFTS)
def test_shifts_that_meet_by_way_of_the_baseline(machine: str, count: int, schedule: Schedule) -> None:
    assert_honest(fixed_plan(MACHINES[machine], [1.0] * count, schedule), STUDIES)


@pytest.mark.parametrize("machine", ["calm", "gallery"])
def test_equal_within_ten_percent(machine: str) -> None:
    assert_equality_is_honest(MACHINES[machine], Schedule(blocks=4, rounds=4, alternate=True), STUDIES)


@pytest.mark.parametrize("entry", POWER, ids=str)
def test_what_differs_is_seen(entry: Power) -> None:
    assert_power(entry, LONG_STUDIES)
