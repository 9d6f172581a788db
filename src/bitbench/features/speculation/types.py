"""What drafting tokens ahead gains, in numbers."""

from bitbench.analysis.results.estimate import Estimate
from bitbench.study.base import Record
from bitbench.study.plan import Config


class Speculation(Record):
    """A config that drafts tokens ahead, beside the same weights and settings without drafts, on one workload.

    None where it is unknown; all about drafts is, where the engine counted none. Costs are relative to a plain step.
    """

    config: Config
    plain: Config | None  # None: the study has it only with drafts
    workload: str
    acceptance_length: Estimate | None = None  # tokens of a step that began with a draft
    acceptance_rate: float | None = None  # of drafted tokens
    against_unquantized: Estimate | None = None  # of the acceptance length, under the same settings
    draft_length: float | None = None  # tokens drafted at a time
    drafted_share: float | None = None  # of steps
    tokens_per_step: float | None = None
    verify_cost: float | None = None  # of a step that checks a draft; None: no workload with so many streams
    draft_cost: float | None = None  # of one step of the draft model; 0 where there is none
    predicted: float | None = None  # gain; None where a cost is unknown
    gain: Estimate | None = None  # measured, by the time per output token; above 1 where drafting is faster
    break_even: Estimate | None = None  # the acceptance length from which it pays


class Speculations(Record):
    """Of configs that draft tokens ahead where the same weights run without; never empty."""

    rows: tuple[Speculation, ...]
