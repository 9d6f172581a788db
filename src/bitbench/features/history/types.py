"""One metric of one point over past studies."""

from bitbench.analysis.results.comparison import ChangeVerdict, Difference
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import MetricDefinition
from bitbench.study.base import Record
from bitbench.study.plan import Point


class HistoryPoint(Record):
    """One study. `ratio`, `verdict` and `changes` are against the point before; the first has none."""

    folder: str
    started_at: str | None
    estimate: Estimate
    ratio: Estimate | None = None
    verdict: ChangeVerdict | None = None
    changes: tuple[Difference, ...] = ()


class History(Record):
    point: Point
    metric: str
    definition: MetricDefinition
    confidence: float
    points: tuple[HistoryPoint, ...]  # oldest first
    without_result: tuple[str, ...] = ()  # folders that asked for this point and have no such figure
    other_shape: tuple[str, ...] = ()  # folders whose workload of this name is another one
