"""The way a model is compressed: a list of named steps, or a backend. Written as a short YAML
file.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from bitbench.study.base import Fraction, Spec
from bitbench.study.study import Argument, Name
from bitbench.study.variant import DENSE, AtLoad, find_tensor_type

Option = Argument | tuple[str, ...]
COMPRESSED_TENSORS = "compressed-tensors"  # the format that llm-compressor writes

# Types that llama-quantize makes without an importance matrix. A file has the type of most of its
# tensors. The converter writes the two float types.
DENSE_GGUF_TYPES = ("BF16", "F16")
GGUF_TYPES = (
    *(
        *DENSE_GGUF_TYPES,
        "Q8_0",
        "Q6_K",
        "Q5_K_M",
        "Q5_K_S",
        "Q5_1",
        "Q5_0",
        "Q4_K_M",
        "Q4_K_S",
        "Q4_1",
        "Q4_0",
    ),
    *("IQ4_NL", "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
)
# Types that llama-quantize makes only with an importance matrix.
IMATRIX_GGUF_TYPES = (
    "IQ3_M",
    "IQ3_S",
    "IQ3_XS",
    "IQ3_XXS",
    "IQ2_M",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "IQ1_M",
    "IQ1_S",
)
DENSE_OPENVINO_TYPE = "bf16"
OPENVINO_TYPES = (DENSE_OPENVINO_TYPE, "int8", "int4")
# Formats that compressed-tensors knows by name, and their meaning for a layer. They also define how
# scales are shared.
PresetName = Literal[
    "FP8", "FP8_BLOCK", "NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "MXFP8", "W4AFP8"
]
_PRESETS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "FP8": {"type": "float", "weight_bits": 8, "activation_bits": 8},
        "FP8_BLOCK": {"type": "float", "weight_bits": 8, "activation_bits": 8},
        "NVFP4": {"type": "float", "weight_bits": 4, "activation_bits": 4, "group_size": 16},
        "NVFP4A16": {"type": "float", "weight_bits": 4, "activation_bits": 16, "group_size": 16},
        "MXFP4": {"type": "float", "weight_bits": 4, "activation_bits": 4, "group_size": 32},
        "MXFP4A16": {"type": "float", "weight_bits": 4, "activation_bits": 16, "group_size": 32},
        "MXFP8": {"type": "float", "weight_bits": 8, "activation_bits": 8, "group_size": 32},
        "W4AFP8": {"type": "int", "weight_bits": 4, "activation_bits": 8, "group_size": 128},
    }
)
_CALIBRATED_PRESETS = ("FP8", "NVFP4")  # one scale for all activations, found beforehand
_BITS = re.compile(r"(?:fp|int|q)(\d)")  # in the name of a format: Q4_K_M, int8, mxfp8
# Group sizes fixed by the specifications of NVFP4, and of MXFP4 and MXFP8.
_NV_GROUP = 16
_MX_GROUP = 32


class Backend(StrEnum):
    """A backend of the core. Features add others, whose recipes have only `options`."""

    NONE = "none"  # the model as it is
    LLMCOMPRESSOR = "llmcompressor"  # steps below, in the quantize environment
    GGUF = "gguf"  # llama.cpp's own tools
    OPENVINO = "openvino"  # optimum-intel and nncf, in the environment of that engine
    ENGINE = "engine"  # the engine compresses while it loads, as `options` define


class Scheme(Spec):
    """The format of the numbers of a linear layer after compression."""

    preset: PresetName | None = Field(
        default=None,
        description="a format of compressed-tensors by its name, instead of the fields from here "
        "to symmetric",
    )
    weight_bits: Literal[2, 3, 4, 8]
    activation_bits: Literal[4, 8, 16] = Field(
        default=16, description="8: rounded per token while it runs"
    )
    type: Literal["int", "float"] = "int"
    group_size: int | None = Field(
        default=None,
        ge=16,
        description="weights of a row that share a scale; default: one scale per row",
    )
    symmetric: bool = Field(
        default=True, description="false: a zero point is stored with each scale"
    )
    kv_cache: Literal["fp8"] | None = Field(
        default=None, description="fp8: scales for a KV cache of 8-bit floats are stored, too"
    )
    ignore: tuple[str, ...] = Field(
        default=("lm_head",), description="layers to skip: a name, or re: and a pattern"
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("preset") not in _PRESETS:
            return value
        preset = _PRESETS[value["preset"]]
        for name, content in preset.items():
            if name in value and value[name] != content:
                raise ValueError(
                    f"preset: {value['preset']} means {name}: {content}; remove {name}"
                )
        return {**value, **preset}

    @model_validator(mode="after")
    def _check_float(self) -> "Scheme":
        if self.preset is not None:
            if not self.symmetric:
                raise ValueError(
                    f"preset: {self.preset} has no zero points; remove symmetric: false"
                )
            return self
        if self.type == "float" and (
            self.weight_bits != 8 or self.group_size is not None or not self.symmetric
        ):
            raise ValueError(
                "type: float goes with weight_bits: 8, symmetric: true and no group_size, or with "
                "a preset"
            )
        if self.activation_bits == 4:
            raise ValueError("activation_bits: 4 goes with a preset, such as NVFP4")
        return self

    @property
    def needs_calibration(self) -> bool:
        """Return True if rounding needs a text for the scales of activations or of the KV cache."""
        return self.preset in _CALIBRATED_PRESETS or self.kv_cache is not None

    @property
    def form(self) -> str:
        activation_type: str = self.type
        if self.preset == "W4AFP8":
            activation_type = "float"
        return format_scheme(
            self.weight_bits,
            self.type,
            self.activation_bits,
            activation_type,
            group_size=self.group_size,
            has_blocks=self.preset == "FP8_BLOCK",
            is_static=self.preset == "FP8",
        )


def format_scheme(
    weight_bits: int,
    weight_type: str,
    activation_bits: int,
    activation_type: str,
    *,
    group_size: int | None = None,
    has_blocks: bool = False,
    is_static: bool = False,
) -> str:
    """Return the part of a form that describes the numbers of a layer.

    Examples are `w8a8-int`, and `w4afp8-int` if only activations are floats. For floats it also
    tells what shares a scale: `w8a8-float/block`, `w4a4-float/nvfp4`.
    """
    is_mixed = activation_type == "float" and weight_type == "int" and activation_bits < 16
    activations = str(activation_bits)
    if is_mixed:
        activations = f"fp{activation_bits}"
    numbers = f"w{weight_bits}a{activations}-{weight_type}"
    if weight_type != "float":
        return numbers
    if has_blocks:
        return f"{numbers}/block"
    if group_size == _NV_GROUP:
        return f"{numbers}/nvfp{weight_bits}"
    if group_size == _MX_GROUP:
        return f"{numbers}/mxfp{weight_bits}"
    if is_static:
        return f"{numbers}/static"
    return numbers


class SmoothQuant(Spec):
    """Moves outliers of the activations into the weights."""

    step: Literal["smoothquant"]
    strength: Fraction = Field(
        default=0.8, ge=0, le=1, description="0: weights stay; 1: activations become even"
    )


class SparseGpt(Spec):
    """Sets the weights that matter least to zero and corrects the others."""

    step: Literal["sparsegpt"]
    sparsity: Fraction = Field(
        default=0.5, gt=0, lt=1, description="share of the weights that become zero"
    )
    mask: str = Field(
        default="2:4", pattern=r"^\d+:\d+$", description="N:M, or 0:0 for zeros anywhere"
    )
    ignore: tuple[str, ...] = ("lm_head",)


class Awq(Spec):
    """Scales the most important channels before rounding. A `quantize` step must follow."""

    step: Literal["awq"]
    # At least 3: llm-compressor divides by the number of points minus two.
    grid: int = Field(
        default=20, ge=3, le=200, description="scales tried per layer; more take longer"
    )
    duo_scaling: bool = Field(
        default=True, description="consider the weights too, not only the activations"
    )


class Gptq(Scheme):
    """Rounds weights one column at a time and corrects the columns that follow."""

    step: Literal["gptq"]
    block_size: int = Field(default=128, ge=1, description="columns per pass")
    dampening: Fraction = Field(
        default=0.01, gt=0, lt=1, description="raise it when a layer cannot be solved"
    )


class Quantize(Scheme):
    """Rounds each weight to the nearest value."""

    step: Literal["quantize"]


Step = Annotated[SmoothQuant | SparseGpt | Awq | Gptq | Quantize, Field(discriminator="step")]


class CalibrationNeed(Spec):
    """The text that the steps read: how much, and from which source."""

    samples: int = Field(default=64, ge=1, le=100_000, description="pieces of text")
    tokens: int = Field(default=512, ge=16, le=1_000_000, description="length of a sample")
    source: Path | None = Field(
        default=None, description="text file, folder or JSONL; default: text that ships with Python"
    )


class TensorRule(Spec):
    """A type for the tensors of a GGUF file whose names match a pattern."""

    match: str = Field(
        min_length=1,
        max_length=10_000,
        description="a regular expression, looked for anywhere in a tensor's name",
    )
    type: str = Field(description="q4_0, q4_K, q6_K, q8_0, bf16, …")

    @field_validator("match")
    @classmethod
    def _check_pattern(cls, value: str) -> str:
        if re.search(r"[\s=A-Z]", value):
            raise ValueError(
                f"{value[:80]!r}: llama-quantize reads no pattern with spaces, = or capital letters"
            )
        try:
            re.compile(value)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{value[:80]!r} is not a regular expression: {error}") from error
        return value

    @field_validator("type")
    @classmethod
    def _normalize_type(cls, value: str) -> str:
        return find_tensor_type(value).name


def _is_reading_text(step: Step) -> bool:
    return not isinstance(step, Quantize) or step.needs_calibration


class Recipe(Spec):
    """A way to compress a model."""

    name: Name = Field(description="as studies, variants and reports call it")
    description: str = Field(default="", description="a line for `bitbench recipes`")
    backend: Backend = Field(default=Backend.LLMCOMPRESSOR, description="what creates the variant")
    steps: tuple[Step, ...] = Field(
        default=(), description="what llm-compressor does, in this order"
    )
    calibration: CalibrationNeed = Field(
        default=CalibrationNeed(), description="text that the steps look at"
    )
    options: dict[str, Option] = Field(
        default_factory=dict, description="for all backends but none and llmcompressor"
    )
    tensors: tuple[TensorRule, ...] = Field(
        default=(),
        description="for the backend gguf: types of tensors by name, the first that matches "
        "counts; what matches none "
        "gets what `options: {type: …}` means for it",
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if "--" in value:
            raise ValueError("a recipe's name may not contain `--`")
        return value

    @model_validator(mode="after")
    def _check_tensors(self) -> "Recipe":
        if self.tensors and (
            self.backend is not Backend.GGUF or self.gguf_type in DENSE_GGUF_TYPES
        ):
            raise ValueError(
                "`tensors` are for backend: gguf with a type that quantizes, such as Q8_0"
            )
        return self

    @model_validator(mode="after")
    def _check_backend(self) -> "Recipe":
        if self.backend is Backend.LLMCOMPRESSOR:
            self._check_steps()
            return self
        if self.steps:
            raise ValueError(f"`steps` are for backend: llmcompressor, not for {self.backend}")
        if self.options and self.backend is Backend.NONE:
            raise ValueError("`options` are for backends that make something; remove them")
        if self.backend is Backend.ENGINE and self.options.keys() != AtLoad.model_fields.keys():
            raise ValueError(
                "backend: engine needs `options: {engine: …, quantize: …}`: which engine, and how"
            )
        if self.backend is Backend.GGUF:
            self._check_gguf()
        if self.backend is Backend.OPENVINO:
            self._check_openvino()
        return self

    def _check_steps(self) -> None:
        if self.options:
            raise ValueError("`options` are for other backends; write fields into the steps")
        rounding = [step for step in self.steps if isinstance(step, Scheme)]
        if len(rounding) != 1 or self.steps[-1] is not rounding[0]:
            raise ValueError(
                "the last step, and no other, must be `quantize` or `gptq`: it rounds the weights"
            )

    def _check_gguf(self) -> None:
        if not {"type"} <= set(self.options) <= {"type", "imatrix"}:
            raise ValueError(
                f"`options` of backend: gguf are {{type: …}}, one of {', '.join(GGUF_TYPES)}"
            )
        if self.gguf_type in IMATRIX_GGUF_TYPES and not self.has_imatrix:
            raise ValueError(f"type: {self.gguf_type} needs `imatrix: true` beside it")
        if self.gguf_type not in (*GGUF_TYPES, *IMATRIX_GGUF_TYPES):
            raise ValueError(
                f"`options` of backend: gguf are {{type: …}}, one of {', '.join(GGUF_TYPES)}, or "
                f"with `imatrix: true` also {', '.join(IMATRIX_GGUF_TYPES)}"
            )
        if self.has_imatrix and self.gguf_type in DENSE_GGUF_TYPES:
            raise ValueError(f"type: {self.gguf_type} is not quantized; remove imatrix")

    def _check_openvino(self) -> None:
        weight_type = self.openvino_type
        group_size = self.options.get("group_size")
        names = set(self.options)
        if not {"type"} <= names <= {"type", "group_size"} or weight_type not in OPENVINO_TYPES:
            raise ValueError(
                "`options` of backend: openvino are {type: …}, one of "
                f"{', '.join(OPENVINO_TYPES)}"
            )
        if "group_size" in self.options and weight_type != "int4":
            raise ValueError(
                "group_size goes with type: int4; the others have one scale per row, or none"
            )
        if weight_type == "int4" and (type(group_size) is not int or group_size < 1):
            raise ValueError(
                "type: int4 needs `group_size: 64` or another number beside it: weights that share "
                "a scale"
            )

    @property
    def scheme(self) -> Scheme | None:
        """Return the format of the linear layers, or None if llm-compressor is not the backend."""
        if self.steps and isinstance(self.steps[-1], Scheme):
            return self.steps[-1]
        return None

    @property
    def ignored(self) -> tuple[str, ...] | None:
        """Return the layers that are skipped. None if the recipe itself rounds no layer."""
        return None if self.scheme is None else self.scheme.ignore

    @property
    def at_load(self) -> AtLoad | None:
        """Return the engine that compresses at load, and how. None for any other backend."""
        if self.backend is not Backend.ENGINE:
            return None
        return AtLoad(engine=str(self.options["engine"]), quantize=str(self.options["quantize"]))

    @property
    def form(self) -> str:
        """Return the format that an engine loads: the key of `planning/compatibility.yaml`.

        It goes from general to special, such as compressed-tensors/w8a8-int/sparse. The way
        weights were rounded (GPTQ, AWQ, to nearest) is left out, because it does not matter to an
        engine.
        """
        if self.at_load is not None:
            return self.at_load.quantize
        if self.scheme is None:
            if self.gguf_type in DENSE_GGUF_TYPES or self.openvino_type == DENSE_OPENVINO_TYPE:
                return f"{self.backend}/{DENSE}"
            if self.backend is Backend.NONE:
                return DENSE
            return str(self.backend)
        form = f"{COMPRESSED_TENSORS}/{self.scheme.form}"
        if any(isinstance(step, SparseGpt) for step in self.steps):
            return f"{form}/sparse"
        return form

    @property
    def gguf_type(self) -> str | None:
        """Return the type as llama-quantize spells it. None for the other backends."""
        if self.backend is not Backend.GGUF:
            return None
        return str(self.options.get("type"))

    @property
    def openvino_type(self) -> str | None:
        """Return the type of the weights. None for the other backends."""
        if self.backend is not Backend.OPENVINO:
            return None
        return str(self.options.get("type"))

    @property
    def weight_bits(self) -> int | None:
        """Return the bits of most weights, rounded down. None if they stay or are unknown."""
        if self.scheme is not None:
            return self.scheme.weight_bits
        name = self.gguf_type or self.openvino_type or ""
        if self.at_load:
            name = self.at_load.quantize
        match = _BITS.search(name.lower())
        if match is None:
            return None
        return int(match[1])

    @property
    def has_imatrix(self) -> bool:
        """Return True if llama.cpp first uses a text to find out which weights matter."""
        return self.backend is Backend.GGUF and self.options.get("imatrix") is True

    @property
    def needs_calibration(self) -> bool:
        """Return True if the recipe reads a text."""
        return self.has_imatrix or any(map(_is_reading_text, self.steps))
