"""How much a plan asks for, before anything was measured."""

from dataclasses import dataclass

from bitbench.core.cell import Plan
from bitbench.planning.estimate import Estimator


@dataclass(frozen=True)
class Amount:
    """Each pair: at least, and at most where the intervals stay wide."""

    cells: int
    starts: tuple[int, int]
    trials: tuple[int, int]
    seconds: tuple[float, float]


def amount_of(plan: Plan, estimator: Estimator) -> Amount:
    measure = plan.study.measure
    contenders = len({cell.contender for cell in plan.cells})
    once = len(plan.contenders) - contenders  # only their quality is measured
    cells = len(plan.cells)
    return Amount(
        cells=cells,
        starts=(contenders * measure.instances.min + once, contenders * measure.instances.max + once),
        trials=(
            cells * measure.instances.min * measure.trials.min,
            cells * measure.instances.max * measure.trials.max,
        ),
        seconds=estimator.range_s(),
    )
