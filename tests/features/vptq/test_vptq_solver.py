"""The parts of VPTQ's quantizer on tiny layers: each against its definition, and together against plain rounding."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitbench.features.vptq import layout, packed
from bitbench.features.vptq.codebooks import Book, Search, combine_codebooks, kmeans, refit_codebooks
from bitbench.features.vptq.layout import Doubles, Floats
from bitbench.features.vptq.solver import (
    Settings,
    Solved,
    error_factor,
    improve_columns,
    quantize_columns,
    quantize_layer,
    solver_proxy_error,
)

TINY = Settings(main=32, residual=8, iterations=6)


def normal(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape).astype(np.float32)


def correlated(rng: np.random.Generator, columns: int) -> Doubles:
    """E[x x^T] of inputs of which some are large and all lean on each other."""
    x = rng.standard_normal((4 * columns, columns)) * rng.lognormal(size=columns)
    x = x + 0.7 * x.mean(axis=1, keepdims=True)
    return np.asarray(x.T @ x / len(x), dtype=np.float64)


def to_steps(_: int, wanted: Floats) -> Floats:
    return np.rint(wanted / 0.5).astype(np.float32) * np.float32(0.5)


def error(columns: Floats, quantized: Floats, hessian: npt.NDArray[np.floating]) -> float:
    wrong = (quantized - columns).astype(np.float64)
    return float(np.vdot(hessian @ wrong, wrong))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.integers(1, 5000))
def test_the_nearest_entry_is_the_nearest(seed: int, count: int, entries: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, centroids = normal(rng, count, 8), normal(rng, entries, 8)
    found = np.square(vectors - centroids[Search(centroids).nearest(vectors)]).sum(axis=1)
    best = [np.square(vector - centroids).sum(axis=1).min() for vector in vectors]
    np.testing.assert_allclose(found, best, rtol=1e-4, atol=1e-5)


def test_kmeans_finds_clusters_and_looks_where_the_weight_is() -> None:
    rng = np.random.default_rng(0)
    middles = 10 * normal(rng, 12, 8)
    vectors = (middles[rng.integers(0, 12, 3000)] + 0.01 * normal(rng, 3000, 8)).astype(np.float32)
    found = kmeans(vectors, np.ones(3000, np.float32), 48, np.random.default_rng(1), iterations=10)
    assert max(np.square(middle - found).sum(axis=1).min() for middle in middles) < 0.01

    spread = normal(rng, 4000, 2)
    heavy = spread[:, 0] > 0
    weights = np.where(heavy, 100, 1).astype(np.float32)
    entries = kmeans(spread, weights, 32, np.random.default_rng(1), iterations=10)
    assert (entries[:, 0] > 0).sum() > 24


def test_kmeans_repeats_itself_and_leaves_no_entry_unused() -> None:
    vectors, weights = normal(np.random.default_rng(0), 500, 4), np.ones(500, np.float32)
    first, second = (kmeans(vectors, weights, 64, np.random.default_rng(7), iterations=8) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(Search(first).nearest(vectors))) >= 60


def test_with_an_entry_for_each_nothing_is_lost() -> None:
    vectors = normal(np.random.default_rng(0), 20, 8)
    found = kmeans(vectors, np.ones(20, np.float32), 64, np.random.default_rng(0), iterations=3)
    np.testing.assert_array_equal(found[Search(found).nearest(vectors)], vectors)


def test_errors_that_are_passed_on_beat_plain_rounding() -> None:
    rng = np.random.default_rng(0)
    hessian, columns = correlated(rng, 150) + 0.05 * np.eye(150), normal(rng, 150, 16)
    plain = np.stack([to_steps(k, column) for k, column in enumerate(columns)])
    passed_on = quantize_columns(columns, error_factor(hessian), to_steps)
    improved = improve_columns(columns, passed_on, hessian.astype(np.float32), to_steps)
    assert error(columns, passed_on, hessian) < 0.7 * error(columns, plain, hessian)
    assert error(columns, improved, hessian) <= error(columns, passed_on, hessian)
    np.testing.assert_array_equal(passed_on, to_steps(0, passed_on))


def test_passing_errors_on_is_the_definition_column_by_column() -> None:
    """Each column is rounded, then the rest takes the values that are best for what was rounded so far."""
    rng = np.random.default_rng(3)
    hessian, columns = correlated(rng, 6), normal(rng, 6, 2)
    rest, wanted = columns.astype(np.float64), np.zeros_like(columns)
    for k in range(6):
        wanted[k] = to_steps(k, rest[k].astype(np.float32))
        later = slice(k + 1, None)
        slip = rest[k] - wanted[k]
        if k < 5:
            rest[later] += np.linalg.solve(hessian[later, later], np.outer(hessian[later, k], slip))
    np.testing.assert_allclose(quantize_columns(columns, error_factor(hessian), to_steps), wanted)


def test_refitted_entries_cannot_be_bettered() -> None:
    rng = np.random.default_rng(0)
    hessian, columns = correlated(rng, 40).astype(np.float32), normal(rng, 40, 32)
    books = [
        Book(normal(rng, 16, 8), rng.integers(0, 15, (40, 4))),  # nobody uses the last entry
        Book(normal(rng, 4, 8), rng.integers(0, 4, (30, 4)), first=10),
    ]
    found = refit_codebooks(books, columns, hessian, iterations=400)
    best = error(columns, combine_codebooks(books, found, columns.shape), hessian)
    assert best < error(columns, combine_codebooks(books, [book.centroids for book in books], columns.shape), hessian)
    np.testing.assert_array_equal(found[0][15], books[0].centroids[15])
    for _ in range(20):
        moved = [entries + 0.05 * normal(rng, *entries.shape) for entries in found]
        assert error(columns, combine_codebooks(books, moved, columns.shape), hessian) > best


def solve(weight: Floats, hessian: Doubles, chosen: Settings, seed: int = 0) -> Solved:
    return quantize_layer(weight, hessian, chosen, np.random.default_rng(seed))


def test_a_layer_beats_rounding_to_as_many_bits() -> None:
    """One bit per weight for the indices of 32 x 8 entries; rounding with a scale per row gets two."""
    rng = np.random.default_rng(0)
    hessian, weight = correlated(rng, 96), normal(rng, 64, 96)
    steps = np.abs(weight).max(axis=1, keepdims=True) / 1.5
    rounded = (np.rint(weight / steps - 0.5).clip(-2, 1) + 0.5) * steps
    assert solve(weight, hessian, TINY).proxy_error < 0.8 * solver_proxy_error(
        weight, rounded.astype(np.float64), hessian
    )


def test_every_step_of_the_solver_earns_its_place() -> None:
    rng = np.random.default_rng(1)
    hessian, weight = correlated(rng, 96), normal(rng, 128, 96)
    full = solve(weight, hessian, TINY).proxy_error
    assert full < 0.9 * solve(weight, hessian, Settings(main=32, residual=0, iterations=6)).proxy_error
    assert full < 0.97 * solve(weight, hessian, Settings(main=32, residual=8, iterations=6, rounds=0)).proxy_error
    # Without knowing what the inputs are like:
    assert full < 0.8 * solver_proxy_error(
        weight, layout.dequantize_layout(solve(weight, np.eye(96), TINY).layer), hessian
    )


def test_the_error_that_is_told_is_the_error_of_the_outputs() -> None:
    rng = np.random.default_rng(2)
    x, weight = rng.standard_normal((500, 24)), normal(rng, 16, 24)
    solved = solve(weight, x.T @ x / 500, TINY)
    exact, found = x @ weight.T.astype(np.float64), x @ layout.dequantize_layout(solved.layer).T
    assert solved.proxy_error == pytest.approx(np.square(found - exact).sum() / np.square(exact).sum(), rel=1e-9)


def test_normalised_columns_scale_the_hessian_too() -> None:
    """A column that is a thousand times larger, with inputs a thousand times smaller, is the same problem."""
    rng = np.random.default_rng(3)
    hessian, weight = correlated(rng, 48), normal(rng, 64, 48)
    factors = np.where(np.arange(48) % 3 == 0, 1000.0, 1.0)
    chosen = Settings(main=32, residual=8, iterations=6, normalize=True)
    as_it_is = solve(weight, hessian, chosen)
    stretched = solve((weight * factors).astype(np.float32), hessian / factors / factors[:, np.newaxis], chosen)
    assert stretched.proxy_error == pytest.approx(as_it_is.proxy_error, rel=0.05)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("outliers", [0.0, 0.1])
def test_outputs_that_fill_no_vector_and_outlier_columns(normalize: bool, outliers: float) -> None:
    rng = np.random.default_rng(4)
    hessian, weight, bias = correlated(rng, 50), normal(rng, 43, 50), normal(rng, 43)
    chosen = Settings(main=64, residual=16, iterations=4, normalize=normalize, outliers=outliers, outlier_entries=16)
    layer = quantize_layer(weight, hessian, chosen, np.random.default_rng(0), bias=bias).layer
    assert (layer.in_features, layer.out_features) == (50, 43)
    assert (layer.permutation is None) == (outliers == 0)
    assert (layer.weight_scale is None) != normalize
    assert layer.bias is bias
    found = layout.dequantize_layout(layer)
    assert found.shape == weight.shape
    assert solver_proxy_error(weight, found, hessian) < 0.3


def test_a_column_that_calibration_never_met_does_no_harm() -> None:
    rng = np.random.default_rng(5)
    hessian, weight = correlated(rng, 32), normal(rng, 32, 32)
    hessian[3] = hessian[:, 3] = 0
    assert solve(weight, hessian, TINY).proxy_error < 0.3
    assert np.isfinite(layout.dequantize_layout(solve(weight, np.zeros((32, 32)), TINY).layer)).all()


def test_the_kernel_computes_with_the_entries_that_are_stored() -> None:
    rng = np.random.default_rng(6)
    layer = solve(normal(rng, 64, 96), correlated(rng, 96), TINY).layer
    stored, computed = layout.dequantize_layout(layer), packed.dequantize_packed(packed.pack_layer(layer))
    assert np.abs(stored - computed).max() < 1e-3 * np.abs(stored).max()
