"""What `bitbench mix` looks for, and what it found: what each group of tensors costs in each type, which was chosen,
what a fresh study says."""

from collections.abc import Iterable

from pydantic import Field, field_validator, model_validator

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict, worst_limit_check
from bitbench.study.base import Record, Spec
from bitbench.study.study import Name
from bitbench.study.variant import tensor_type
from bitbench.util.errors import ExitCode

REFERENCE = "gguf-q4_k_m"  # what llama.cpp's users run most
DENSE_BITS = 16  # from here on a type is not quantized


class MixLimits(Spec):
    """At least one. With `divergence` the fastest mix within the limits is looked for, else the one that diverges
    least."""

    speed: Name | None = Field(default=None, description="no slower than this recipe")
    bits: float | None = Field(
        default=None, gt=0, lt=DENSE_BITS, description="per weight, scales included"
    )
    divergence: float | Name | None = Field(
        default=None, description="nats, or no more than this recipe has"
    )

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
            raise ValueError(
                "give a limit: speed=RECIPE, bits=4.8, or divergence=0.02 (or =RECIPE)"
            )
        if isinstance(self.divergence, float) and self.divergence <= 0:
            raise ValueError("divergence: a limit lies above 0")
        if len(self._recipes) > 1:
            raise ValueError(
                f"{' and '.join(sorted(self._recipes))}: limits name one recipe, in every limit the same"
            )
        return self

    @property
    def _recipes(self) -> set[str]:
        return {recipe for recipe in (self.speed, self.divergence) if isinstance(recipe, str)}

    @property
    def reference(self) -> str:
        """The recipe that the mix is held against: that of the limits, or the one that most people run."""
        return next(iter(self._recipes), REFERENCE)


def parse_mix_limits(texts: Iterable[str]) -> MixLimits:
    """From `speed=gguf-q4_k_m`, `bits=4.8` and the like; raises ValueError."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if not value:
            raise ValueError(
                f"{text!r} is no limit; write speed=RECIPE, bits=4.8 or divergence=0.02"
            )
        if name in found:
            raise ValueError(f"{name} is limited twice")
        found[name] = value
    return MixLimits.model_validate(found)


class Mix(Spec):
    """A search for the types of a model's tensors."""

    model: str
    types: tuple[str, ...] = Field(
        default=("q4_0", "q4_K", "q5_K", "q6_K", "q8_0"), description="to choose from"
    )
    limits: MixLimits
    windows: int = Field(
        default=8, ge=4, le=5_000, description="of text on which single swaps are measured"
    )

    @field_validator("types")
    @classmethod
    def _are_quantized(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """From the smallest to the largest, as ggml spells them."""
        types = sorted(
            {tensor_type(name) for name in value}, key=lambda type: (type.bits, type.name)
        )
        if len(types) < 2:
            raise ValueError("there is nothing to mix: give two types or more")
        if dense := [type.name for type in types if type.bits >= DENSE_BITS]:
            raise ValueError(f"{', '.join(dense)} is not quantized; leave it out")
        return tuple(type.name for type in types)


class TensorGroup(Record):
    """Tensors that get one type together: those that engines fuse, in a band of layers."""

    kind: str  # "attn_qkv", "ffn_down", "token_embd"
    first: int | None = None  # layer; None: outside the layers
    last: int | None = None
    tensors: tuple[str, ...]
    weights: int
    types: tuple[
        str, ...
    ]  # of those to choose from, the ones whose blocks its columns fill; the smallest first
    is_multiplied: bool = True  # in each step; False of a table in which tokens are only looked up

    @property
    def label(self) -> str:
        """`ffn_down 0–7`"""
        return f"{self.kind} {self.layers}" if self.layers else self.kind

    @property
    def layers(self) -> str:
        if self.first is None:
            return ""
        return f"{self.first}–{self.last}" if self.first != self.last else str(self.first)


class Option(Record):
    """A group in one type. The divergence is that of the model with only this group in this type."""

    type: str
    divergence: float  # nats
    step_s: float  # its part of a decoding step
    size_bytes: int


class GroupChoice(Record):
    group: TensorGroup
    options: tuple[Option, ...]
    chosen: str

    @property
    def choice(self) -> Option:
        return next(option for option in self.options if option.type == self.chosen)


class Predicted(Record):
    """Of a whole mix, by adding up its groups."""

    divergence: float
    step_s: float
    bits: float  # per weight of the groups


class MixSide(Record):
    """One config of the confirmation; None where there is no result."""

    recipe: str
    step: Estimate | None
    divergence: Estimate | None
    bits: float


class ConfirmedMix(Record):
    """The mix beside the reference, both started anew and scored on text that the choice knew nothing of."""

    folder: str
    mix: MixSide
    reference: MixSide
    speed: Estimate | None  # the mix's / the reference's, above 1 where the mix is faster
    difference: (
        Estimate | None
    )  # divergence of the mix less that of the reference, on the same windows
    findings: tuple[Finding, ...]  # the limits

    @property
    def verdict(self) -> Verdict:
        """Of all limits together."""
        return worst_limit_check(finding.verdict for finding in self.findings)


class Mixture(Record):
    """`groups`: in the order of the model. `predicted_speed`: the reference's step, as timed beside the types, / the
    mix's as predicted."""

    model: str
    limits: MixLimits
    types: tuple[str, ...]
    groups: tuple[GroupChoice, ...]
    predicted: Predicted
    predicted_speed: float
    tokens: int  # of text on which single swaps were measured
    recipe: str  # the file that a study can name
    confirmed: ConfirmedMix

    @property
    def exit_code(self) -> ExitCode:
        """DONE: every limit is met with confidence."""
        if self.confirmed.mix.step is None:
            return ExitCode.NOTHING_MEASURED
        codes = {
            Verdict.MISSED: ExitCode.FAILED,
            Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
            Verdict.MET: ExitCode.DONE,
        }
        return codes[self.confirmed.verdict]
