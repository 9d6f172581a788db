"""Which contenders of a large space are searched: as many as the budget pays for, drawn at random."""

from collections.abc import Callable
from random import Random

from bitbench.study.plan import Contender, Plan

FEWEST = 2  # there is nothing to choose from one


def draw(plan: Plan, baseline: Contender | None, seconds_of: Callable[[Contender], float], budget_s: float) -> Plan:
    """All where the time is enough; else the baseline, and of the others as many as it pays for, in an order that
    follows from the seed. What was refused stays in the plan with its reason."""
    contenders = list(dict.fromkeys(cell.contender for cell in plan.cells))
    order = [contender for contender in contenders if contender != baseline]
    Random(f"{plan.study.seed}/draw").shuffle(order)
    first = [baseline] if baseline in contenders else []
    drawn: list[Contender] = []
    spent_s = 0.0
    for contender in [*first, *order]:
        spent_s += seconds_of(contender)
        if spent_s > budget_s and len(drawn) >= FEWEST:
            break
        drawn.append(contender)
    if len(drawn) == len(contenders):
        return plan
    return plan.only({*drawn, *(refusal.cell.contender for refusal in plan.refusals)})
