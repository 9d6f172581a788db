"""Results on equivalence to a baseline, and on conversations that stay valid."""

from typing import Literal

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import TaskFlips
from bitbench.study.base import Record
from bitbench.study.plan import Config


class NoiseFloor(Record):
    """The divergence of a config from itself in another start."""

    config: Config  # the baseline of other configs, or any config that was restarted
    divergence: Estimate


EquivalenceVerdict = Literal["equivalent", "different", "inconclusive"]


class Equivalence(Record):
    """The comparison of a variant with its baseline.

    A variant is equivalent if its divergence exceeds the noise floor by less than the margin.
    """

    baseline: Config
    # Of the baseline on its own engine. None: not measured, so it counts as 0.
    floor: NoiseFloor | None
    # Mean KL divergence beyond the floor, by window. It covers the missing probability mass.
    excess: Estimate
    verdict: EquivalenceVerdict
    # Inconclusive because servers did not report enough mass. More text would not decide it.
    lacks_mass: bool = False


TurnVerdict = Literal["more", "fewer", "no difference found", "inconclusive"]


class TurnComparison(Record):
    """A comparison of a variant's conversations with the same ones of its unquantized baseline."""

    baseline: Config
    # Lost: broken here alone. The exact p is adjusted for all variants of the study (Holm).
    flips: TaskFlips
    verdict: TurnVerdict  # whether more or fewer conversations break


class ConversationShare(Record):
    """The share of scripted conversations without any invalid JSON or tool call."""

    config: Config
    turns: int  # of each conversation
    conversations: int
    valid: int  # to the end
    against: TurnComparison | None = None  # None: it is the baseline, or has no baseline


class Behaviour(Record):
    """The effects of quantization beyond perplexity. There is at least one floor."""

    floors: tuple[NoiseFloor, ...]
    equivalence: dict[str, Equivalence]  # by the config's name


class Conversations(Record):
    """The configs with enough conversations, at least one."""

    rows: tuple[ConversationShare, ...]
