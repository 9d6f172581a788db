"""The CPU kernel against double precision, on every instruction set that this machine has.

With `BITBENCH_ISA=avx2` it skips what is better than AVX2, as if the processor lacked it.
"""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitbench.features.vptq import layout, packed
from bitbench.features.vptq.layout import Doubles, VptqLayer
from tests.features.vptq.vptq_layers import codebook_sizes, layers, make_layer

native = pytest.importorskip(
    "bitbench._native", reason="the native part was not built: no C++ compiler here"
)

CHUNK = 1024  # columns that share an activation scale
STEPS = {8: 127, 16: 127 * 256}
ISAS = native.vptq_isas()
KNOWN_ISAS = {
    "x86_64": ("avx512vbmi", "avx512", "avxvnni", "avx2", "portable"),
    "aarch64": ("neon-i8mm", "neon-dot", "neon", "portable"),
}.get(platform.machine(), ("portable",))
on_every_isa = pytest.mark.parametrize(
    "isa",
    [
        pytest.param(
            isa,
            marks=pytest.mark.skipif(
                isa not in ISAS, reason=f"no {isa} in this processor or BITBENCH_ISA"
            ),
        )
        for isa in KNOWN_ISAS
    ],
)


def run(matrix: packed.PackedMatrix, x: layout.Floats, bits: int, isa: str = "") -> layout.Floats:
    y = np.full((len(x), matrix.out_features), np.nan, dtype=np.float32)
    packed.make_native_matrix(matrix).multiply(x, y, activation_bits=bits, isa=isa)
    return y


def exact_product(weight: Doubles, x: layout.Floats, bias: layout.Floats | None = None) -> Doubles:
    """x W^T + bias in double precision."""
    product = x.astype(np.float64) @ weight.T
    return product if bias is None else product + bias.astype(np.float64)


def rounding_bound(matrix: packed.PackedMatrix, x: layout.Floats, bits: int) -> Doubles:
    """What rounding the activations may change at most: half a step of its chunk per column, times the weight."""
    scale = (
        np.ones(matrix.in_features)
        if matrix.column_scale is None
        else matrix.column_scale.astype(np.float64)
    )
    order = np.arange(matrix.in_features) if matrix.permutation is None else matrix.permutation
    bare = packed.PackedMatrix(
        matrix.in_features, matrix.out_features, matrix.segments, outliers=matrix.outliers
    )
    weight = np.abs(packed.dequantize_packed(bare))  # in stored order, without scale
    stored = (x.astype(np.float64) * scale)[:, order]
    bound = np.zeros((len(x), matrix.out_features))
    first = 0 if matrix.outliers is None else matrix.outliers.shape[1]
    for segment in matrix.segments:
        for start in range(first, first + segment.columns, CHUNK):
            chunk = slice(start, min(start + CHUNK, first + segment.columns))
            half_step = np.abs(stored[:, chunk]).max(axis=1) / STEPS[bits] / 2
            bound += np.outer(half_step, weight[:, chunk].sum(axis=1))
        first += segment.columns
    single_precision = np.abs(x.astype(np.float64)) @ np.abs(packed.dequantize_packed(matrix)).T
    return bound * 1.001 + 2e-6 * single_precision + 1e-5


@settings(max_examples=60, deadline=None)
@given(
    layers(),
    st.integers(1, 9),
    st.sampled_from([8, 16]),
    st.sampled_from(ISAS),
    st.integers(0, 2**32 - 1),
)
def test_the_error_is_that_of_rounding_the_activations(
    layer: VptqLayer, batch: int, bits: int, isa: str, seed: int
) -> None:
    x = np.random.default_rng(seed).normal(size=(batch, layer.in_features)).astype(np.float32)
    matrix = packed.pack_layer(layer)
    wanted = exact_product(packed.dequantize_packed(matrix), x, layer.bias)
    assert np.all(np.abs(run(matrix, x, bits, isa) - wanted) <= rounding_bound(matrix, x, bits))


@on_every_isa
@pytest.mark.parametrize(("bits", "allowed"), [(8, 0.02), (16, 2e-4)])
@pytest.mark.parametrize(
    "sizes", [(4096, 256), (4096, 512), (8192, 256), (8192, 512), (65536, 256)]
)
def test_the_relative_error_is_small(
    sizes: tuple[int, int], bits: int, allowed: float, isa: str
) -> None:
    rng = np.random.default_rng(7)
    layer = make_layer(
        rng, out_features=203, columns_per_group=1500, sizes=sizes, permuted=True, scaled=True
    )
    matrix = packed.pack_layer(layer)
    x = rng.normal(size=(1, layer.in_features)).astype(np.float32)
    wanted = exact_product(packed.dequantize_packed(matrix), x)
    assert np.linalg.norm(run(matrix, x, bits, isa) - wanted) < allowed * np.linalg.norm(wanted)


@settings(max_examples=20, deadline=None)
@given(codebook_sizes, st.sampled_from([8, 16]), st.integers(0, 2**32 - 1))
def test_the_instruction_sets_agree(sizes: tuple[int, int], bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = packed.pack_layer(
        make_layer(rng, out_features=21, columns_per_group=1200, sizes=sizes, scaled=True)
    )
    x = rng.normal(size=(3, matrix.in_features)).astype(np.float32)
    results = [run(matrix, x, bits, isa) for isa in ISAS]
    for result in results[1:]:  # the same integers, added in another order as floats
        np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=2e-3)


@on_every_isa
@pytest.mark.parametrize("bits", [8, 16])
def test_rows_of_a_batch_do_not_touch_each_other(bits: int, isa: str) -> None:
    rng = np.random.default_rng(3)
    matrix = packed.pack_layer(
        make_layer(rng, out_features=19, columns_per_group=1300, groups=2, outlier_columns=3)
    )
    x = (
        rng.normal(size=(8, matrix.in_features)).astype(np.float32)
        * 10.0 ** np.arange(-4, 4)[:, np.newaxis]
    )
    x = x.astype(np.float32)
    together = run(matrix, x, bits, isa)
    alone = np.concatenate([run(matrix, x[i : i + 1], bits, isa) for i in range(8)])
    scale = np.abs(alone).max(axis=1, keepdims=True)
    assert np.all(np.abs(together - alone) <= 1e-5 * scale)


@on_every_isa
def test_zeros_give_the_bias_and_what_is_not_finite_stays_so(isa: str) -> None:
    rng = np.random.default_rng(4)
    layer = make_layer(rng, out_features=10, columns_per_group=100, biased=True)
    matrix = packed.pack_layer(layer)
    x = np.zeros((1, 100), dtype=np.float32)
    np.testing.assert_array_equal(run(matrix, x, 8, isa)[0], layer.bias)
    for odd in (np.inf, -np.inf, np.nan):
        x[0, 17] = odd
        assert not np.isfinite(run(matrix, x, 8, isa)).any()


@on_every_isa
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_the_largest_weights_and_activations_are_exact(
    sign: int, batch: int, bits: int, isa: str
) -> None:
    layer = make_layer(
        np.random.default_rng(8), out_features=8, columns_per_group=2100, sizes=(4096, 512)
    )
    layer.centroids[:] = sign
    assert layer.residual_centroids is not None
    layer.residual_centroids[:] = -sign / 4
    matrix = packed.pack_layer(layer)
    x = np.full((batch, layer.in_features), 3.0, dtype=np.float32)
    wanted = exact_product(packed.dequantize_packed(matrix), x)
    np.testing.assert_allclose(run(matrix, x, bits, isa), wanted, rtol=1e-5)


@on_every_isa
def test_a_lower_instruction_set_can_be_forced(isa: str) -> None:
    assert isas_of_a_process(isa) == ISAS[ISAS.index(isa) :]


def test_one_that_the_processor_does_not_run_cannot_be_forced() -> None:
    with pytest.raises(
        AssertionError,
        match=f"ValueError: BITBENCH_ISA=mmx names no .* choose one of: .*{ISAS[-1]}",
    ):
        isas_of_a_process("mmx")


def isas_of_a_process(best: str) -> list[str]:
    command = [sys.executable, "-c", "from bitbench._native import vptq_isas; print(*vptq_isas())"]
    child = subprocess.run(
        command,
        env=os.environ | {"BITBENCH_ISA": best},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.split()


def test_an_array_of_the_wrong_size_is_refused() -> None:
    matrix = packed.pack_layer(
        make_layer(np.random.default_rng(5), out_features=16, columns_per_group=64)
    )
    made = packed.make_native_matrix(matrix)
    with pytest.raises(ValueError, match="x ends in in_features"):
        made.multiply(np.zeros((1, 63), np.float32), np.zeros((1, 16), np.float32))
    with pytest.raises(ValueError, match="y is"):
        made.multiply(np.zeros((2, 64), np.float32), np.zeros((1, 16), np.float32))
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        made.multiply(np.zeros((1, 64), np.float64), np.zeros((1, 16), np.float32))
    with pytest.raises(ValueError, match="instruction set"):
        made.multiply(np.zeros((1, 64), np.float32), np.zeros((1, 16), np.float32), isa="mmx")


def test_what_is_not_contiguous_is_refused_and_not_copied() -> None:
    matrix = packed.pack_layer(
        make_layer(np.random.default_rng(5), out_features=16, columns_per_group=64)
    )
    made = packed.make_native_matrix(matrix)
    x, y = np.zeros((2, 64), np.float32), np.zeros((2, 16), np.float32)
    with pytest.raises(TypeError):
        made.multiply(np.asfortranarray(x), y)
    with pytest.raises(TypeError):
        made.multiply(x, np.asfortranarray(y))


def test_a_stream_that_is_too_short_is_refused() -> None:
    matrix = packed.pack_layer(
        make_layer(np.random.default_rng(6), out_features=16, columns_per_group=64)
    )
    segment = matrix.segments[0]
    made = native.VptqMatrix(64, 16)
    with pytest.raises(ValueError, match="the size that its layout needs"):
        made.add_segment(
            columns=64,
            main_bits=12,
            residual_bits=8,
            stream=segment.stream[:1].copy(),
            main=segment.main.entries,
            main_scale=1.0,
            residual=segment.residual.entries if segment.residual else None,
            residual_scale=1.0,
        )
    with pytest.raises(ValueError, match="no segment yet"):
        made.multiply(np.zeros((1, 64), np.float32), np.zeros((1, 16), np.float32))


def test_addresses_give_what_arrays_give() -> None:
    rng = np.random.default_rng(7)
    made = packed.make_native_matrix(
        packed.pack_layer(make_layer(rng, out_features=16, columns_per_group=64))
    )
    x = rng.standard_normal((3, 64), dtype=np.float32)
    one, other = np.zeros((3, 16), np.float32), np.zeros((3, 16), np.float32)
    made.multiply(x, one, activation_bits=16)
    made.multiply_at(
        x.ctypes.data, other.ctypes.data, rows=3, bfloat16=False, activation_bits=16, threads=1
    )
    assert np.array_equal(one, other)
    with pytest.raises(ValueError, match="at least one row"):
        made.multiply_at(
            x.ctypes.data, other.ctypes.data, rows=0, bfloat16=False, activation_bits=16, threads=1
        )
