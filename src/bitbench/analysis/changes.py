"""One figure of a pair of points, before and after: its ratio, and whether it exceeds a limit such as
`output_throughput < -3%`.

Several points may be asked at once, so each interval is made at the confidence 1 − (1 − c) / number (Bonferroni): the
chance that any of equal points is called broken stays below 1 − c. One start says nothing of the next one, and has no
interval. Of a server that bitbench did not start no start is in question: it is judged by
its trials, and what is found does not cover a restart.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import log, sqrt

from bitbench.analysis.absolute import Samples
from bitbench.analysis.intervals import Sample, t_reach
from bitbench.analysis.pairs import LogRatio, PairTable
from bitbench.analysis.quality import PERPLEXITY
from bitbench.analysis.ranking import FEWEST_STARTS, ModelGroup, ranking_model_groups
from bitbench.analysis.results.comparison import ChangeVerdict, GateResult, Replicate
from bitbench.analysis.results.estimate import Estimate, Verdict, check_against_limit
from bitbench.analysis.sequential import PrimaryMetric, baseline_of, pairs_by_workload
from bitbench.analysis.summarize import sample_values_by_start, samples_by_point
from bitbench.analysis.trial import DEFINITIONS, RECORDED
from bitbench.analysis.unpaired import Starts, unpaired_ratio, unpaired_ratios
from bitbench.records.folder import StudyRecords
from bitbench.study.metrics import FigureSource, find_metric
from bitbench.study.plan import Config, Point
from bitbench.util.errors import UsageError
from bitbench.util.text import did_you_mean


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
        return unpaired_ratio(self.after, self.before, confidence)

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
        before, after = self.before.uncertainty, self.after.uncertainty
        if before is None or after is None:
            return None
        return before.standard_error**2 * self.counts[0] + after.standard_error**2 * self.counts[1]


@dataclass(frozen=True)
class Changes:
    """Every figure of every pair of points. `log_ratio`: of a pair and a figure; without it samples are compared."""

    samples: tuple[Samples, Samples]
    log_ratio: Callable[[Pair, str], LogRatio | None] | None = None
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

    A point with one start on a side is undecided: the next start of the same thing may differ as much.
    """
    lent = cache(lambda metric: _lent(before, after, metric))
    samples = (samples_by_point(before), samples_by_point(after))
    return Changes(
        samples,
        lambda pair, metric: lent(metric).get(pair.after),
        running=_running(before) | _running(after),
    )


def changes_within(study: StudyRecords) -> Changes:
    """Of configs of one study, from differences within its blocks, as its report has them.

    Two that have no two blocks in common are compared by their samples alone.
    """
    group_of = {config: group for group in ranking_model_groups(study.plan) for config in group.configs}
    tables = cache(lambda metric, group: _tables(study, metric, group))

    def log_ratio(pair: Pair, metric: str) -> LogRatio | None:
        own, other = group_of[pair.after.config], group_of[pair.before.config]
        return _within_blocks(tables(metric, own if own is other else None), pair, metric)

    samples = samples_by_point(study)
    return Changes((samples, samples), log_ratio, running=_running(study))


def _running(study: StudyRecords) -> frozenset[Config]:
    return frozenset(config for config in study.plan.configs if study.was_running(config))


def _tables(study: StudyRecords, metric: str, group: ModelGroup | None) -> dict[str, PairTable]:
    """`group`: of whose model both configs are; None where they are of two."""
    if not _varies(metric):
        return {}
    primary_metric = PrimaryMetric(metric, DEFINITIONS[metric].higher_is_better)
    if group is None:
        return pairs_by_workload(study.trials, primary_metric, baseline_of(study.plan))
    own = set(group.configs)
    trials = [trial for trial in study.trials if trial.point.config in own]
    return pairs_by_workload(trials, primary_metric, group.baseline)


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
    return unpaired_ratios(_logs(before, metric), _logs(after, metric))


def _logs(study: StudyRecords, metric: str) -> dict[Point, Starts]:
    """Without the points that have a figure of 0: it has no logarithm."""
    return {
        point: [[log(value) for value in start] for start in starts]
        for point, starts in sample_values_by_start(study, metric).items()
        if all(value > 0 for start in starts for value in start)
    }


MOST_REPETITIONS = 1000  # beyond it nobody starts an engine again; the change equals the limit itself
FEWEST_TRIALS = 3  # of a running server, on each side; as many as `bitbench load` makes of a point by default

_CONDITION = re.compile(r"\s*(\w+)\s*([<>])\s*([+-]?)\s*([0-9]*\.?[0-9]+)\s*(%?)\s*")


@dataclass(frozen=True)
class GateCondition:
    """Broken when the change of `metric`, relative to the baseline, is below (`<`) or above (`>`) `change`."""

    text: str
    metric: str
    is_below: bool
    change: float

    @property
    def limit(self) -> float:
        """As a ratio."""
        return 1 + self.change

    def check(self, ratio: Estimate) -> Verdict:
        return check_against_limit(ratio, self.limit, at_least=self.is_below)

    def result(self, pair: Pair, ratio: Estimate | None, verdict: Verdict, reason: str = "") -> GateResult:
        return GateResult(
            condition=self.text,
            metric=self.metric,
            baseline=pair.before,
            candidate=pair.after,
            verdict=verdict,
            ratio=ratio,
            reason=reason,
        )


def change_verdict(
    ratio: Estimate | None, above: ChangeVerdict, below: ChangeVerdict, margin: float = 0.0
) -> ChangeVerdict:
    """Of a ratio whose whole interval lies above or below 1, by more than the margin."""
    if ratio is None or ratio.interval is None:
        return ChangeVerdict.UNKNOWN
    if ratio.is_above(1 + margin):
        return above
    return below if ratio.is_below(1 - margin) else ChangeVerdict.UNDECIDED


def metric_of_change(name: str) -> str:
    """The column of a figure that every trial records, or perplexity; in any spelling of `study.metrics`."""
    metric = find_metric(name)
    if metric is None or metric.column not in (*RECORDED, PERPLEXITY):
        known = [*(figure.name for figure in RECORDED.values()), PERPLEXITY]
        raise UsageError(f"unknown figure {name}; {did_you_mean(name, known)}known are {', '.join(known)}")
    return metric.column


def gate_condition(text: str) -> GateCondition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(f'--fail-if {text!r} cannot be parsed; write it as "output_throughput < -3%" or "ttft > 5%"')
    name, sign, minus, amount, percent = match.groups()
    metric = metric_of_change(name)
    if not percent and float(amount):
        shown = [f'"{name} {sign} {minus}{number:g}%"' for number in (float(amount), 100 * float(amount))]
        raise UsageError(f"--fail-if {text!r} needs a percent sign; write {' or '.join(shown)}")
    change = float(amount) / 100 * (-1 if minus == "-" else 1)
    if change <= -1:
        raise UsageError(f"--fail-if {text!r}: no figure can fall by 100 % or more")
    return GateCondition(" ".join(text.split()), metric, sign == "<", change)


def judge_gate(condition: GateCondition, pair: Pair, change: Change, confidence: float, asked: int) -> GateResult:
    """`asked`: how many points and conditions are judged at once."""
    single = 1 - (1 - confidence) / asked
    ratio = change.ratio(single)
    if ratio is None:
        return condition.result(pair, None, Verdict.INCONCLUSIVE, "a ratio of these means is not defined")
    verdict, reason, needed = condition.check(ratio), "", None
    if (lacking := _lacking(change)) is not None or ratio.interval is None:
        verdict, reason = Verdict.INCONCLUSIVE, lacking or "too few trials for an interval"
        needed = FEWEST_TRIALS if change.unit is Replicate.TRIALS else FEWEST_STARTS
    elif verdict is Verdict.INCONCLUSIVE:
        needed = _repetitions_needed(change, log(ratio.value) - log(condition.limit), single)
        reason = "the interval contains the limit" if needed else "the change equals the limit"
    judged = condition.result(pair, ratio, verdict, reason)
    return judged.model_copy(update={"needed": needed, "unit": change.unit})


def _lacking(change: Change) -> str | None:
    """Why so few repetitions decide nothing, whatever their interval is."""
    if change.unit is Replicate.TRIALS:
        return f"one side has fewer than {FEWEST_TRIALS} trials" if change.fewest < FEWEST_TRIALS else None
    return "one side has a single start, which does not cover a restart" if change.fewest < 2 else None


def _repetitions_needed(change: Change, distance: float, confidence: float) -> int | None:
    """Of each side until the interval would leave the limit, if means and spread stay as they are.

    `distance` of the log ratio to the limit. None: more than MOST_REPETITIONS. The standard error of a mean falls with
    the root of their number.
    """
    variance = change.variance_of_one
    if variance is None:
        return None
    for count in range(change.fewest + 1, MOST_REPETITIONS + 1):
        quantile = t_reach(change.degrees_of_freedom(count), confidence)
        if quantile * sqrt(variance / count) < abs(distance):
            return count
    return None
