"""The simulated requests of tests/unit/test_statistics_percentiles.py, ten times as many studies."""

import pytest

from tests.unit.simulated_requests import P99_CELLS, Cell, assert_covers, assert_seldom_met

pytestmark = pytest.mark.shares

STUDIES = 2500


@pytest.mark.parametrize("cell", P99_CELLS, ids=str)
def test_p99_is_covered(cell: Cell) -> None:
    assert_covers(cell, 99, STUDIES)


@pytest.mark.parametrize("cell", P99_CELLS, ids=str)
def test_a_missed_p99_is_seldom_met(cell: Cell) -> None:
    assert_seldom_met(cell, STUDIES)
