"""What each tool writes about a checkpoint that it quantized, in its own words."""

import json
from pathlib import Path
from typing import Any

import pytest

from bitbench.models.quantized import Numbers, describe_quantization, read_quantization


def compressed(
    weights: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": "x",
        "config_groups": {"group_0": group},
        **more,
    }


INT8, FP8 = {"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "float"}
FP4 = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}

CONFIGS: list[tuple[dict[str, Any], str, str]] = [
    (
        compressed({**INT8, "strategy": "channel"}, {**INT8, "dynamic": True, "strategy": "token"}),
        "w8a8",
        "compressed-tensors/w8a8-int",
    ),
    (
        compressed({"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group"}),
        "w4a16-g128",
        "compressed-tensors/w4a16-int",
    ),
    (compressed(FP8, FP8, kv_cache_scheme=FP8), "w8a8-fp8-kv8", "compressed-tensors/w8a8-float"),
    (
        compressed({**FP8, "strategy": "block", "block_structure": [128, 128]}, FP8),
        "w8a8-fp8-b128x128",
        "compressed-tensors/w8a8-float/block",
    ),
    (
        compressed(FP8, {**FP8, "strategy": "tensor", "dynamic": False}),
        "w8a8-fp8",
        "compressed-tensors/w8a8-float/static",
    ),
    (compressed(FP4, FP4), "nvfp4", "compressed-tensors/w4a4-float/nvfp4"),
    (compressed(FP4), "nvfp4a16", "compressed-tensors/w4a16-float/nvfp4"),
    (
        compressed(
            INT8, INT8, sparsity_config={"format": "sparse-24-bitmask", "sparsity_structure": "2:4"}
        ),
        "w8a8-sparse",
        "compressed-tensors/w8a8-int/sparse",
    ),
    (
        {"config_groups": {"a": {"weights": INT8}, "b": {"weights": FP8}}},
        "compressed-tensors",
        "compressed-tensors",
    ),
    (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True},
        "w4a16-g128-gptq",
        "gptq/w4a16-int",
    ),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "w8a16-gptq", "gptq/w8a16-int"),
    (
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 128,
            "zero_point": True,
            "version": "gemm",
        },
        "w4a16-g128-awq",
        "awq/w4a16-int",
    ),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "w4a16-g64-awq", "awq/w4a16-int"),
    (
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "fmt": "e4m3",
        },
        "w8a8-fp8-b128x128",
        "fp8/w8a8-float/block",
    ),
    ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "w8a8-fp8", "fp8/w8a8-float"),
    (
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        "w8a8-fp8-kv8-modelopt",
        "modelopt/w8a8-float",
    ),
    (
        {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "group_size": 16}},
        "nvfp4-modelopt",
        "modelopt/w4a4-float/nvfp4",
    ),
    (
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ", "group_size": 128},
        "w4a8-g128-modelopt",
        "modelopt/w4afp8-int",
    ),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "modelopt", "modelopt"),
    (
        {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
        "mxfp4",
        "mxfp4/w4a16-float/mxfp4",
    ),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", "bitsandbytes"),
    ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, "torchao", "torchao"),
    (
        {
            "quant_method": "auto-round",
            "bits": 4,
            "group_size": 128,
            "data_type": "int",
            "act_bits": 16,
        },
        "w4a16-g128-auto-round",
        "auto-round/w4a16-int",
    ),
    (
        {"quant_method": "intel/auto-round", "bits": 2, "group_size": 32},
        "w2a16-g32-auto-round",
        "auto-round/w2a16-int",
    ),
    ({"quant_method": "vptq", "config_for_layers": {}}, "vptq", "vptq"),
]


@pytest.mark.parametrize(
    ("config", "label", "form"), CONFIGS, ids=[label for _, label, _ in CONFIGS]
)
def test_a_checkpoint_is_named_by_what_it_holds(
    config: dict[str, Any], label: str, form: str
) -> None:
    found = describe_quantization(config)
    assert (found.label, found.form) == (label, form)


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "awq", "bits": "4", "group_size": True},
        {
            "quant_method": "compressed-tensors",
            "config_groups": [1, {"a": 2}],
            "sparsity_config": 3,
        },
        {"quant_method": "modelopt", "quantization": None, "quant_algo": 3},
        {"quant_method": "fp8", "weight_block_size": [128, "x"]},
    ],
)
def test_what_has_an_unusual_form_is_unknown(config: dict[str, Any]) -> None:
    assert describe_quantization(config).block is None
    assert describe_quantization(config).method == config["quant_method"]


@pytest.mark.parametrize("method", ["../../x", "a" * 1000, "\x1b[31m", "", None, 4, ["awq"]])
def test_a_strangers_word_for_the_method_is_not_repeated(method: object) -> None:
    assert describe_quantization({"quant_method": method}).label == "unknown"


def test_where_it_is_looked_for(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    assert read_quantization(tmp_path) is None
    config.write_text(
        json.dumps({"text_config": {"quantization_config": {"quant_method": "gptq", "bits": 4}}})
    )
    found = read_quantization(tmp_path)
    assert found is not None
    assert found.weights == Numbers(4)
    config.write_text("{}")
    beside = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    found = read_quantization(tmp_path)
    assert found is not None
    assert (found.label, found.kv_cache) == ("w8a8-fp8-kv8-modelopt", Numbers(8, "float"))
