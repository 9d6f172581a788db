"""How a model is compressed: a named list of steps, or a backend of its own. Written as a short YAML file."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from bitbench.core.asked.study import Argument, Name
from bitbench.core.base import Fraction, Spec
from bitbench.core.recorded.variant import DENSE, AtLoad

COMPRESSED_TENSORS = "compressed-tensors"  # the format that llm-compressor writes

# What llama-quantize makes without a table of what matters (an importance matrix); the file is named for most of its
# tensors. The two floats are written by the converter.
DENSE_GGUF_TYPES = ("BF16", "F16")
GGUF_TYPES = (
    *(*DENSE_GGUF_TYPES, "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0"),
    *("IQ4_NL", "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
)


class Backend(StrEnum):
    NONE = "none"  # the model as it is
    LLMCOMPRESSOR = "llmcompressor"  # steps below, in the quantize environment
    GGUF = "gguf"  # llama.cpp's own tools
    VPTQ = "vptq"  # our own quantizer, in the quantize environment; one `vptq` step
    ENGINE = "engine"  # the engine compresses while it loads; `options` say how


class Scheme(Spec):
    """What the numbers of a linear layer become."""

    weight_bits: Literal[2, 3, 4, 8]
    activation_bits: Literal[8, 16] = Field(default=16, description="8: rounded per token while it runs")
    type: Literal["int", "float"] = "int"
    group_size: int | None = Field(
        default=None, ge=16, description="weights of a row that share a scale; default: one scale per row"
    )
    symmetric: bool = Field(default=True, description="false: a zero point is stored with each scale")
    ignore: tuple[str, ...] = Field(default=("lm_head",), description="layers to skip: a name, or re: and a pattern")

    @model_validator(mode="after")
    def _float_is_eight_bits_per_row(self) -> "Scheme":
        if self.type == "float" and (self.weight_bits != 8 or self.group_size is not None or not self.symmetric):
            raise ValueError("type: float goes with weight_bits: 8, symmetric: true and no group_size")
        return self


class SmoothQuant(Spec):
    """Moves outliers of the activations into the weights."""

    step: Literal["smoothquant"]
    strength: Fraction = Field(default=0.8, ge=0, le=1, description="0: weights stay; 1: activations become even")


class SparseGpt(Spec):
    """Sets the weights that matter least to zero and corrects the others."""

    step: Literal["sparsegpt"]
    sparsity: Fraction = Field(default=0.5, gt=0, lt=1, description="share of the weights that become zero")
    mask: str = Field(default="2:4", pattern=r"^\d+:\d+$", description="N:M, or 0:0 for zeros anywhere")
    ignore: tuple[str, ...] = ("lm_head",)


class Awq(Spec):
    """Scales the channels that matter most before they are rounded; a `quantize` step must follow."""

    step: Literal["awq"]
    # llm-compressor divides by the number of points less two.
    grid: int = Field(default=20, ge=3, le=200, description="scales tried per layer; more take longer")
    duo_scaling: bool = Field(default=True, description="consider the weights too, not only the activations")


class Gptq(Scheme):
    """Rounds weights one column at a time and corrects the columns that follow."""

    step: Literal["gptq"]
    block_size: int = Field(default=128, ge=1, description="columns per pass")
    dampening: Fraction = Field(default=0.01, gt=0, lt=1, description="raise it when a layer cannot be solved")


class Quantize(Scheme):
    """Rounds to the nearest."""

    step: Literal["quantize"]


class Vptq(Spec):
    """Vectors of weights become indices into codebooks, one of which holds what the other leaves over."""

    step: Literal["vptq"]
    main: int = Field(default=4096, ge=2, le=65536, description="entries of the main codebook, a power of two")
    residual: int = Field(default=256, ge=0, le=65536, description="entries of the residual codebook; 0: none")
    vector: Literal[4, 8, 16] = Field(default=8, description="weights per vector; the CPU kernel reads 8")
    normalize: bool = Field(default=False, description="scale and offset per column; costs 32 bits per column")
    outliers: Fraction = Field(default=0.0, ge=0, lt=0.5, description="share of the columns with a codebook of its own")
    outlier_entries: int = Field(default=4096, ge=2, le=65536)
    outlier_vector: Literal[2, 4, 8] = 4
    iterations: int = Field(default=8, ge=1, le=1000, description="iterations of k-means; more take longer")
    rounds: int = Field(default=2, ge=0, le=100, description="of refitting codebooks and improving indices in turn")
    dampening: Fraction = Field(default=0.01, gt=0, lt=1, description="raise it when a layer cannot be solved")
    ignore: tuple[str, ...] = ("lm_head",)

    @field_validator("main", "residual", "outlier_entries")
    @classmethod
    def _fills_its_index(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("a codebook has 256, 4096 or another power of two of entries")
        return value


Step = Annotated[SmoothQuant | SparseGpt | Awq | Gptq | Quantize | Vptq, Field(discriminator="step")]


class CalibrationNeed(Spec):
    """How much text the steps look at, and which."""

    samples: int = Field(default=64, ge=1, le=100_000, description="pieces of text")
    tokens: int = Field(default=512, ge=16, le=1_000_000, description="length of a sample")
    source: Path | None = Field(
        default=None, description="text file, folder or JSONL; default: text that ships with Python"
    )


class Recipe(Spec):
    """One way to compress a model."""

    name: Name = Field(description="as studies, variants and reports call it")
    description: str = Field(default="", description="a line for `bitbench recipes`")
    backend: Backend = Field(default=Backend.LLMCOMPRESSOR, description="what creates the variant")
    steps: tuple[Step, ...] = Field(default=(), description="what llm-compressor does, in this order; or `vptq` alone")
    calibration: CalibrationNeed = Field(default=CalibrationNeed(), description="text that the steps look at")
    options: dict[str, Argument] = Field(default_factory=dict, description="for the backends gguf and engine")

    @field_validator("name")
    @classmethod
    def _fits_a_folder_name(cls, value: str) -> str:
        if "--" in value:
            raise ValueError("a recipe's name may not contain `--`")
        return value

    @model_validator(mode="after")
    def _says_what_its_backend_needs(self) -> "Recipe":
        if self.backend is Backend.VPTQ:
            if len(self.steps) != 1 or self.vptq is None or self.options:
                raise ValueError("backend: vptq has one step, `vptq`, and no `options`")
            return self
        if self.backend is not Backend.LLMCOMPRESSOR:
            if self.steps:
                raise ValueError(f"`steps` are for backend: llmcompressor, not for {self.backend}")
            if self.options and self.backend is Backend.NONE:
                raise ValueError("`options` are for the backends gguf and engine")
            if self.backend is Backend.ENGINE and self.options.keys() != AtLoad.model_fields.keys():
                raise ValueError("backend: engine needs `options: {engine: …, quantize: …}`: which engine, and how")
            if self.backend is Backend.GGUF and (set(self.options) != {"type"} or self.gguf_type not in GGUF_TYPES):
                raise ValueError(f"`options` of backend: gguf are {{type: …}}, one of {', '.join(GGUF_TYPES)}")
            return self
        if self.options:
            raise ValueError("`options` are for the backends gguf and engine; write fields into the steps")
        if any(isinstance(step, Vptq) for step in self.steps):
            raise ValueError("a `vptq` step needs backend: vptq, and stands alone")
        rounding = [step for step in self.steps if isinstance(step, Scheme)]
        if len(rounding) != 1 or self.steps[-1] is not rounding[0]:
            raise ValueError("the last step, and no other, must be `quantize` or `gptq`: it rounds the weights")
        return self

    @property
    def scheme(self) -> Scheme | None:
        """What llm-compressor makes of the linear layers; None for the other backends."""
        last = self.steps[-1] if self.steps else None
        return last if isinstance(last, Scheme) else None

    @property
    def vptq(self) -> Vptq | None:
        last = self.steps[-1] if self.steps else None
        return last if isinstance(last, Vptq) else None

    @property
    def ignored(self) -> tuple[str, ...] | None:
        """Layers that are skipped; None where the recipe itself rounds none."""
        rounding = self.scheme or self.vptq
        return rounding.ignore if rounding else None

    @property
    def at_load(self) -> AtLoad | None:
        """The engine that compresses while it loads, and how; None where the variant is created beforehand."""
        if self.backend is not Backend.ENGINE:
            return None
        return AtLoad(engine=str(self.options["engine"]), quantize=str(self.options["quantize"]))

    @property
    def form(self) -> str:
        """What an engine gets to load, whatever the recipe is called: the key of `planning/compatibility.yaml`.

        From the general to the special, as in compressed-tensors/w8a8-int/sparse. How weights were rounded (GPTQ,
        AWQ, to the nearest) does not matter to an engine and is not part of it.
        """
        if self.at_load is not None:
            return self.at_load.quantize
        if self.scheme is None:
            if self.gguf_type in DENSE_GGUF_TYPES:
                return f"{self.backend.value}/{DENSE}"
            return DENSE if self.backend is Backend.NONE else self.backend.value
        numbers = f"w{self.scheme.weight_bits}a{self.scheme.activation_bits}-{self.scheme.type}"
        is_sparse = any(isinstance(step, SparseGpt) for step in self.steps)
        return f"{COMPRESSED_TENSORS}/{numbers}{'/sparse' if is_sparse else ''}"

    @property
    def gguf_type(self) -> str | None:
        """As llama-quantize spells it; None for the other backends."""
        return str(self.options.get("type")) if self.backend is Backend.GGUF else None

    @property
    def needs_calibration(self) -> bool:
        return any(not isinstance(step, Quantize) for step in self.steps)
