"""Percentiles from sketches: within their error, and the same however the values were spread over sketches."""

import numpy as np
import pytest

from bitbench.loadgen.progress import HIGHEST_S, LOWEST_S, RELATIVE_ERROR, LatencySketch


@pytest.mark.parametrize("seed", range(5))
def test_every_percentile_is_within_the_error(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = np.exp(random.normal(-3, 2, size=int(random.choice([7, 300, 5_000]))))
    sketch = LatencySketch()
    sketch.add_all(values)
    for share in (0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = float(np.quantile(values, share))
        found = sketch.quantile(share)
        assert found is not None
        assert abs(found / exact - 1) <= RELATIVE_ERROR * 1.0001


def test_one_by_one_all_together_and_merged_are_the_same() -> None:
    values = np.exp(np.random.default_rng(1).normal(-5, 3, size=1_000))
    together, single = LatencySketch(), LatencySketch()
    together.add_all(values)
    for value in values:
        single.add(float(value))
    left, right = LatencySketch(), LatencySketch()
    left.add_all(values[:300])
    right.add_all(values[300:])
    assert together.counts() == single.counts() == LatencySketch.of(left.counts(), right.counts()).counts()
    assert together.count == 1_000


def test_nothing_has_no_percentile_and_extremes_are_counted_at_the_edge() -> None:
    sketch = LatencySketch()
    assert sketch.quantile(0.5) is None
    sketch.add(0.0)
    sketch.add(-1.0)
    sketch.add(1e9)
    assert sketch.count == 3
    assert sketch.quantile(0.0) == pytest.approx(LOWEST_S, rel=0.02)
    assert sketch.quantile(1.0) == pytest.approx(HIGHEST_S, rel=0.03)
