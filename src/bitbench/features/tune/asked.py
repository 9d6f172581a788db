"""What `bitbench tune` looks for, and under which limits; the limits on times are the study's `objectives`."""

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from bitbench.features.tune.alike import alike_setups
from bitbench.ports import Engine
from bitbench.study.base import Bytes, Fraction
from bitbench.study.plan import Plan
from bitbench.study.study import Study, StudySection


class Goal(StrEnum):
    THROUGHPUT = "throughput"  # the best primary metric of the study
    COST = "cost"  # on one machine the order is that of the throughput
    MEMORY = "memory"  # the least at its peak


class Tune(StudySection):
    """A search for the best config, confirmed afterwards."""

    description = "what `bitbench tune` looks for among the configs"
    run_by = "tune"
    may_change = True

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

    def refuse(self, study: Study) -> str | None:
        if len(study.workloads) != 1 or len(study.models) > 1:
            return "what is best differs by workload and model; give one of each"
        if self.goal is Goal.COST and self.price_per_hour is None:
            return "the goal cost needs `price_per_hour`"
        if self.max_quality_loss is not None and study.quality is None:
            return "max_quality_loss needs quality to be measured; add `quality: {}`"
        return None

    def change_plan(self, plan: Plan, engines: Mapping[str, Engine]) -> Plan:
        """Let setups that cannot differ in what a model says share a measurement of its quality."""
        return plan.model_copy(update={"alike_setups": alike_setups(plan.study, engines)})
