"""Would the claims be the same tomorrow? Simulated studies whose truth is known.

In the long form ten times as many, of every design on every machine; in the short one each design is on two, in turn.
"""

from collections.abc import Sequence
from itertools import cycle, product

import pytest

from bitbench.analysis.claims import FIRST_LOOK, update_claims
from bitbench.analysis.results.summary import AgainstBaseline
from tests.length import by_length
from tests.support.machine_simulation import CALM, MACHINES, Schedule
from tests.support.simulated_claims import (
    ALPHA,
    DESIGNS,
    MOST_BLOCKS,
    POWER,
    SHIFTS,
    SPREADS,
    Power,
    allowed,
    assert_equality_is_honest,
    assert_honest,
    assert_power,
    claims_by_blocks,
    fixed_plan,
    interrupted_shifts,
    sequential,
    several_workloads,
    share,
)

STUDIES = by_length(250, 2500)
LONG_STUDIES = by_length(100, 1000)  # with several looks each
QUIET_MACHINES = [name for name in MACHINES if name.startswith("quiet")]


def on_machines(designs: Sequence[tuple[int, Schedule]]) -> list[tuple[str, int, Schedule]]:
    names = cycle(MACHINES)
    in_turn = [(next(names), *design) for design in designs for _ in range(2)]
    return by_length(in_turn, [(name, *design) for name, design in product(MACHINES, designs)])


@pytest.mark.parametrize(("machine", "count", "schedule"), on_machines(DESIGNS))
def test_equal_configs_are_seldom_told_apart(machine: str, count: int, schedule: Schedule) -> None:
    assert_honest(fixed_plan(MACHINES[machine], [1.0] * count, schedule), STUDIES)


@pytest.mark.parametrize("budget_s", by_length([600], [420, 600, 1200]))
@pytest.mark.parametrize("machine", MACHINES)
def test_nor_are_they_when_looked_at_after_each_block(machine: str, budget_s: int) -> None:
    assert_honest(sequential(MACHINES[machine], [1.0] * 8, budget_s), LONG_STUDIES)


@pytest.mark.parametrize("machine", by_length(["gallery"], list(MACHINES)))
def test_nor_are_they_when_blocks_became_longer_with_the_time_that_quick_starts_left(
    machine: str,
) -> None:
    assert_honest(
        sequential(MACHINES[machine], [1.0] * 8, budget_s=900, first_start_s=48), LONG_STUDIES
    )


@pytest.mark.parametrize("spreads", SPREADS, ids=["alike", "unlike"])
@pytest.mark.parametrize("count", [2, 4])
def test_workloads_lend_no_false_claim(count: int, spreads: tuple[float, ...]) -> None:
    assert_honest(several_workloads(count, spreads), STUDIES)


@pytest.mark.parametrize("count", [2, 4])
def test_nor_do_they_where_they_share_the_starts_of_a_noisy_baseline(count: int) -> None:
    study = several_workloads(count, [1.0] * 6, trial_sd=0.003, noisy_baseline=5.0)
    outcomes = [study(seed) for seed in range(STUDIES)]
    assert share(not all(one.about_baseline) for one in outcomes) <= allowed(STUDIES)


@pytest.mark.parametrize("blocks", [3, 5])
def test_shifts_whose_baseline_was_started_anew(blocks: int) -> None:
    assert_honest(interrupted_shifts(blocks), STUDIES)


@pytest.mark.parametrize(("machine", "count", "schedule"), on_machines(SHIFTS))
def test_shifts_beside_the_baseline(machine: str, count: int, schedule: Schedule) -> None:
    assert_honest(fixed_plan(MACHINES[machine], [1.0] * count, schedule), STUDIES)


@pytest.mark.parametrize("count", by_length([8], [2, 3, 4, 8]))
@pytest.mark.parametrize(
    "machine", by_length(["uneven, reversed", *QUIET_MACHINES], list(MACHINES))
)
def test_however_noisy_the_baseline_is_claims_against_it_are_seldom_false(
    machine: str, count: int
) -> None:
    """As in the tables of docs/statistics.md, with fewer studies. Two blocks claim nothing."""
    cells = claims_by_blocks(MACHINES[machine], [1.0] * count, LONG_STUDIES)
    assert cells[2].false == 0
    for blocks in range(FIRST_LOOK, MOST_BLOCKS + 1):
        assert cells[blocks].false <= allowed(LONG_STUDIES)
        assert cells[blocks].coverage >= by_length(0.87, 0.92)


@pytest.mark.parametrize("machine", ["calm", "gallery"])
def test_equal_within_ten_percent(machine: str) -> None:
    assert_equality_is_honest(
        MACHINES[machine], Schedule(blocks=4, rounds=4, alternate=True), STUDIES
    )


def test_equal_configs_of_a_calm_machine_are_found_equal() -> None:
    found = [
        fixed_plan(CALM, [1.0] * 4, Schedule(4, 4, alternate=True))(seed).table
        for seed in range(LONG_STUDIES)
    ]
    said = [
        update_claims(table, table.configs[0], ALPHA, equal_within=0.1).against_baseline
        for table in found
    ]
    assert share(set(one.values()) == {AgainstBaseline.EQUAL} for one in said) >= 0.9


@pytest.mark.parametrize("entry", POWER, ids=str)
def test_what_differs_is_seen(entry: Power) -> None:
    assert_power(entry, LONG_STUDIES)
