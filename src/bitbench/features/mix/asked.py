"""What `bitbench mix` looks for: types of tensors to choose from, how finely, and under which limits."""

from collections.abc import Iterable

from pydantic import Field, field_validator, model_validator

from bitbench.study.base import Fraction, Spec
from bitbench.study.study import Name
from bitbench.study.tensor_types import tensor_type

REFERENCE = "gguf-q4_k_m"  # what llama.cpp's users run most
DENSE_BITS = 16  # from here on a type is not quantized


class MixLimits(Spec):
    """At least one. With `divergence` the fastest mix within the limits is looked for, else the one that diverges
    least."""

    speed: Name | None = Field(default=None, description="no slower than this recipe")
    bits: float | None = Field(default=None, gt=0, lt=DENSE_BITS, description="per weight, scales included")
    divergence: float | Name | None = Field(default=None, description="nats, or no more than this recipe has")

    @field_validator("divergence", mode="before")
    @classmethod
    def _number_or_recipe(cls, value: object) -> object:
        try:
            return float(value) if isinstance(value, str) else value
        except ValueError:
            return value

    @model_validator(mode="after")
    def _limits_something(self) -> "MixLimits":
        if self.speed is None and self.bits is None and self.divergence is None:
            raise ValueError("give a limit: speed=RECIPE, bits=4.8, or divergence=0.02 (or =RECIPE)")
        if isinstance(self.divergence, float) and self.divergence <= 0:
            raise ValueError("divergence: a limit lies above 0")
        return self

    @property
    def recipes(self) -> tuple[str, ...]:
        """That are limits, each once."""
        named = (self.speed, self.divergence)
        return tuple(dict.fromkeys(recipe for recipe in named if isinstance(recipe, str)))


def parse_limits(texts: Iterable[str]) -> MixLimits:
    """From `speed=gguf-q4_k_m`, `bits=4.8` and the like; raises ValueError."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise ValueError(f"{text!r} is no limit; write speed=RECIPE, bits=4.8 or divergence=0.02")
        if name in found:
            raise ValueError(f"{name} is limited twice")
        found[name] = value
    return MixLimits.model_validate(found)


class Mix(Spec):
    """A search for the types of a model's tensors."""

    model: str
    types: tuple[str, ...] = Field(default=("q4_0", "q4_K", "q5_K", "q6_K", "q8_0"), description="to choose from")
    limits: MixLimits
    bands: int = Field(default=4, ge=1, le=100, description="of layers whose types are chosen apart")
    thorough: bool = Field(default=False, description="measure every type of every group, not one of them")
    corpus: tuple[str, ...] = ()
    windows: int = Field(default=8, ge=4, le=5_000, description="of text on which single swaps are measured")
    window_tokens: int = Field(default=64, ge=8, le=65_536)
    starts: int = Field(default=2, ge=2, le=64, description="of each variant that is timed")
    rounds: int = Field(default=6, ge=2, le=1000, description="timed trials of each in each start")
    reserve: Fraction = Field(
        default=0.02, ge=0, lt=0.5, description="share of a limit on a predicted figure that is left for its error"
    )
    seed: int = Field(default=0, ge=0)

    @field_validator("types")
    @classmethod
    def _are_quantized(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """From the smallest to the largest, as ggml spells them."""
        types = sorted({tensor_type(name) for name in value}, key=lambda type: (type.bits, type.name))
        if len(types) < 2:
            raise ValueError("there is nothing to mix: give two types or more")
        if dense := [type.name for type in types if type.bits >= DENSE_BITS]:
            raise ValueError(f"{', '.join(dense)} is not quantized; leave it out")
        return tuple(type.name for type in types)

    @property
    def references(self) -> tuple[str, ...]:
        """Recipes that the mix is held against: those of its limits, or the one that most people run."""
        return self.limits.recipes or (REFERENCE,)
