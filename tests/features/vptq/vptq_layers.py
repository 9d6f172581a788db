"""Layers to test with: small, odd and complete."""

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from bitbench.features.vptq.layout import Doubles, Floats, Outliers, VptqLayer

# Main and residual entries: those of the kernel table, those of public models, and some that fill no index.
codebook_sizes = st.sampled_from(
    [(4096, 256), (4096, 512), (8192, 256), (8192, 512), (65536, 256), (65536, 4096), (4096, 0), (256, 0), (300, 33)]
)


@st.composite
def layers(draw: st.DrawFn) -> VptqLayer:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups = draw(st.integers(1, 3))
    columns_per_group = draw(st.one_of(st.integers(1, 140), st.sampled_from([64, 128, 1024, 1025, 2100])))
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
        outliers = Outliers(normal(64, outlier_vector, spread=3.0), rng.integers(0, 64, places).astype(np.uint16))
    return VptqLayer(
        in_features=columns,
        out_features=out_features,
        centroids=normal(groups, entries, 8),
        indices=rng.integers(0, entries, shape).astype(np.uint16),
        residual_centroids=normal(groups, residual_entries, 8, spread=0.3) if residual_entries else None,
        residual_indices=rng.integers(0, residual_entries, shape).astype(np.uint16) if residual_entries else None,
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
