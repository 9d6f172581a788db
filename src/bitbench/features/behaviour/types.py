"""Whether a variant is equivalent to its baseline, and how long its texts and conversations stay sound."""

from typing import Literal

from bitbench.analysis.results.estimate import Estimate
from bitbench.study.base import Record
from bitbench.study.plan import Config


class NoiseFloor(Record):
    """How far a config lies from itself when only what should not matter is changed."""

    config: Config  # a baseline; of other configs, what another start changes
    changed: str  # `several requests at once`, `another start`, or the name of the same weights on another engine
    divergence: Estimate


EquivalenceVerdict = Literal["equivalent", "different", "inconclusive"]


class Equivalence(Record):
    """Whether a variant's divergence exceeds the noise floor of its baseline by less than the margin of the study."""

    baseline: Config
    floor: NoiseFloor | None  # of the baseline on its own engine; None: not measured, so it counts as 0
    excess: Estimate  # mean KL divergence beyond the floor, window by window; it covers what missing mass may add
    verdict: EquivalenceVerdict
    lacks_mass: bool = False  # inconclusive for what the servers did not tell; more text would not decide


class SurvivalStep(Record):
    """From so many tokens or turns on, this share is left."""

    at: int
    share: float
    low: float
    high: float


class Survival(Record):
    """How long texts stay the baseline's, or conversations valid (Kaplan-Meier; what lasts to its end is censored
    there)."""

    config: Config
    watched: int  # texts or conversations
    ended: int  # that diverged or broke
    median: int | None  # tokens or turns until half have ended; None: more than half have not while they were watched
    median_low: int | None
    median_high: int | None  # None: the interval is open
    steps: tuple[SurvivalStep, ...]


class SurvivalPair(Record):
    """Two variants of one baseline: a log-rank test, adjusted for all pairs (Holm)."""

    one: Config
    other: Config
    p_value: float


TurnVerdict = Literal["sooner", "later", "no difference found", "inconclusive"]


class TurnComparison(Record):
    """Conversations of a variant beside the same ones of its unquantized baseline."""

    baseline: Config
    p_value: float  # log-rank, adjusted for all variants of the study (Holm)
    fewer: Estimate  # valid turns of a conversation that are lost, conversation by conversation
    verdict: TurnVerdict


class TurnFault(Record):
    """Why conversations broke, with one of the answers."""

    fault: str
    conversations: int
    example: str


class ConversationSurvival(Record):
    """Turns until the first invalid JSON or tool call of scripted conversations."""

    config: Config
    turns: int  # of each conversation
    survival: Survival
    valid_turns: float  # of a conversation, mean
    faults: tuple[TurnFault, ...] = ()  # most frequent first
    against: TurnComparison | None = None  # None: it is the baseline, or has none


class Behaviour(Record):
    """What quantization does beyond perplexity; floors or curves are never both empty."""

    floors: tuple[NoiseFloor, ...]
    equivalence: dict[str, Equivalence]  # by the config's name
    survival: tuple[Survival, ...]
    pairs: tuple[SurvivalPair, ...]


class Conversations(Record):
    """Of configs with conversations enough for a curve; never empty."""

    rows: tuple[ConversationSurvival, ...]
