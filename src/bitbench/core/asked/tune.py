"""What `bitbench tune` looks for, and under which limits; the limits on times are the study's `objectives`."""

from enum import StrEnum

from pydantic import Field

from bitbench.core.base import Bytes, Fraction, Spec


class Goal(StrEnum):
    THROUGHPUT = "throughput"  # the best headline of the study
    COST = "cost"  # on one machine the order is that of the throughput
    MEMORY = "memory"  # the least at its peak


class Tune(Spec):
    """A search for the best contender, confirmed afterwards."""

    goal: Goal = Field(default=Goal.THROUGHPUT, description="throughput, cost or memory")
    max_memory: Bytes | None = Field(default=None, gt=0, description="peak memory as run, reserved KV cache included")
    max_quality_loss: Fraction | None = Field(default=None, ge=0, description="rise of perplexity; needs `quality`")
    price_per_hour: float | None = Field(default=None, ge=0, description="of the machine, for costs")
    within: Fraction = Field(
        default=0.02, ge=0, lt=1, description="the search ends early once nothing is better than its best by more"
    )
    confirm: Fraction = Field(
        default=0.3, gt=0, lt=0.9, description="share of the budget for measuring the best against the baseline anew"
    )
