"""How somebody else's checkpoint is quantized, from its own configuration.

Each tool writes `quantization_config` in config.json in a form of its own; older ones of NVIDIA's write
hf_quant_config.json beside it and nothing else. What has another form than it usually has is unknown.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bitbench.study.recipe import COMPRESSED_TENSORS, scheme_form
from bitbench.util.model_files import read_model_json

FULL_BITS = 16  # of what is not quantized
_METHOD = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
_ALIASES = {
    "intel/auto-round": "auto-round",
    "fbgemm_fp8": "fp8",
    "modelopt_fp4": "modelopt",
    "modelopt_mixed": "modelopt",
}
_KEYS = (
    "quantization_config",
    "compression_config",
)  # the second is what compressed-tensors wrote at first
_MODELOPT_FILE = "hf_quant_config.json"
_MX_GROUP, _NV_GROUP = 32, 16  # what the formats MXFP4 and NVFP4 are defined by

Kind = Literal["int", "float"]
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Numbers:
    """What a weight, an activation or an entry of the KV cache is stored as."""

    bits: int
    kind: Kind = "int"


@dataclass(frozen=True)
class Quantization:
    method: str  # the tool's own word: compressed-tensors, gptq, awq, fp8, …
    weights: Numbers | None = None  # None: unknown, or not the same in all layers
    activations: Numbers | None = None  # None: as the model computes, in 16 bits
    group_size: int | None = None  # weights that share a scale; None: a row or a whole matrix does
    block: tuple[int, int] | None = None  # rows and columns that share a scale
    kv_cache: Numbers | None = None
    is_sparse: bool = False
    is_static: bool = False  # one scale for all activations, found beforehand

    @property
    def form(self) -> str:
        """The key of `planning/compatibility.yaml`, as `Recipe.form` is for what bitbench makes."""
        sparse = "/sparse" if self.is_sparse else ""
        if self.weights is None:
            return self.method
        activations = self.activations or Numbers(FULL_BITS, self.weights.kind)
        numbers = scheme_form(
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
        """What reports call it: w4a16-g128-awq, w8a8 (compressed-tensors goes without saying), nvfp4-modelopt."""
        if self.weights is None:
            return self.method
        shape = f"-b{self.block[0]}x{self.block[1]}" if self.block else ""
        cache = f"-kv{self.kv_cache.bits}" if self.kv_cache else ""
        sparse = "-sparse" if self.is_sparse else ""
        parts = f"{self._numbers}{shape}{cache}{sparse}"
        is_said = self.method == COMPRESSED_TENSORS or self.method in parts.split("-")
        return parts if is_said else f"{parts}-{self.method}"

    @property
    def _bits(self) -> str:
        weights, activations = self.weights, self.activations
        return (
            f"w{weights.bits if weights else '?'}a{activations.bits if activations else FULL_BITS}"
        )

    @property
    def _numbers(self) -> str:
        """By the format's own name where it has one."""
        named = {_NV_GROUP: "nvfp4", _MX_GROUP: "mxfp4"}.get(self.group_size or 0)
        if self.weights == Numbers(4, "float") and named:
            return (
                named
                if self.activations == self.weights or named == "mxfp4"
                else f"{named}{self._bits[2:]}"
            )
        kind = f"-fp{self.weights.bits}" if self.weights and self.weights.kind == "float" else ""
        return f"{self._bits}{kind}{f'-g{self.group_size}' if self.group_size else ''}"


def read_quantization(folder: Path) -> Quantization | None:
    """None for a model that is not quantized. Raises ModelError where a file cannot be read."""
    config = read_model_json(folder / "config.json")
    nested = quantized_object_at(config, "text_config")  # of a model that also sees
    named = next(
        (
            found
            for source in (config, nested)
            for key in _KEYS
            if (found := quantized_object_at(source, key))
        ),
        None,
    )
    if named is not None:
        return describe_quantization(named)
    beside = folder / _MODELOPT_FILE
    return (
        describe_quantization({"quant_method": "modelopt", **read_model_json(beside)})
        if beside.is_file()
        else None
    )


def describe_quantization(config: Json) -> Quantization:
    """From the object that a tool writes."""
    said = config.get("quant_method")
    method = (
        said.lower()
        if isinstance(said, str)
        else COMPRESSED_TENSORS
        if "config_groups" in config
        else "unknown"
    )
    method = _ALIASES.get(method, method)
    if not _METHOD.fullmatch(method):
        return Quantization("unknown")
    read = _READERS.get(method)
    return read(method, config) if read else Quantization(method)


def _compressed_tensors(method: str, config: Json) -> Quantization:
    groups = [
        group
        for group in quantized_object_at(config, "config_groups").values()
        if isinstance(group, dict)
    ]
    found = {_of_group(method, group) for group in groups}
    sparsity = quantized_object_at(config, "sparsity_config")
    is_sparse = (
        str(sparsity.get("format", "")).startswith("sparse")
        or sparsity.get("sparsity_structure") == "2:4"
    )
    only = found.pop() if len(found) == 1 else Quantization(method)
    cache = _numbers(quantized_object_at(config, "kv_cache_scheme"))
    return replace(only, kv_cache=cache, is_sparse=is_sparse)


def _of_group(method: str, group: Json) -> Quantization:
    weights = quantized_object_at(group, "weights")
    return Quantization(
        method,
        _numbers(weights),
        _numbers(quantized_object_at(group, "input_activations")),
        _group_size(weights),
        _block(weights.get("block_structure")),
        is_static=quantized_object_at(group, "input_activations").get("dynamic") is False,
    )


def _gptq(method: str, config: Json) -> Quantization:
    """Also AWQ, whose first tool wrote other words."""
    bits = _bits(config, "bits") or _bits(config, "w_bit")
    return Quantization(
        method,
        Numbers(bits) if bits else None,
        group_size=_group_size(config) or _group_size(config, "q_group_size"),
    )


def _fp8(method: str, config: Json) -> Quantization:
    return Quantization(method, _FP8, _FP8, block=_block(config.get("weight_block_size")))


def _modelopt(method: str, config: Json) -> Quantization:
    said = {**config, **quantized_object_at(config, "quantization")}
    algorithm = str(said.get("quant_algo", "")).upper()
    weights, activations, group = _MODELOPT.get(algorithm, (None, None, None))
    cache = _MODELOPT_CACHE.get(str(said.get("kv_cache_quant_algo", "")).upper()) or _numbers(
        quantized_object_at(said, "kv_cache_scheme")
    )
    return Quantization(
        method, weights, activations, _group_size(said) if group is None else group, kv_cache=cache
    )


_FP8, _FP4, _INT8, _INT4 = Numbers(8, "float"), Numbers(4, "float"), Numbers(8), Numbers(4)
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


def _auto_round(method: str, config: Json) -> Quantization:
    bits, activation_bits = _bits(config, "bits"), _bits(config, "act_bits")
    kind = _kind(str(config.get("data_type", "int")))
    activations = (
        Numbers(activation_bits, kind) if activation_bits and activation_bits < FULL_BITS else None
    )
    return Quantization(
        method, Numbers(bits, kind) if bits else None, activations, _group_size(config)
    )


_READERS: Mapping[str, Callable[[str, Json], Quantization]] = {
    COMPRESSED_TENSORS: _compressed_tensors,
    "gptq": _gptq,
    "awq": _gptq,
    "fp8": _fp8,
    "modelopt": _modelopt,
    "mxfp4": lambda method, _: Quantization(method, _FP4, group_size=_MX_GROUP),
    "auto-round": _auto_round,
}


def _numbers(config: Json) -> Numbers | None:
    """As compressed-tensors writes them."""
    bits = _bits(config, "num_bits")
    return Numbers(bits, _kind(str(config.get("type", "int")))) if bits else None


def _kind(word: str) -> Kind:
    return "float" if "f" in word.lower() else "int"


def _bits(config: Json, key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int and 1 <= value <= FULL_BITS else None


def _group_size(config: Json, key: str = "group_size") -> int | None:
    """-1 stands for a whole row."""
    value = config.get(key)
    return value if type(value) is int and 0 < value < 2**20 else None


def _block(value: object) -> tuple[int, int] | None:
    sizes = (
        [size for size in value if type(size) is int and 0 < size < 2**20]
        if isinstance(value, list)
        else []
    )
    return (sizes[0], sizes[1]) if len(sizes) == 2 else None


def quantized_object_at(content: Json, key: str) -> Json:
    value = content.get(key)
    return value if isinstance(value, dict) else {}
