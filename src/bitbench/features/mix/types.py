"""What `bitbench mix` found: what each group of tensors costs in each type, which was chosen, and what a fresh study
says of the whole."""

from pydantic import Field

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict, worst
from bitbench.features.mix.asked import MixLimits
from bitbench.study.base import Record
from bitbench.util.exit_codes import ExitCode


class TensorGroup(Record):
    """Tensors that get one type together: those that engines fuse, in a band of layers."""

    kind: str  # "attn_qkv", "ffn_down", "token_embd"
    first: int | None = None  # layer; None: outside the layers
    last: int | None = None
    tensors: tuple[str, ...]
    weights: int
    types: tuple[str, ...]  # of those to choose from, the ones whose blocks its columns fill; the smallest first
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
    interval: tuple[float, float] | None = None  # of the divergence, over windows; None: estimated from its kind
    is_measured: bool  # False: its kind was measured as a whole, and the group has its share of that
    step_s: float  # its part of a decoding step
    size_bytes: int


class GroupChoice(Record):
    group: TensorGroup
    options: tuple[Option, ...]
    chosen: str

    @property
    def choice(self) -> Option:
        return self.of(self.chosen)

    def of(self, type: str) -> Option:
        return next(option for option in self.options if option.type == type)


class TypeTime(Record):
    """A step of the model with this type wherever it fits, and what follows for a weight."""

    type: str
    step: Estimate
    weight_s: float  # with the weight's share of what a step takes whatever the types are
    fits: float  # share of the weights


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
    bits: float | None


class ConfirmedMix(Record):
    """The mix beside the reference, both started anew and scored on text that the choice knew nothing of."""

    folder: str
    starts: int
    rounds: int
    mix: MixSide
    reference: MixSide
    speed: Estimate | None  # the mix's / the reference's, above 1 where the mix is faster
    difference: Estimate | None  # divergence of the mix less that of the reference, on the same windows
    findings: tuple[Finding, ...]  # the limits

    @property
    def verdict(self) -> Verdict:
        """Of all limits together."""
        return worst(finding.verdict for finding in self.findings)

    @property
    def is_less_divergent(self) -> bool:
        return self.difference is not None and self.difference.is_below(0)

    @property
    def is_faster(self) -> bool:
        return self.speed is not None and self.speed.is_above(1)


class Mixture(Record):
    """`groups`: in the order of the model. `reference`: what the mix is held against."""

    model: str
    limits: MixLimits
    reserve: float
    types: tuple[str, ...]
    reference: str
    groups: tuple[GroupChoice, ...]
    times: tuple[TypeTime, ...]
    predicted: Predicted
    front: tuple[Predicted, ...] = ()  # mixes under other limits on speed, the fastest first
    uniform: dict[str, Predicted] = Field(default_factory=dict)  # each type wherever it fits
    reference_predicted_s: float | None = None  # by the same sum, to check it; None: it has types that were not timed
    reference_step: Estimate | None = None  # as it was timed beside the types
    reference_divergence: Estimate | None = None  # on the text of the single swaps
    unused_types: tuple[str, ...] = ()  # that fit no group
    rounded_before: str | None = None  # of the model, see `ModelFacts`
    tokens: int  # of text on which single swaps were measured
    recipe: str  # the file that a study can name
    folder: str
    confirmed: ConfirmedMix | None = None

    @property
    def only_type(self) -> str | None:
        """Where every group got the same."""
        chosen = {choice.chosen for choice in self.groups}
        return chosen.pop() if len(chosen) == 1 else None

    @property
    def exit_code(self) -> ExitCode:
        """DONE: every limit is met with confidence."""
        if self.confirmed is None or self.confirmed.mix.step is None:
            return ExitCode.NOTHING_MEASURED
        codes = {
            Verdict.MISSED: ExitCode.FAILED,
            Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
            Verdict.MET: ExitCode.DONE,
        }
        return codes[self.confirmed.verdict]
