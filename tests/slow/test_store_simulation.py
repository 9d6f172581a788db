"""A million steps of the simulated store, each part from a seed of its own; a part that fails is run again alone."""

import pytest

from tests.unit.store_simulation import simulate

PARTS = 20
EXAMPLES = 1_000  # of a part, with at least 50 steps on average
FEWEST_STEPS = 50_000


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(PARTS))
def test_fifty_thousand_steps(number: int) -> None:
    steps = simulate(1_000 + number, EXAMPLES)
    print(f"seed {1_000 + number}: {steps:,} steps")
    assert steps >= FEWEST_STEPS
