"""Does a search find the best, and does it claim a gain where there is none? tests/slow has 200 searches of each."""

import pytest

from tests.unit.machine_simulation import MACHINES
from tests.unit.simulated_tuning import CLOSE_SPACE, SPACE, assert_claims_no_gain, assert_finds_the_best

SEARCHES = 30


def test_the_best_of_a_space_is_found_on_a_machine_like_that_of_the_gallery() -> None:
    assert_finds_the_best(MACHINES["gallery"], SPACE, SEARCHES)


def test_three_percent_are_told_apart_on_a_calm_machine() -> None:
    assert_finds_the_best(MACHINES["calm"], CLOSE_SPACE, SEARCHES)


@pytest.mark.parametrize("machine", ["gallery", "luck"])
def test_no_gain_is_confirmed_among_equals(machine: str) -> None:
    assert_claims_no_gain(MACHINES[machine], SEARCHES)
