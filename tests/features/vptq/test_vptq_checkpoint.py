"""VPTQ's public checkpoint layout: what we write comes back, and what others wrote is read as they meant it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitbench.features.vptq import layout
from bitbench.features.vptq.layout import (
    LayerConfig,
    Tensor,
    VptqLayer,
    find_layer_config,
    parse_vptq_layer,
)
from tests.features.vptq.vptq_layers import describe_vptq_layer, layout_tensors, make_layer


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(4096, 256), (65536, 256), (8192, 512), (256, 0), (16, 4096)]),
    st.integers(1, 3),
    st.booleans(),
    st.integers(1, 45),
)
def test_what_is_written_comes_back(
    seed: int, sizes: tuple[int, int], groups: int, complete: bool, out_features: int
) -> None:
    layer = make_layer(
        np.random.default_rng(seed),
        out_features=out_features,
        columns_per_group=7,
        groups=groups,
        sizes=sizes,
        outlier_columns=3 if complete else 0,
        permuted=complete,
        scaled=complete,
        biased=complete,
    )
    back = parse_vptq_layer(layout_tensors(layer), describe_vptq_layer(layer))
    np.testing.assert_allclose(
        layout.dequantize_layout(back), layout.dequantize_layout(layer), rtol=2e-3, atol=4e-3
    )
    assert (back.bias is None) != complete
    again = layout_tensors(back)
    for name, tensor in layout_tensors(layer).items():
        np.testing.assert_array_equal(again[name], tensor)


def public_layer(*, packed: bool, as_float: bool) -> tuple[dict[str, Tensor], LayerConfig]:
    """By hand, as documented: 65536/256, 10 outputs in vectors of 8, 5 columns of which 2 are outliers."""
    centroids = np.zeros((65536, 8), np.float16)
    centroids[40000] = np.arange(8)
    centroids[3] = 0.5
    residual = np.zeros((256, 8), np.float16)
    residual[200] = 0.25
    main = np.array([[[40000, 3, 3], [3, 40000, 0]]], np.uint16)
    second = np.array([[[200, 0, 200], [0, 0, 200]]], np.uint16)
    outliers = np.array([[[1, 0], [0, 1], [1, 1]]], np.int16)  # vectors of 4: three fill 10 outputs
    tensors: dict[str, Tensor] = {
        "centroids.weight": centroids.reshape(1, -1),
        "res_centroids.weight": residual.reshape(1, -1),
        "outlier_centroids.weight": np.array([[0, 0, 0, 0, 10, 20, 30, 40]], np.float16),
        "outlier_indices": outliers.view(np.float16) if as_float else outliers,
        "perm": np.array([4, 0, 1, 2, 3], np.int16 if packed else np.int64),
        "weight_scale": np.array([1, 2, 1, 1, 1], np.float16),
        "weight_bias": np.array([0, 0, 0, 0, 0.5], np.float16),
    }
    if packed:
        merged = [[200 << 16 | 40000, 3, 200 << 16 | 3], [3, 40000, 200 << 16]]
        words = [sum(value << 24 * place for place, value in enumerate(row)) for row in merged]
        tensors["indices"] = np.array(
            [[[word >> 32 * part & 0xFFFFFFFF for part in range(3)] for word in words]], np.uint32
        ).view(np.int32)
    else:
        tensors["indices"] = main.view(np.float16 if as_float else np.int16)
        tensors["res_indices"] = second.view(np.float16 if as_float else np.int16)
    config = LayerConfig(
        in_features=5,
        out_features=10,
        vector_lens=[4, 8],
        num_centroids=[2, 65536],
        num_res_centroids=[-1, 256],
        group_num=1,
        group_size=-1,
        outlier_size=2,
        indices_as_float=as_float,
        enable_norm=True,
        enable_perm=True,
        is_indice_packed=packed,
        bias=False,
    )
    return tensors, config


@pytest.mark.parametrize(("packed", "as_float"), [(True, False), (False, False), (False, True)])
def test_a_public_file_is_read_as_documented(packed: bool, as_float: bool) -> None:
    layer = parse_vptq_layer(*public_layer(packed=packed, as_float=as_float))
    ramp, half = np.arange(8.0), np.full(8, 0.5)
    # Stored order: columns 4 and 0 (outliers), then 1, 2, 3; the last six of 16 outputs are padding.
    wanted = np.zeros((10, 5))
    wanted[:, 4] = [10, 20, 30, 40, 0, 0, 0, 0, 10, 20]
    wanted[:, 0] = [0, 0, 0, 0, 10, 20, 30, 40, 10, 20]
    wanted[:8, 1], wanted[8:, 1] = ramp + 0.25, half[:2]
    wanted[:8, 2], wanted[8:, 2] = half, ramp[:2]
    wanted[:8, 3], wanted[8:, 3] = half + 0.25, 0.25
    wanted[:, 1] *= 2
    wanted[:, 4] += 0.5
    np.testing.assert_array_equal(layout.dequantize_layout(layer), wanted)


def test_a_layer_is_found_by_its_name_or_by_what_it_shares() -> None:
    own, shared = describe_vptq_layer(_plain(4)), describe_vptq_layer(_plain(6))
    config = {
        "config_for_layers": {"model.layers.0.q_proj": own},
        "shared_layer_config": {"up_proj": shared},
    }
    assert find_layer_config("model.layers.0.q_proj", config) == own  # type: ignore[arg-type]
    assert find_layer_config("model.layers.7.mlp.up_proj", config) == shared  # type: ignore[arg-type]
    assert find_layer_config("lm_head", config) is None  # type: ignore[arg-type]


def test_tensors_that_do_not_fit_are_named() -> None:
    tensors, config = layout_tensors(_plain(6)), describe_vptq_layer(_plain(6))
    with pytest.raises(
        ValueError, match=r"indices have the shape \(1, 1, 6\), but \(1, 3, 6\) follows"
    ):
        parse_vptq_layer(tensors, config | {"out_features": 20})  # type: ignore[arg-type]
    del tensors["res_centroids.weight"]
    with pytest.raises(ValueError, match=r"lacks res_centroids.weight"):
        parse_vptq_layer(tensors, config)


def test_a_codebook_must_fill_its_index() -> None:
    layer = make_layer(
        np.random.default_rng(0), out_features=8, columns_per_group=4, sizes=(300, 0)
    )
    with pytest.raises(ValueError, match="300 entries has no whole number of bits"):
        layout_tensors(layer)


def _plain(columns: int) -> VptqLayer:
    return make_layer(
        np.random.default_rng(0), out_features=8, columns_per_group=columns, sizes=(16, 4)
    )
