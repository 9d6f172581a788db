"""A million steps of the simulated store, each part from a seed of its own; a part that fails is run again alone."""

import pytest

from tests.unit.store_simulation import walk

pytestmark = pytest.mark.shares

PARTS = 20
STEPS = 50_000  # of a part


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(PARTS))
def test_fifty_thousand_steps(number: int) -> None:
    counts = walk(1_000 + number, STEPS)
    print(f"seed {1_000 + number}: {dict(counts)}")
    assert counts["steps"] >= STEPS
    assert counts["completed"] > 0.25 * counts["studies"]
