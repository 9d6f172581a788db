"""How fast contenders of a study are, each against each: from blocks where they met, else from their means."""

from collections.abc import Mapping
from dataclasses import dataclass

from bitbench.analysis.comparison import compare_speed
from bitbench.analysis.intervals import Sample
from bitbench.analysis.results.summary import Ratio
from bitbench.analysis.sequential import SequentialAnalysis
from bitbench.study.plan import Cell, Contender


@dataclass(frozen=True)
class Speeds:
    """By the headline of the study."""

    standing: SequentialAnalysis
    samples: Mapping[Cell, Mapping[str, Sample]]
    confidence: float

    @property
    def metric(self) -> str:
        return self.standing.headline.metric

    def between(self, one: Contender, other: Contender, workload: str) -> Ratio | None:
        """Above 1 where `one` is faster; None where one of them has no result."""
        if paired := self.standing.speed(workload, one, other, self.confidence):
            return paired
        cells = (Cell(contender=contender, workload=workload) for contender in (one, other))
        own, others = (self.samples.get(cell, {}).get(self.metric) for cell in cells)
        return compare_speed(own, others, self.confidence, higher_is_better=self.standing.headline.higher_is_better)
