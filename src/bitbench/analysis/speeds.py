"""How fast configs of a study are, each against each: from blocks where they met, else from their means."""

from collections.abc import Mapping
from dataclasses import dataclass

from bitbench.analysis.comparison import compare_speed
from bitbench.analysis.intervals import Sample
from bitbench.analysis.results.summary import Ratio
from bitbench.analysis.sequential import SequentialAnalysis
from bitbench.study.plan import Config, Point


@dataclass(frozen=True)
class Speeds:
    """By the primary metric of the study."""

    standing: SequentialAnalysis
    samples: Mapping[Point, Mapping[str, Sample]]
    confidence: float

    @property
    def metric(self) -> str:
        return self.standing.primary_metric.metric

    def between(self, one: Config, other: Config, workload: str) -> Ratio | None:
        """Above 1 where `one` is faster; None where one of them has no result."""
        if paired := self.standing.speed(workload, one, other, self.confidence):
            return paired
        points = (Point(config=config, workload=workload) for config in (one, other))
        own, others = (self.samples.get(point, {}).get(self.metric) for point in points)
        return compare_speed(
            own, others, self.confidence, higher_is_better=self.standing.primary_metric.higher_is_better
        )
