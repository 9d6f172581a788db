"""Broken checkpoints, refused by the names of their tensors: small real safetensors files, read without torch."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from bitbench.quantize.defects import find_defects, find_ignored_layers
from bitbench.util.errors import ExitCode, ModelError
from bitbench.util.model_files import StoredTensor, make_safetensors_header
from tests.command_line import bitbench

Array = npt.NDArray[np.generic]
LAYER = "model.layers.0.mlp.down_proj"
EXPERT = "model.layers.0.mlp.experts"
NAN_BITS = {
    "F32": 0x7FC00000,
    "BF16": 0x7FC0,
    "F16": 0x7E00,
    "F8_E5M2": 0x7E,
    "F8_E4M3": 0xFF,
    "F8_E8M0": 0xFF,
}
INFINITE_BITS = {"F32": 0xFF800000, "BF16": 0x7F80, "F16": 0x7C00, "F8_E5M2": 0x7C}
ONE_BITS = {
    "F32": 0x3F800000,
    "BF16": 0x3F80,
    "F16": 0x3C00,
    "F8_E5M2": 0x3C,
    "F8_E4M3": 0x38,
    "F8_E8M0": 0x7F,
}
UNSIGNED = {"F32": "<u4", "BF16": "<u2", "F16": "<u2"}


def bits(dtype: str, *values: int) -> tuple[str, Array]:
    return dtype, np.array(values, dtype=UNSIGNED.get(dtype, "u1"))


def write(folder: Path, tensors: dict[str, tuple[str, Array]], quantization: object = None) -> Path:
    folder.mkdir(exist_ok=True)
    header = {
        name: StoredTensor(dtype, values.shape, values.nbytes)
        for name, (dtype, values) in tensors.items()
    }
    content = b"".join(values.tobytes() for _, values in tensors.values())
    (folder / "model.safetensors").write_bytes(make_safetensors_header(header) + content)
    (folder / "config.json").write_text(
        json.dumps({"quantization_config": quantization} if quantization else {})
    )
    return folder


def sound(*, experts: int = 0) -> dict[str, tuple[str, Array]]:
    tensors = {
        "model.norm.weight": bits("BF16", 0, ONE_BITS["BF16"]),
        f"{LAYER}.weight": ("I8", np.zeros((2, 4), np.int8)),
        f"{LAYER}.weight_scale": bits("BF16", *[ONE_BITS["BF16"]] * 2),
    }
    for expert in range(experts):
        tensors[f"{EXPERT}.{expert}.up_proj.weight"] = bits("F8_E4M3", 1, 2)
        tensors[f"{EXPERT}.{expert}.up_proj.weight_scale"] = bits("F32", ONE_BITS["F32"])
        tensors[f"{EXPERT}.{expert}.up_proj.input_scale"] = bits("F32", ONE_BITS["F32"] + expert)
    return tensors


def told(folder: Path, ignored: tuple[str, ...] | None = None) -> list[str]:
    return [str(defect) for defect in find_defects(folder, ignored)]


def test_a_sound_checkpoint_has_none(tmp_path: Path) -> None:
    assert told(write(tmp_path, sound(experts=4)), ("lm_head",)) == []


@pytest.mark.parametrize("dtype", NAN_BITS)
def test_a_scale_that_is_nan_is_named_in_every_type(tmp_path: Path, dtype: str) -> None:
    tensors = sound() | {
        f"{LAYER}.weight_scale": bits(dtype, ONE_BITS[dtype], NAN_BITS[dtype], ONE_BITS[dtype])
    }
    assert told(write(tmp_path, tensors)) == [
        f"{LAYER}.weight_scale has 1 of 3 values that are NaN"
    ]


@pytest.mark.parametrize("dtype", INFINITE_BITS)
def test_a_scale_that_is_infinite_is_named_in_every_type(tmp_path: Path, dtype: str) -> None:
    tensors = sound() | {
        f"{LAYER}.weight_scale": bits(dtype, INFINITE_BITS[dtype], ONE_BITS[dtype])
    }
    assert told(write(tmp_path, tensors)) == [
        f"{LAYER}.weight_scale has 1 of 2 values that are infinite"
    ]


@pytest.mark.parametrize(
    "name", ["weight_scale", "scales", "weight_scale_inv", "weight_scale_2", "k_scale"]
)
def test_a_scale_that_is_zero_is_named_and_other_zeros_are_not(tmp_path: Path, name: str) -> None:
    tensors = sound() | {f"{LAYER}.{name}": bits("F16", 0x8000)}  # minus zero
    assert told(write(tmp_path, tensors)) == [f"{LAYER}.{name} is zero"]


def test_scales_without_a_sign_have_no_zero_and_may_be_stored_as_bytes(tmp_path: Path) -> None:
    tensors = sound() | {f"{LAYER}_scales": ("U8", np.array([0, 127, 255], np.uint8))}
    assert told(write(tmp_path, tensors)) == [f"{LAYER}_scales has 1 of 3 values that are NaN"]


def test_weights_that_are_nan_are_named_too(tmp_path: Path) -> None:
    tensors = sound() | {"model.norm.weight": bits("BF16", ONE_BITS["BF16"], NAN_BITS["BF16"])}
    assert told(write(tmp_path, tensors)) == ["model.norm.weight has 1 of 2 values that are NaN"]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (0, "is zero"),
        (NAN_BITS["F32"], "is NaN"),
        (0x00001234, "is 6.5e-42, where the median of all experts is 1"),
    ],
)
def test_an_expert_that_calibration_never_reached_is_named(
    tmp_path: Path, value: int, what: str
) -> None:
    name = f"{EXPERT}.2.up_proj.input_scale"
    tensors = sound(experts=4) | {name: bits("F32", value)}
    assert told(write(tmp_path, tensors)) == [f"{name} {what}: calibration never reached expert 2"]


def test_an_expert_without_the_scale_that_others_have_is_named(tmp_path: Path) -> None:
    tensors = sound(experts=4)
    del tensors[f"{EXPERT}.3.up_proj.input_scale"]
    assert told(write(tmp_path, tensors)) == [
        f"{EXPERT}.3.up_proj.input_scale is missing, and other experts have it: calibration never reached expert 3"
    ]


def test_layers_left_unquantized_against_the_recipe_are_named(tmp_path: Path) -> None:
    dense: tuple[str, Array] = ("BF16", np.zeros((2, 4), np.uint16))
    tensors = sound() | {
        "model.layers.1.mlp.down_proj.weight": dense,
        "model.layers.1.mlp.gate.weight": dense,  # a router
        "model.layers.1.mlp.experts.gate_up_proj": ("BF16", np.zeros((2, 2, 4), np.uint16)),
        "model.embed_tokens.weight": dense,
        "lm_head.weight": dense,
    }
    write(tmp_path, tensors)
    assert told(tmp_path) == []
    assert told(tmp_path, ("lm_head", "re:.*experts")) == [
        "model.layers.1.mlp.down_proj.weight was left unquantized (BF16), and the recipe does not ignore it"
    ]
    assert told(tmp_path, ("re:.*down_proj",)) == [
        "model.layers.1.mlp.experts.gate_up_proj was left unquantized (BF16), and the recipe does not ignore it"
    ]


@pytest.mark.parametrize(
    ("said", "ignored"),
    [
        ({"quant_method": "gptq", "bits": 4}, None),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"targets": ["re:.*q_proj"]}},
            },
            None,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"targets": ["Linear"]}},
                "ignore": ["lm_head"],
            },
            ("lm_head",),
        ),
        (None, None),
    ],
)
def test_what_a_checkpoint_leaves_out_is_read_from_its_configuration(
    tmp_path: Path, said: object, ignored: tuple[str, ...] | None
) -> None:
    assert find_ignored_layers(write(tmp_path, sound(), said)) == ignored


def test_the_command_lists_defects_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path / "good", sound(experts=2))
    answer = bitbench(capsys, "quantize", "--check", str(good))
    assert (answer.exit_code, answer.out) == (ExitCode.DONE, f"{good}: no defects found\n")
    many = {f"model.layers.{n}.mlp.up_proj.weight_scale": bits("BF16", 0) for n in range(25)}
    answer = bitbench(capsys, "quantize", "--check", str(write(tmp_path / "bad", sound() | many)))
    assert answer.exit_code == ExitCode.FAILED
    assert "model.layers.0.mlp.up_proj.weight_scale is zero\n" in answer.out
    assert answer.out.endswith("and 5 more\n")


def test_a_folder_without_safetensors_and_a_command_without_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="has no safetensors files"):
        find_defects(tmp_path, None)
    answer = bitbench(capsys, "quantize", "tiny")
    assert answer.exit_code == ExitCode.USAGE
    assert "give a model and --recipe NAME, or --check DIR" in answer.err
