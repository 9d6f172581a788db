"""The quantization of a published checkpoint, from its own configuration.

Each tool writes `quantization_config` in config.json in its own form. Older tools of NVIDIA write
only hf_quant_config.json. A value in an unusual form counts as unknown.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

from bitbench.study.recipe import COMPRESSED_TENSORS, format_scheme
from bitbench.util.model_files import read_model_json

FULL_BITS = 16  # of numbers that are not quantized
_METHOD = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
_ALIASES = {
    "intel/auto-round": "auto-round",
    "fbgemm_fp8": "fp8",
    "modelopt_fp4": "modelopt",
    "modelopt_mixed": "modelopt",
}
# Compressed-tensors first wrote the second.
_KEYS = ("quantization_config", "compression_config")
_MODELOPT_FILE = "hf_quant_config.json"
# Group sizes that the formats MXFP4 and NVFP4 define.
_MX_GROUP = 32
_NV_GROUP = 16

Kind = Literal["int", "float"]
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Numbers:
    """The stored type of a weight, an activation or an entry of the KV cache."""

    bits: int
    kind: Kind = "int"


@dataclass(frozen=True)
class Quantization:
    method: str  # in the tool's own spelling: compressed-tensors, gptq, awq, fp8, …
    weights: Numbers | None = None  # None: unknown, or not the same in all layers
    activations: Numbers | None = None  # None: the type that the model computes in, 16 bits
    group_size: int | None = None  # weights that share a scale. None: a row or a matrix
    block: tuple[int, int] | None = None  # rows and columns that share a scale
    kv_cache: Numbers | None = None
    is_sparse: bool = False
    is_static: bool = False  # one scale for all activations, determined beforehand

    @property
    def form(self) -> str:
        """The key of `planning/compatibility.yaml`, like `Recipe.form` for bitbench's variants."""
        sparse = "/sparse" if self.is_sparse else ""
        if self.weights is None:
            return self.method
        activations = self.activations or Numbers(FULL_BITS, self.weights.kind)
        numbers = format_scheme(
            self.weights.bits,
            self.weights.kind,
            activations.bits,
            activations.kind,
            group_size=self.group_size,
            has_blocks=self.block is not None,
            is_static=self.is_static,
        )
        return f"{self.method}/{numbers}{sparse}"

    @property
    def label(self) -> str:
        """The name in reports: w4a16-g128-awq, nvfp4-modelopt, or w8a8 for compressed-tensors."""
        if self.weights is None:
            return self.method
        name = self._numbers
        if self.block:
            name += f"-b{self.block[0]}x{self.block[1]}"
        if self.kv_cache:
            name += f"-kv{self.kv_cache.bits}"
        if self.is_sparse:
            name += "-sparse"
        if self.method == COMPRESSED_TENSORS or self.method in name.split("-"):
            return name
        return f"{name}-{self.method}"

    @property
    def _bits(self) -> str:
        weight_bits = self.weights.bits if self.weights else "?"
        return f"w{weight_bits}{self._activation_bits}"

    @property
    def _activation_bits(self) -> str:
        bits = self.activations.bits if self.activations else FULL_BITS
        return f"a{bits}"

    @property
    def _numbers(self) -> str:
        """The format's own name if it has one, else its bits."""
        format_name = {_NV_GROUP: "nvfp4", _MX_GROUP: "mxfp4"}.get(self.group_size or 0)
        if self.weights == Numbers(4, "float") and format_name:
            if self.activations == self.weights or format_name == "mxfp4":
                return format_name
            return f"{format_name}{self._activation_bits}"
        name = self._bits
        if self.weights and self.weights.kind == "float":
            name += f"-fp{self.weights.bits}"
        if self.group_size:
            name += f"-g{self.group_size}"
        return name


def read_quantization(folder: Path) -> Quantization | None:
    """Return a checkpoint's quantization, or None if it is not quantized.

    Raise ModelError if a file cannot be read.
    """
    config = read_model_json(folder / "config.json")
    text_config = get_config_object(config, "text_config")  # in a model that also sees
    for part in (config, text_config):
        for key in _KEYS:
            if section := get_config_object(part, key):
                return describe_quantization(section)
    modelopt = folder / _MODELOPT_FILE
    if not modelopt.is_file():
        return None
    return describe_quantization({"quant_method": "modelopt", **read_model_json(modelopt)})


def describe_quantization(config: Json) -> Quantization:
    """Return the quantization that the object of a tool describes."""
    method = config.get("quant_method")
    if isinstance(method, str):
        method = method.lower()
    else:
        method = COMPRESSED_TENSORS if "config_groups" in config else "unknown"
    method = _ALIASES.get(method, method)
    if not _METHOD.fullmatch(method):
        return Quantization("unknown")
    read = _READERS.get(method)
    return read(method, config) if read else Quantization(method)


def _parse_compressed_tensors(method: str, config: Json) -> Quantization:
    groups = get_config_object(config, "config_groups").values()
    kinds = {_parse_group(method, group) for group in groups if isinstance(group, dict)}
    kind = kinds.pop() if len(kinds) == 1 else Quantization(method)
    sparsity = get_config_object(config, "sparsity_config")
    has_sparse_format = str(sparsity.get("format", "")).startswith("sparse")
    is_sparse = has_sparse_format or sparsity.get("sparsity_structure") == "2:4"
    cache = _parse_numbers(get_config_object(config, "kv_cache_scheme"))
    return replace(kind, kv_cache=cache, is_sparse=is_sparse)


def _parse_group(method: str, group: Json) -> Quantization:
    weights = get_config_object(group, "weights")
    activations = get_config_object(group, "input_activations")
    return Quantization(
        method,
        _parse_numbers(weights),
        _parse_numbers(activations),
        _get_group_size(weights),
        _get_block(weights.get("block_structure")),
        is_static=activations.get("dynamic") is False,
    )


def _parse_gptq(method: str, config: Json) -> Quantization:
    """Return the quantization of GPTQ, or of AWQ, whose first tool used other keys."""
    bits = _get_bit_count(config, "bits") or _get_bit_count(config, "w_bit")
    group_size = _get_group_size(config) or _get_group_size(config, "q_group_size")
    return Quantization(method, _make_numbers(bits), group_size=group_size)


def _parse_fp8(method: str, config: Json) -> Quantization:
    return Quantization(method, _FP8, _FP8, block=_get_block(config.get("weight_block_size")))


def _parse_modelopt(method: str, config: Json) -> Quantization:
    section = {**config, **get_config_object(config, "quantization")}
    algorithm = str(section.get("quant_algo", "")).upper()
    weights, activations, group_size = _MODELOPT.get(algorithm, (None, None, None))
    if group_size is None:
        group_size = _get_group_size(section)
    cache = _MODELOPT_CACHE.get(str(section.get("kv_cache_quant_algo", "")).upper())
    if cache is None:
        cache = _parse_numbers(get_config_object(section, "kv_cache_scheme"))
    return Quantization(method, weights, activations, group_size, kv_cache=cache)


_FP8 = Numbers(8, "float")
_FP4 = Numbers(4, "float")
_INT8 = Numbers(8)
_INT4 = Numbers(4)
_MODELOPT: Mapping[str, tuple[Numbers, Numbers | None, int | None]] = {
    "FP8": (_FP8, _FP8, None),
    "FP8_PB_WO": (_FP8, None, None),
    "NVFP4": (_FP4, _FP4, _NV_GROUP),
    "NVFP4_AWQ": (_FP4, _FP4, _NV_GROUP),
    "MXFP8": (_FP8, _FP8, _MX_GROUP),
    "W4A16_AWQ": (_INT4, None, None),
    "W4A8_AWQ": (_INT4, _FP8, None),
    "W8A16": (_INT8, None, None),
    "W8A8_SQ_PER_CHANNEL": (_INT8, _INT8, None),
}
_MODELOPT_CACHE = {"FP8": _FP8, "NVFP4": _FP4, "INT8": _INT8}


def _parse_auto_round(method: str, config: Json) -> Quantization:
    bits = _get_bit_count(config, "bits")
    activation_bits = _get_bit_count(config, "act_bits")
    kind = _parse_kind(str(config.get("data_type", "int")))
    activations: Numbers | None = None
    if activation_bits and activation_bits < FULL_BITS:
        activations = Numbers(activation_bits, kind)
    return Quantization(method, _make_numbers(bits, kind), activations, _get_group_size(config))


_READERS: Mapping[str, Callable[[str, Json], Quantization]] = {
    COMPRESSED_TENSORS: _parse_compressed_tensors,
    "gptq": _parse_gptq,
    "awq": _parse_gptq,
    "fp8": _parse_fp8,
    "modelopt": _parse_modelopt,
    "mxfp4": lambda method, _: Quantization(method, _FP4, group_size=_MX_GROUP),
    "auto-round": _parse_auto_round,
}


def _parse_numbers(config: Json) -> Numbers | None:
    """Return the type of numbers that an object of compressed-tensors describes, or None."""
    return _make_numbers(
        _get_bit_count(config, "num_bits"), _parse_kind(str(config.get("type", "int")))
    )


def _make_numbers(bits: int | None, kind: Kind = "int") -> Numbers | None:
    return Numbers(bits, kind) if bits else None


def _parse_kind(word: str) -> Kind:
    return "float" if "f" in word.lower() else "int"


def _get_bit_count(config: Json, key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int and 1 <= value <= FULL_BITS else None


def _get_group_size(config: Json, key: str = "group_size") -> int | None:
    """Return the group size, or None for a whole row, which tools write as -1."""
    value = config.get(key)
    return value if _is_size(value) else None


def _is_size(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 < value < 2**20


def _get_block(value: object) -> tuple[int, int] | None:
    if not isinstance(value, list):
        return None
    sizes = list(filter(_is_size, value))
    return (sizes[0], sizes[1]) if len(sizes) == 2 else None


def get_config_object(content: Json, key: str) -> Json:
    """Return the object at a key, or {} if the value is missing or not an object."""
    value = content.get(key)
    return value if isinstance(value, dict) else {}
