"""One figure of a pair of cells, before and after: its ratio at any confidence, and how many starts it rests on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import log

from bitbench.core.cell import Cell, Contender
from bitbench.core.found.comparison import Replicate
from bitbench.core.found.metrics import FigureSource
from bitbench.core.found.summary import Ratio
from bitbench.core.recorded.study import StudyRecords
from bitbench.statistics.comparison import compare
from bitbench.statistics.intervals import Sample
from bitbench.statistics.log_ratio import LogRatio
from bitbench.statistics.summarize import samples_by_cell, values_by_start
from bitbench.statistics.trial import RECORDED
from bitbench.statistics.unpaired import Starts, compare_speeds

Samples = Mapping[Cell, Mapping[str, Sample]]


@dataclass(frozen=True)
class Pair:
    before: Cell
    after: Cell


@dataclass(frozen=True)
class Change:
    """`log_ratio`: after / before, where more is known than the two samples say by themselves."""

    before: Sample
    after: Sample
    log_ratio: LogRatio | None = None
    unit: Replicate = Replicate.STARTS

    @property
    def counts(self) -> tuple[int, int]:
        """How often each side was repeated."""
        if self.unit is Replicate.TRIALS:
            return self.before.n_trials, self.after.n_trials
        return self.before.n_instances, self.after.n_instances

    def ratio(self, confidence: float) -> Ratio | None:
        """after / before; None where it is not defined."""
        if self.log_ratio is not None:
            return self.log_ratio.ratio(confidence)
        return compare(self.after, self.before, confidence)

    @property
    def variance_of_one(self) -> float | None:
        """Of the log ratio, if each side had one start (or trial); None where that is unknown."""
        if self.log_ratio is not None:
            return 2 * self.log_ratio.standard_error**2 / sum(1 / count for count in self.counts)
        sides = [(side.uncertainty, side.mean) for side in (self.before, self.after)]
        known = [
            (own.standard_error / mean) ** 2 * count
            for (own, mean), count in zip(sides, self.counts, strict=True)
            if own is not None
        ]
        return sum(known) if len(known) == len(sides) else None


@dataclass(frozen=True)
class Changes:
    """Every figure of every pair of cells. `log_ratio`: of a pair and a figure; without it samples are compared."""

    samples: tuple[Samples, Samples]
    log_ratio: Callable[[Pair, str], LogRatio | None] | None = None
    running: frozenset[Contender] = frozenset()  # bitbench did not start them: their trials are the repetitions

    def before(self, pair: Pair, metric: str) -> Sample | None:
        return self.samples[0].get(pair.before, {}).get(metric)

    def after(self, pair: Pair, metric: str) -> Sample | None:
        return self.samples[1].get(pair.after, {}).get(metric)

    def find(self, pair: Pair, metric: str) -> Change | None:
        """None where a side has no such figure."""
        before, after = self.before(pair, metric), self.after(pair, metric)
        if before is None or after is None:
            return None
        is_running = not self.running.isdisjoint((pair.before.contender, pair.after.contender))
        return Change(
            before,
            after,
            self.log_ratio(pair, metric) if self.log_ratio else None,
            Replicate.TRIALS if is_running else Replicate.STARTS,
        )


def changes_between(before: StudyRecords, after: StudyRecords) -> Changes:
    """Of the same cells in two studies: nothing is paired, and the cells of both lend each other degrees of freedom.

    A cell with one start on a side is compared by its samples alone.
    """
    lent = cache(lambda metric: _lent(before, after, metric))
    samples = (samples_by_cell(before), samples_by_cell(after, stream=1))
    return Changes(samples, lambda pair, metric: lent(metric).get(pair.after), _running(before) | _running(after))


def changes_within(study: StudyRecords) -> Changes:
    """Of contenders of one study, by their samples alone: `log_ratio` is where its blocks would pair them."""
    samples = samples_by_cell(study)
    return Changes((samples, samples), running=_running(study))


def _running(study: StudyRecords) -> frozenset[Contender]:
    return frozenset(contender for contender in study.plan.contenders if study.was_running(contender))


def _lent(before: StudyRecords, after: StudyRecords, metric: str) -> dict[Cell, LogRatio]:
    """Of speeds and times, whose noise is relative; memory hardly varies, and says nothing about other cells."""
    if RECORDED[metric].source is not FigureSource.ROWS:
        return {}
    return compare_speeds(_logs(before, metric), _logs(after, metric))


def _logs(study: StudyRecords, metric: str) -> dict[Cell, Starts]:
    """Without the cells that have a figure of 0: it has no logarithm."""
    return {
        cell: [[log(value) for value in start] for start in starts]
        for cell, starts in values_by_start(study, metric).items()
        if all(value > 0 for start in starts for value in start)
    }
