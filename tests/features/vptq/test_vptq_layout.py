"""VPTQ's public layout and the kernel's own: what is packed comes back, and means what the format says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitbench.features.vptq import layout, packed
from bitbench.features.vptq.layout import Outliers, VptqLayer
from tests.features.vptq.vptq_layers import codebook_sizes, layers


def test_words_hold_the_residual_above_the_main_index_lowest_bits_first() -> None:
    main, residual = (
        np.array([[0xABC, 0x123]], dtype=np.uint16),
        np.array([[0x7F, 0x01]], dtype=np.uint16),
    )
    words = layout.pack_layout_indices(main, residual, 12, 8)
    bits = 0x7FABC | 0x01123 << 20
    assert words.tolist() == [[np.int32(np.uint32(bits & 0xFFFFFFFF)), bits >> 32]]


@given(st.data(), st.integers(1, 16), st.integers(0, 16), st.integers(1, 40))
def test_public_indices_come_back(
    data: st.DataObject, main_bits: int, residual_bits: int, columns: int
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    main = rng.integers(0, 1 << main_bits, (2, 3, columns)).astype(np.uint16)
    residual = (
        rng.integers(0, 1 << residual_bits, (2, 3, columns)).astype(np.uint16)
        if residual_bits
        else None
    )
    words = layout.pack_layout_indices(main, residual, main_bits, residual_bits)
    assert words.shape == (2, 3, -(-columns * (main_bits + residual_bits) // 32))
    main_back, residual_back = layout.unpack_layout_indices(
        words, columns, main_bits, residual_bits
    )
    np.testing.assert_array_equal(main_back, main)
    assert (residual_back is None) == (residual is None)
    if residual is not None:
        np.testing.assert_array_equal(residual_back, residual)


def test_dequantize_follows_the_definition_entry_by_entry() -> None:
    rng = np.random.default_rng(0)
    layer = VptqLayer(
        in_features=5,
        out_features=3,
        centroids=rng.normal(size=(2, 4, 2)).astype(np.float32),
        indices=rng.integers(0, 4, (2, 2, 2)).astype(np.uint16),
        residual_centroids=rng.normal(size=(2, 2, 2)).astype(np.float32),
        residual_indices=rng.integers(0, 2, (2, 2, 2)).astype(np.uint16),
        outliers=Outliers(
            rng.normal(size=(4, 3)).astype(np.float32), np.array([[2]], dtype=np.uint16)
        ),
        permutation=np.array([3, 0, 4, 1, 2]),
        weight_scale=np.array([1, 2, 3, 4, 5], dtype=np.float32),
        weight_bias=np.array([0.1, 0.2, 0.3, 0.4, 0.5], dtype=np.float32),
    )
    weight = layout.dequantize_layout(layer)
    assert layer.outliers is not None
    assert layer.residual_centroids is not None
    assert layer.residual_indices is not None
    for n in range(3):
        for place, k in enumerate([3, 0, 4, 1, 2]):
            if place == 0:
                stored = layer.outliers.centroids[2][n]
            else:
                group, column = divmod(place - 1, 2)
                main = layer.centroids[group][layer.indices[group, n // 2, column]][n % 2]
                second = layer.residual_centroids[group][
                    layer.residual_indices[group, n // 2, column]
                ][n % 2]
                stored = float(main) + float(second)
            assert weight[n, k] == pytest.approx(float(stored) * (k + 1) + 0.1 * (k + 1), rel=1e-6)


@given(st.data(), codebook_sizes, st.integers(1, 150), st.integers(1, 3))
def test_kernel_indices_come_back(
    data: st.DataObject, sizes: tuple[int, int], columns: int, blocks: int
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    entries, residual_entries = sizes
    main_bits = packed.choose_index_bits(entries, packed.MAIN_BITS)
    residual_bits = (
        packed.choose_index_bits(residual_entries, packed.RESIDUAL_BITS) if residual_entries else 0
    )
    main = rng.integers(0, entries, (blocks, columns)).astype(np.uint16)
    residual = (
        rng.integers(0, residual_entries, (blocks, columns)).astype(np.uint16)
        if residual_entries
        else None
    )
    stream = packed.pack_stream(main, residual, main_bits, residual_bits)
    assert stream.shape == (
        blocks,
        -(-columns // 64),
        packed.compute_strip_bytes(main_bits, residual_bits),
    )
    main_back, residual_back = packed.unpack_stream(stream, columns, main_bits, residual_bits)
    np.testing.assert_array_equal(main_back, main)
    if residual is not None:
        np.testing.assert_array_equal(residual_back, residual)


@given(layers())
def test_only_the_rounding_of_the_codebooks_is_lost(layer: VptqLayer) -> None:
    exact, kept = (
        layout.dequantize_layout(layer),
        packed.dequantize_packed(packed.pack_layer(layer)),
    )
    assert kept.shape == exact.shape
    steps = [np.abs(layer.centroids).max(axis=(1, 2))]
    if layer.residual_centroids is not None:
        steps.append(np.abs(layer.residual_centroids).max(axis=(1, 2)))
    half_steps = float(sum(step.max() for step in steps)) / packed.INT8_MAX / 2
    scale = 1.0 if layer.weight_scale is None else layer.weight_scale.astype(np.float64)
    assert np.all(np.abs(kept - exact) <= half_steps * scale * 1.0001 + 1e-9)


def test_some_blocks_are_the_same_rows_of_the_whole() -> None:
    rng = np.random.default_rng(1)
    layer = VptqLayer(
        in_features=70,
        out_features=29,
        centroids=rng.normal(size=(1, 16, 8)).astype(np.float32),
        indices=rng.integers(0, 16, (1, 4, 70)).astype(np.uint16),
    )
    matrix = packed.pack_layer(layer)
    whole = packed.dequantize_packed(matrix)
    np.testing.assert_array_equal(packed.dequantize_packed(matrix, slice(1, 3)), whole[8:24])
    np.testing.assert_array_equal(packed.dequantize_packed(matrix, slice(3, None)), whole[24:29])


def test_a_vector_of_another_length_is_refused() -> None:
    layer = VptqLayer(4, 4, np.zeros((1, 2, 4), np.float32), np.zeros((1, 1, 4), np.uint16))
    with pytest.raises(ValueError, match="vectors of 8 outputs, not of 4"):
        packed.pack_layer(layer)


def test_a_codebook_that_no_index_can_name_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 16 bits"):
        packed.choose_index_bits(65537, packed.MAIN_BITS)
