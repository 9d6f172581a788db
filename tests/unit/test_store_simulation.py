"""The store and the scheduler under crashes, torn writes and doubled lines: nothing is lost, nothing is doubled."""

from tests.unit.store_simulation import STEPS, simulate

EXAMPLES = 400
FEWEST_STEPS = 20_000  # of the 24,000 that the examples may have


def test_twenty_thousand_steps() -> None:
    assert EXAMPLES * STEPS >= FEWEST_STEPS
    steps = simulate(1, EXAMPLES)
    print(f"{steps:,} steps")
    assert steps >= FEWEST_STEPS
