"""Evidence cards: the head and parts of the file, the points of one, what a check found, how many compare."""

from enum import StrEnum

from pydantic import Field

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.facts import Fact
from bitbench.records.lock import HostFacts
from bitbench.records.profile import Phase
from bitbench.study.base import Record
from bitbench.util.errors import ExitCode, StoreError


class CardError(StoreError):
    """A file is not an evidence card, was changed after it was made, or was not signed as asked."""


CARD_FORMAT = 1
# History of CARD_FORMAT:
#   1  first published form


class PartName(StrEnum):
    """Everything that a card may hold, in the order in which it lies there. No other name is read or written."""

    POINTS = "points.json"  # what a query over many cards reads
    FIGURES = "figures.json"  # the figures of its report, as stated
    LOCK = "lock.json"
    ROOF = "roof.json"
    INSTANCES = "instances.jsonl"
    TRIALS = "trials.jsonl"
    QUALITY = "quality.jsonl"
    PROFILES = "profiles.jsonl"
    REQUESTS = "requests.parquet"  # rows of all trials
    SCORES = "scores.parquet"  # rows of all measurements of quality

    @property
    def is_packed(self) -> bool:
        """By zlib; Parquet is compressed already."""
        return not self.value.endswith(".parquet")


class CardPart(Record):
    name: PartName
    size: int = Field(ge=0)  # bytes in the file
    whole_size: int = Field(ge=0)  # unpacked
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")  # of the bytes in the file


class CardManifest(Record):
    format: int = CARD_FORMAT
    bitbench: str  # the version that made the card
    study: str
    has_rows: bool  # of the requests, and of scored tokens where there are any
    parts: tuple[CardPart, ...] = Field(max_length=len(PartName))


# What must be equal before two machines are compared. The machine itself may differ, and with it the kernel that an
# engine selects there: both are shown.
CARD_FACTS = (
    Fact.TOOL,
    Fact.ARTIFACT,
    Fact.ENGINE_VERSION,
    Fact.ENVIRONMENT,
    Fact.ARGUMENTS,
    Fact.PREFIX_CACHING,
)


class CardPhase(Record):
    """One phase of a point: how long a step takes, and how long at least under the roof of its machine."""

    phase: Phase
    step: Estimate  # seconds
    attainable_s: float

    @property
    def share(self) -> Estimate:
        """With the interval of the step's time; the roof is taken as it was measured."""
        value, ends = self.attainable_s / self.step.value, self.step.interval
        if ends is None or ends.low <= 0:
            return Estimate(value=value)
        low, high = self.attainable_s / ends.high, self.attainable_s / ends.low
        return Estimate(value=value, low=low, high=high, confidence=self.step.confidence)


class CardPoint(Record):
    """A point with a result. `subject` and `facts` say what it may be compared with."""

    model: str
    recipe: str
    engine: str  # the adapter: "vllm"
    workload: str  # its name in the study
    shape: str  # everything else of the workload, as JSON
    facts: dict[Fact, str | None]  # those of CARD_FACTS; None: unknown
    kernels: str | None
    figures: dict[str, Estimate]
    phases: tuple[CardPhase, ...] = ()

    @property
    def subject(self) -> tuple[str, str, str, str]:
        return self.model, self.recipe, self.engine, self.shape


class CardPoints(Record):
    study: str
    created_at: str | None
    primary_metric: str  # a key of `figures`
    host: HostFacts
    has_roof: bool
    points: tuple[CardPoint, ...]


class Check(StrEnum):
    """What `bitbench verify` recomputes."""

    TRIALS = "figures of trials, from their request rows"
    REPORT = "figures of the report, from the records"
    POINTS = "points that a query compares, from the records"


class Checked(Record):
    check: Check
    figures: int  # numbers that were compared
    different: tuple[str, ...] = ()  # where, with the stated and the recomputed value; the first few
    different_count: int = 0
    unchecked: int = 0  # stated here, but nothing to recompute them from
    why_unchecked: str | None = None


class Verification(Record):
    """A card whose bytes are what its maker put into it; whether its figures follow from its records."""

    card: str
    study: str
    bitbench: str
    card_id: str  # SHA-256 of its manifest
    signed_by: str | None  # fingerprint of the key; None: not signed
    signer: str | None  # by the file of signers; None: no such file was given
    host: HostFacts
    trials: int
    instances: int
    requests: int | None  # rows; None: not in the card
    checks: tuple[Checked, ...]
    gaps: tuple[str, ...]  # records that are missing by their numbering
    cannot_check: tuple[str, ...]
    allow_inconclusive: bool = False

    @property
    def exit_code(self) -> ExitCode:
        if any(check.different_count for check in self.checks):
            return ExitCode.FAILED
        is_open = any(check.unchecked for check in self.checks) or self.gaps
        return ExitCode.INCONCLUSIVE if is_open and not self.allow_inconclusive else ExitCode.DONE


class CardEntry(Record):
    """One machine's result in a comparison."""

    card: str
    signer: str | None
    machine: str
    workload: str
    kernels: str | None
    figure: Estimate | None
    phases: tuple[CardPhase, ...]


class CardGroup(Record):
    """Points of several cards that may be compared."""

    model: str
    recipe: str
    engine: str
    shape: str
    primary_metric: str
    facts: dict[Fact, str | None]
    entries: tuple[CardEntry, ...]
    unknown: tuple[Fact, ...] = ()  # no card says them, so they were not checked


class NotCompared(Record):
    """A point that no group may hold; `differs` says in what, as `--allow` spells it, from the largest group or from
    another card of the same subject. Empty: no other card has it."""

    card: str
    model: str
    recipe: str
    engine: str
    workload: str
    differs: dict[Fact, tuple[str, str]]  # its own value, the other's


class LeftOut(Record):
    card: str
    why: str


class CardComparison(Record):
    cards: int  # that were read
    groups: tuple[CardGroup, ...]
    not_compared: tuple[NotCompared, ...]
    left_out: tuple[LeftOut, ...]  # damaged, changed, or not signed by a known key

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.DONE if self.groups else ExitCode.NOTHING_MEASURED
