"""How much a plan asks for, before anything was measured."""

from dataclasses import dataclass

from bitbench.measure.estimate import Estimator
from bitbench.study.base import Record
from bitbench.study.plan import Plan


@dataclass(frozen=True)
class Amount:
    """Each pair: at least, and at most where questions stay open."""

    points: int
    starts: tuple[int, int]
    trials: tuple[int, int]
    seconds: tuple[float, float]  # with the time to create variants
    making_s: float = 0.0  # for those that are not created yet


class PlanAnswer(Record):
    """What would run, what not and why; which environments it needs, and about how long it takes."""

    plan: Plan
    environments: dict[str, str | None]  # what is wrong with each; null: it is installed
    missing_models: tuple[str, ...]  # not downloaded; planned from what the catalog knows
    before_run: tuple[str, ...]  # the commands that are needed before `bitbench run`
    amount: Amount


def amount_of(plan: Plan, estimator: Estimator, making_s: float = 0.0) -> Amount:
    measure = plan.study.measure
    configs = len({point.config for point in plan.points})
    once = len(plan.configs) - configs  # only their quality is measured
    points = len(plan.points)
    has_budget = measure.budget is not None
    blocks = (measure.starts.min, measure.starts.max)
    rounds = (1 if has_budget else measure.trials.min, measure.trials.max if has_budget else measure.trials.min)
    low_s, high_s = estimator.range_s()
    return Amount(
        points=points,
        starts=(configs * blocks[0] + once, configs * blocks[1] + once),
        trials=(points * blocks[0] * rounds[0], points * blocks[1] * rounds[1]),
        seconds=(low_s + making_s, high_s + making_s),
        making_s=making_s,
    )
