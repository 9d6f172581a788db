"""Layers to test with: small, odd and complete; and what a checkpoint of them holds."""

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from bitbench.features.vptq.layout import (
    Doubles,
    Floats,
    LayerConfig,
    Outliers,
    Tensor,
    VptqLayer,
    pack_layout_indices,
)

# Main and residual entries: those of the kernel table, those of public models, and some that fill no index.
codebook_sizes = st.sampled_from(
    [
        (4096, 256),
        (4096, 512),
        (8192, 256),
        (8192, 512),
        (65536, 256),
        (65536, 4096),
        (4096, 0),
        (256, 0),
        (300, 33),
    ]
)


@st.composite
def layers(draw: st.DrawFn) -> VptqLayer:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups = draw(st.integers(1, 3))
    columns_per_group = draw(
        st.one_of(st.integers(1, 140), st.sampled_from([64, 128, 1024, 1025, 2100]))
    )
    outlier_columns = draw(st.integers(0, 5))
    return make_layer(
        rng,
        out_features=draw(st.integers(1, 45)),
        columns_per_group=columns_per_group,
        groups=groups,
        sizes=draw(codebook_sizes),
        outlier_columns=outlier_columns,
        outlier_vector=draw(st.sampled_from([4, 8, 6])),
        permuted=draw(st.booleans()),
        scaled=draw(st.booleans()),
        biased=draw(st.booleans()),
    )


def make_layer(
    rng: np.random.Generator,
    *,
    out_features: int,
    columns_per_group: int,
    groups: int = 1,
    sizes: tuple[int, int] = (4096, 256),
    outlier_columns: int = 0,
    outlier_vector: int = 4,
    permuted: bool = False,
    scaled: bool = False,
    biased: bool = False,
) -> VptqLayer:
    entries, residual_entries = sizes
    blocks, columns = -(-out_features // 8), groups * columns_per_group + outlier_columns
    shape = (groups, blocks, columns_per_group)

    def normal(*dimensions: int, spread: float = 1.0) -> Floats:
        return (spread * rng.normal(size=dimensions)).astype(np.float32)

    outliers = None
    if outlier_columns:
        places = (-(-out_features // outlier_vector), outlier_columns)
        outliers = Outliers(
            normal(64, outlier_vector, spread=3.0), rng.integers(0, 64, places).astype(np.uint16)
        )
    return VptqLayer(
        in_features=columns,
        out_features=out_features,
        centroids=normal(groups, entries, 8),
        indices=rng.integers(0, entries, shape).astype(np.uint16),
        residual_centroids=normal(groups, residual_entries, 8, spread=0.3)
        if residual_entries
        else None,
        residual_indices=rng.integers(0, residual_entries, shape).astype(np.uint16)
        if residual_entries
        else None,
        outliers=outliers,
        permutation=rng.permutation(columns) if permuted else None,
        weight_scale=rng.uniform(0.5, 2.0, columns).astype(np.float32) if scaled else None,
        weight_bias=normal(columns, spread=0.1) if scaled else None,
        bias=normal(out_features) if biased else None,
    )


def multiply(weight: Doubles, x: npt.NDArray[np.floating], bias: Floats | None = None) -> Doubles:
    """x W^T + bias in double precision: what a kernel is checked against."""
    product = x.astype(np.float64) @ weight.T
    return product if bias is None else product + bias.astype(np.float64)


def describe_vptq_layer(layer: VptqLayer) -> LayerConfig:
    groups, entries, vector = layer.centroids.shape
    residual = -1 if layer.residual_centroids is None else layer.residual_centroids.shape[1]
    outliers = layer.outliers
    return LayerConfig(
        in_features=layer.in_features,
        out_features=layer.out_features,
        vector_lens=[outliers.centroids.shape[1] if outliers else -1, vector],
        num_centroids=[len(outliers.centroids) if outliers else -1, entries],
        num_res_centroids=[-1, residual],
        group_num=groups,
        group_size=layer.indices.shape[2],
        outlier_size=outliers.indices.shape[1] if outliers else 0,
        indices_as_float=False,
        enable_norm=layer.weight_scale is not None,
        enable_perm=layer.permutation is not None,
        is_indice_packed=True,
        bias=layer.bias is not None,
    )


def layout_tensors(layer: VptqLayer) -> dict[str, Tensor]:
    """Name within the layer to what is stored: packed indices, everything else in half precision."""
    groups, entries, _ = layer.centroids.shape
    residual = layer.residual_centroids
    bits = _index_bits(entries), 0 if residual is None else _index_bits(residual.shape[1])
    found: dict[str, Tensor | None] = {
        "centroids.weight": layer.centroids.reshape(groups, -1),
        "res_centroids.weight": None if residual is None else residual.reshape(groups, -1),
        "weight_scale": layer.weight_scale,
        "weight_bias": layer.weight_bias,
        "bias": layer.bias,
    }
    if layer.outliers:
        found["outlier_centroids.weight"] = layer.outliers.centroids.reshape(1, -1)
    stored: dict[str, Tensor] = {
        name: value.astype(np.float16) for name, value in found.items() if value is not None
    }
    stored["indices"] = pack_layout_indices(layer.indices, layer.residual_indices, *bits)
    if layer.outliers:
        stored["outlier_indices"] = layer.outliers.indices[np.newaxis].view(np.int16)
    if layer.permutation is not None:
        stored["perm"] = layer.permutation.astype(np.uint16).view(np.int16)
    return stored


def _index_bits(entries: int) -> int:
    bits = entries.bit_length() - 1
    if entries != 1 << bits:
        raise ValueError(f"a codebook of {entries} entries has no whole number of bits per index")
    return bits
