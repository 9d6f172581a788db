"""Which configs of a large space are searched: as many as the budget pays for, drawn at random."""

from collections.abc import Callable
from random import Random

from bitbench.study.plan import Config, Plan

FEWEST = 2  # there is nothing to choose from one


def draw(plan: Plan, baseline: Config | None, seconds_of: Callable[[Config], float], budget_s: float) -> Plan:
    """All where the time is enough; else the baseline, and of the others as many as it pays for, in an order that
    follows from the seed. What was refused stays in the plan with its reason."""
    configs = list(dict.fromkeys(point.config for point in plan.points))
    order = [config for config in configs if config != baseline]
    Random(f"{plan.study.seed}/draw").shuffle(order)
    first = [baseline] if baseline in configs else []
    drawn: list[Config] = []
    spent_s = 0.0
    for config in [*first, *order]:
        spent_s += seconds_of(config)
        if spent_s > budget_s and len(drawn) >= FEWEST:
            break
        drawn.append(config)
    if len(drawn) == len(configs):
        return plan
    return plan.only({*drawn, *(refusal.point.config for refusal in plan.refusals)})
