"""Whether a variant is equivalent to its baseline, and how many of its conversations stay sound."""

from typing import Literal

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import TaskFlips
from bitbench.study.base import Record
from bitbench.study.plan import Config


class NoiseFloor(Record):
    """How far a config is from itself in another start."""

    config: Config  # a baseline; of other configs, what another start changes
    divergence: Estimate


EquivalenceVerdict = Literal["equivalent", "different", "inconclusive"]


class Equivalence(Record):
    """Whether a variant's divergence exceeds the noise floor of its baseline by less than the margin of the study."""

    baseline: Config
    floor: (
        NoiseFloor | None
    )  # of the baseline on its own engine; None: not measured, so it counts as 0
    excess: Estimate  # mean KL divergence beyond the floor, window by window; it covers what missing mass may add
    verdict: EquivalenceVerdict
    lacks_mass: bool = (
        False  # inconclusive for what the servers did not tell; more text would not decide
    )


TurnVerdict = Literal["more", "fewer", "no difference found", "inconclusive"]


class TurnComparison(Record):
    """Conversations of a variant beside the same ones of its unquantized baseline."""

    baseline: Config
    flips: TaskFlips  # lost: broken here alone; the exact p is adjusted for all variants of the study (Holm)
    verdict: TurnVerdict  # whether more or fewer conversations break


class ConversationShare(Record):
    """Scripted conversations until the first invalid JSON or tool call."""

    config: Config
    turns: int  # of each conversation
    conversations: int
    valid: int  # of these, to the end
    against: TurnComparison | None = None  # None: it is the baseline, or has none


class Behaviour(Record):
    """What quantization does beyond perplexity; there is at least one floor."""

    floors: tuple[NoiseFloor, ...]
    equivalence: dict[str, Equivalence]  # by the config's name


class Conversations(Record):
    """Of configs with conversations enough; never empty."""

    rows: tuple[ConversationShare, ...]
