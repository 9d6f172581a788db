"""The request and the result of `bitbench mix`."""

from collections.abc import Iterable

from pydantic import Field, field_validator, model_validator

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict, find_worst_verdict
from bitbench.study.base import Record, Spec
from bitbench.study.study import Name
from bitbench.study.variant import find_tensor_type
from bitbench.util.errors import ExitCode

REFERENCE = "gguf-q4_k_m"  # the most used type of llama.cpp
DENSE_BITS = 16  # types of this size and larger are not quantized


class MixLimits(Spec):
    """The limits of a mix, at least one.

    With `divergence`, the search is for the fastest mix within the limits. Without it, the search
    is for the mix that diverges least.
    """

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
        if not isinstance(value, str):
            return value
        try:
            return float(value)
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
            recipes = " and ".join(sorted(self._recipes))
            raise ValueError(f"{recipes}: limits name one recipe, in every limit the same")
        return self

    @property
    def _recipes(self) -> set[str]:
        return {recipe for recipe in (self.speed, self.divergence) if isinstance(recipe, str)}

    @property
    def reference(self) -> str:
        """The recipe that the mix is compared with: the limits' recipe, or the default."""
        return next(iter(self._recipes), REFERENCE)


def parse_mix_limits(texts: Iterable[str]) -> MixLimits:
    """Parse limits such as `speed=gguf-q4_k_m` and `bits=4.8`. Raise ValueError if one is wrong."""
    values: dict[str, str] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if not value:
            raise ValueError(
                f"{text!r} is no limit; write speed=RECIPE, bits=4.8 or divergence=0.02"
            )
        if name in values:
            raise ValueError(f"{name} is limited twice")
        values[name] = value
    return MixLimits.model_validate(values)


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
        """Return the types from the smallest to the largest, as ggml spells them."""
        types = list({find_tensor_type(name) for name in value})
        types.sort(key=lambda type: (type.bits, type.name))
        if len(types) < 2:
            raise ValueError("there is nothing to mix: give two types or more")
        dense = [type.name for type in types if type.bits >= DENSE_BITS]
        if dense:
            raise ValueError(f"{', '.join(dense)} is not quantized; leave it out")
        return tuple(type.name for type in types)


class TensorGroup(Record):
    """A group of tensors that get one type: tensors that engines fuse, in a band of layers."""

    kind: str  # "attn_qkv", "ffn_down", "token_embd"
    first: int | None = None  # layer (None: outside the layers)
    last: int | None = None
    tensors: tuple[str, ...]
    weights: int
    types: tuple[str, ...]  # types whose blocks fit its columns, the smallest first
    is_multiplied: bool = True  # in each step (False for a table in which tokens are looked up)

    @property
    def label(self) -> str:
        """The kind and the layers, such as `ffn_down 0–7`."""
        return f"{self.kind} {self.layers}" if self.layers else self.kind

    @property
    def layers(self) -> str:
        if self.first is None:
            return ""
        return f"{self.first}–{self.last}" if self.first != self.last else str(self.first)


class Option(Record):
    """A group in one type. The divergence is for the model with only this group in this type."""

    type: str
    divergence: float  # nats
    step_s: float  # its part of a decoding step
    size_bytes: int


class GroupChoice(Record):
    """A group with its options and the chosen type."""

    group: TensorGroup
    options: tuple[Option, ...]
    chosen: str

    @property
    def choice(self) -> Option:
        return next(option for option in self.options if option.type == self.chosen)


class Predicted(Record):
    """A prediction for a whole mix: the sum over its groups."""

    divergence: float
    step_s: float
    bits: float  # per weight of the groups


class MixSide(Record):
    """A config of the confirmation. Values are None without a result."""

    recipe: str
    step: Estimate | None
    divergence: Estimate | None
    bits: float


class ConfirmedMix(Record):
    """The mix and the reference, re-measured in a new study on text that the choice did not use."""

    folder: str
    mix: MixSide
    reference: MixSide
    speed: Estimate | None  # above 1, the mix is faster than the reference
    # Divergence of the mix less the divergence of the reference, on the same windows.
    difference: Estimate | None
    findings: tuple[Finding, ...]  # one per limit

    @property
    def verdict(self) -> Verdict:
        """The verdict on all limits together."""
        return find_worst_verdict(finding.verdict for finding in self.findings)


class Mixture(Record):
    """A chosen mix: its groups in the order of the model, its prediction and its confirmation.

    `predicted_speed` is the reference's measured step / the predicted step of the mix.
    """

    model: str
    limits: MixLimits
    types: tuple[str, ...]
    groups: tuple[GroupChoice, ...]
    predicted: Predicted
    predicted_speed: float
    tokens: int  # of text on which single swaps were measured
    recipe: str  # a file that a study can use
    confirmed: ConfirmedMix

    @property
    def exit_code(self) -> ExitCode:
        """The exit code: DONE if every limit is met with confidence."""
        if self.confirmed.mix.step is None:
            return ExitCode.NOTHING_MEASURED
        codes = {
            Verdict.MISSED: ExitCode.FAILED,
            Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
            Verdict.MET: ExitCode.DONE,
        }
        return codes[self.confirmed.verdict]
