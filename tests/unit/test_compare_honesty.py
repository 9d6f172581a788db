"""How often is the gate wrong? Simulated pairs of studies with a known truth, through what `bitbench compare` uses."""

import pytest

from bitbench.study.study import Count, Measure
from tests.length import by_length
from tests.unit.test_compare import SLOWER_BY_3, against, side

PAIRS = by_length(100, 400)
FOUR_STARTS = Measure(starts=Count(min=4, max=4), trials=Count(min=3, max=3))
UNTIL_PRECISE = Measure(starts=Count(min=3, max=8), trials=Count(min=3, max=5))


def share_that_fails(truth: float, limit: str, measure: Measure) -> float:
    """Of pairs of studies with two points each: how many exit with 1."""
    codes = [
        against(
            side("a", 1.0, 2 * seed, measure=measure),
            side("b", truth, 2 * seed + 1, measure=measure),
            limit,
        )
        for seed in range(PAIRS)
    ]
    return sum(comparison.exit_code == 1 for comparison in codes) / PAIRS


@pytest.mark.parametrize(
    "measure", [FOUR_STARTS, UNTIL_PRECISE], ids=["four starts", "until precise"]
)
@pytest.mark.parametrize("limit", [SLOWER_BY_3, "output_throughput < 0%"])
def test_equal_studies_seldom_fail(limit: str, measure: Measure) -> None:
    assert share_that_fails(1.0, limit, measure) <= 0.05


@pytest.mark.parametrize(
    "measure", [FOUR_STARTS, UNTIL_PRECISE], ids=["four starts", "until precise"]
)
def test_ten_percent_slower_fails(measure: Measure) -> None:
    assert share_that_fails(0.9, SLOWER_BY_3, measure) >= 0.95
