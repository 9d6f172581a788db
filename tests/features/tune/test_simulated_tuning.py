"""Does a search find the best, and does it claim a gain where there is none?"""

import pytest

from tests.features.tune.simulated_tuning import (
    CLOSE_SPACE,
    SPACE,
    assert_bounds_hold,
    assert_claims_no_gain,
    assert_finds_the_best,
    searched,
)
from tests.length import by_length
from tests.support.machine_simulation import MACHINES

SEARCHES = by_length(30, 200)


@pytest.mark.parametrize("machine", by_length(["gallery"], ["gallery", "drift", "calm"]))
def test_the_best_of_a_space_is_found(machine: str) -> None:
    assert_finds_the_best(MACHINES[machine], SPACE, SEARCHES)


def test_three_percent_are_told_apart_on_a_calm_machine() -> None:
    assert_finds_the_best(MACHINES["calm"], CLOSE_SPACE, SEARCHES)


def test_the_best_of_those_that_meet_the_limits_is_found() -> None:
    """The four fastest, 1.49 to 1.6, miss a limit: the best of the others is 1.35."""
    fastest = [place for place, speed in enumerate(SPACE) if speed > 1.4]
    assert_finds_the_best(MACHINES["gallery"], SPACE, SEARCHES, broken=fastest)


@pytest.mark.parametrize("machine", by_length(["luck"], ["luck", "starts", "uneven"]))
def test_what_is_said_of_the_rest_holds_where_starts_vary_too_much_to_find_the_best(
    machine: str,
) -> None:
    assert_bounds_hold([searched(MACHINES[machine], SPACE, seed) for seed in range(SEARCHES)])


@pytest.mark.parametrize("machine", by_length(["gallery", "luck"], list(MACHINES)))
def test_no_gain_is_confirmed_among_equals(machine: str) -> None:
    assert_claims_no_gain(MACHINES[machine], SEARCHES)
