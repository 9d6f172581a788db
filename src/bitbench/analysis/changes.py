"""One figure of a pair of points, before and after: its ratio at any confidence, and how many starts it rests on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import log

from bitbench.analysis.intervals import Sample
from bitbench.analysis.log_speeds import LogRatio
from bitbench.analysis.pairs import PairTable
from bitbench.analysis.results.comparison import Replicate
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.sequential import PrimaryMetric, baseline_of, pair_tables
from bitbench.analysis.summarize import samples_by_point, values_by_start
from bitbench.analysis.trial import DEFINITIONS, RECORDED
from bitbench.analysis.unpaired import Starts, compare, compare_speeds
from bitbench.records.study_records import StudyRecords
from bitbench.study.metrics import FigureSource
from bitbench.study.plan import Config, Point

Samples = Mapping[Point, Mapping[str, Sample]]


@dataclass(frozen=True)
class Pair:
    before: Point
    after: Point


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

    @property
    def fewest(self) -> int:
        return min(self.counts)

    def ratio(self, confidence: float) -> Estimate | None:
        """after / before; None where it is not defined."""
        if self.log_ratio is not None:
            return self.log_ratio.ratio(confidence)
        return compare(self.after, self.before, confidence)

    def degrees_of_freedom(self, count: int) -> float:
        """With so many repetitions of each side; of a ratio with lent ones at least one more for each further one."""
        if self.log_ratio is not None:
            return self.log_ratio.degrees_of_freedom + count - self.fewest
        return 2 * (count - 1)

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
    """Every figure of every pair of points. `log_ratio`: of a pair and a figure; without it samples are compared.

    `least_repetitions`: with fewer starts on a side (or trials, of a server that was running) nothing is decided.
    """

    samples: tuple[Samples, Samples]
    log_ratio: Callable[[Pair, str], LogRatio | None] | None = None
    least_repetitions: int = 1
    running: frozenset[Config] = frozenset()  # bitbench did not start them: their trials are the repetitions

    def before(self, pair: Pair, metric: str) -> Sample | None:
        return self.samples[0].get(pair.before, {}).get(metric)

    def after(self, pair: Pair, metric: str) -> Sample | None:
        return self.samples[1].get(pair.after, {}).get(metric)

    def find(self, pair: Pair, metric: str) -> Change | None:
        """None where a side has no such figure."""
        before, after = self.before(pair, metric), self.after(pair, metric)
        if before is None or after is None:
            return None
        is_running = not self.running.isdisjoint((pair.before.config, pair.after.config))
        return Change(
            before,
            after,
            self.log_ratio(pair, metric) if self.log_ratio else None,
            Replicate.TRIALS if is_running else Replicate.STARTS,
        )


def changes_between(before: StudyRecords, after: StudyRecords) -> Changes:
    """Of the same points in two studies: nothing is paired, and the points of both lend each other degrees of freedom.

    A point with one start on a side is compared by its samples alone, and undecided: the next start of the same thing
    may differ as much.
    """
    lent = cache(lambda metric: _lent(before, after, metric))
    samples = (samples_by_point(before), samples_by_point(after, stream=1))
    return Changes(
        samples,
        lambda pair, metric: lent(metric).get(pair.after),
        least_repetitions=2,
        running=_running(before) | _running(after),
    )


def changes_within(study: StudyRecords) -> Changes:
    """Of configs of one study, from differences within its blocks, as its report has them.

    Two that have no two blocks in common are compared by their samples alone.
    """
    tables = cache(lambda metric: _tables(study, metric))
    samples = samples_by_point(study)
    return Changes(
        (samples, samples),
        lambda pair, metric: _within_blocks(tables(metric), pair, metric),
        running=_running(study),
    )


def _running(study: StudyRecords) -> frozenset[Config]:
    return frozenset(config for config in study.plan.configs if study.was_running(config))


def _tables(study: StudyRecords, metric: str) -> dict[str, PairTable]:
    if not _varies(metric):
        return {}
    primary_metric = PrimaryMetric(metric, DEFINITIONS[metric].higher_is_better)
    return pair_tables(study.trials, primary_metric, baseline_of(study.plan))


def _within_blocks(tables: Mapping[str, PairTable], pair: Pair, metric: str) -> LogRatio | None:
    """A table has speeds; the ratio of times is the other way round."""
    table = tables.get(pair.after.workload)
    sides = (pair.after.config, pair.before.config)
    return table.between(*(sides if DEFINITIONS[metric].higher_is_better else sides[::-1])) if table else None


def _varies(metric: str) -> bool:
    """Speeds and times, whose noise is relative; memory hardly varies, and says nothing about other points."""
    return RECORDED[metric].source is FigureSource.ROWS


def _lent(before: StudyRecords, after: StudyRecords, metric: str) -> dict[Point, LogRatio]:
    if not _varies(metric):
        return {}
    return compare_speeds(_logs(before, metric), _logs(after, metric))


def _logs(study: StudyRecords, metric: str) -> dict[Point, Starts]:
    """Without the points that have a figure of 0: it has no logarithm."""
    return {
        point: [[log(value) for value in start] for start in starts]
        for point, starts in values_by_start(study, metric).items()
        if all(value > 0 for start in starts for value in start)
    }
