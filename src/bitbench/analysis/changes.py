"""One figure of a pair of points, before and after: its ratio, and whether it exceeds a limit such as
`output_throughput < -3%`.

Several points may be asked at once, so each interval is made at the confidence 1 − (1 − c) / number (Bonferroni): the
chance that any of equal points is called broken stays below 1 − c. One start says nothing of the next one, and has no
interval. Of a server that bitbench did not start no start is in question: it is judged by its trials, and what is found
does not cover a restart. Quality is the perplexity of the same text on both sides, token by token, over windows.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import exp, log

from bitbench.analysis.absolute import Samples
from bitbench.analysis.divergence import Scores, window_means
from bitbench.analysis.intervals import Sample, mean_t_interval
from bitbench.analysis.pairs import LogRatio, PairTable
from bitbench.analysis.quality import PERPLEXITY, last_quality_by_config, short_quality_scores
from bitbench.analysis.ranking import ModelGroup, ranking_model_groups
from bitbench.analysis.results.comparison import QUALITY, GateResult, Replicate, Unpaired
from bitbench.analysis.results.estimate import Estimate, Verdict, check_against_limit
from bitbench.analysis.sequential import PrimaryMetric, baseline_of, pairs_by_workload
from bitbench.analysis.summarize import sample_values_by_start, samples_by_point
from bitbench.analysis.trial import DEFINITIONS, RECORDED
from bitbench.analysis.unpaired import Starts, unpaired_ratio, unpaired_ratios
from bitbench.records.folder import StudyRecords
from bitbench.records.quality import QualityRecord
from bitbench.study.metrics import FigureSource, find_metric
from bitbench.study.plan import Config, Point
from bitbench.util.errors import UsageError
from bitbench.util.text import did_you_mean

FEWEST_TRIALS = (
    3  # of a running server, on each side; as many as `bitbench load` makes of a point by default
)


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

    def ratio(self, confidence: float) -> Estimate | None:
        """after / before; None where it is not defined."""
        if self.log_ratio is not None:
            return self.log_ratio.ratio(confidence)
        return unpaired_ratio(self.after, self.before, confidence)

    def why_undecidable(self, ratio: Estimate) -> str:
        """Return why so few repetitions decide nothing, whatever their interval is; empty if they may."""
        if self.unit is Replicate.TRIALS:
            if min(self.before.n_trials, self.after.n_trials) < FEWEST_TRIALS:
                return f"one side has fewer than {FEWEST_TRIALS} trials"
        elif min(self.before.n_instances, self.after.n_instances) < 2:
            return "one side has a single start, which does not cover a restart"
        return "" if ratio.interval else "too few trials for an interval"


@dataclass(frozen=True)
class QualityChange:
    """The scored tokens of the same text, before and after."""

    before: Scores
    after: Scores
    unit: Replicate = Replicate.STARTS

    def ratio(self, confidence: float) -> Estimate:
        """Return perplexity after / before."""
        lost = window_means(self.after.window, self.before.logprob - self.after.logprob)
        return mean_t_interval(lost.tolist(), confidence, exp)

    @property
    def perplexities(self) -> tuple[Estimate, Estimate]:
        """Return both without intervals: that of the ratio is paired, and much narrower."""
        before, after = (
            float(-window_means(side.window, side.logprob).mean())
            for side in (self.before, self.after)
        )
        return Estimate(value=exp(before)), Estimate(value=exp(after))

    def why_undecidable(self, ratio: Estimate) -> str:
        return "" if ratio.interval else "too few windows of text for an interval"


@dataclass(frozen=True)
class Changes:
    """Every figure of every pair of points. `log_ratio`: of a pair and a figure; without it samples are compared."""

    samples: tuple[Samples, Samples]
    log_ratio: Callable[[Pair, str], LogRatio | None] | None = None
    running: frozenset[Config] = (
        frozenset()
    )  # bitbench did not start them: their trials are the repetitions
    quality: Mapping[Pair, QualityChange | Unpaired] = field(default_factory=dict)

    def before(self, pair: Pair, metric: str) -> Sample | None:
        return self.samples[0].get(pair.before, {}).get(metric)

    def after(self, pair: Pair, metric: str) -> Sample | None:
        return self.samples[1].get(pair.after, {}).get(metric)

    def find(self, pair: Pair, metric: str) -> Change | QualityChange | None:
        """None where a side has no such figure."""
        if metric == PERPLEXITY:
            found = self.quality.get(pair)
            return found if isinstance(found, QualityChange) else None
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

    def why_missing(self, pair: Pair, metric: str) -> str:
        """Return why a pair has no such figure on both sides."""
        if isinstance(lost := self.quality.get(pair), Unpaired):
            return lost.reason
        return f"the {'candidate' if self.before(pair, metric) else 'baseline'} lacks this figure"


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
    group_of = {
        config: group for group in ranking_model_groups(study.plan) for config in group.configs
    }
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
    return (
        table.between(*(sides if DEFINITIONS[metric].higher_is_better else sides[::-1]))
        if table
        else None
    )


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


def quality_pairs(
    sides: tuple[StudyRecords, StudyRecords], pairs: Iterable[tuple[Config, Config]]
) -> list[tuple[Config, Config]]:
    """Return those that at least one side measured."""
    before, after = (_scored(side) for side in sides)
    return [(own, other) for own, other in dict.fromkeys(pairs) if own in before or other in after]


def quality_changes(
    sides: tuple[StudyRecords, StudyRecords], pairs: Iterable[tuple[Config, Config]]
) -> dict[Pair, QualityChange | Unpaired]:
    """Return what of quality can be compared of each pair that a side measured, or why it cannot."""
    found: dict[Pair, QualityChange | Unpaired] = {}
    for pair in quality_pairs(sides, pairs):
        points = [Point(config=config, workload=QUALITY) for config in pair]
        found[Pair(*points)] = _quality_change(sides, pair, points[1])
    return found


def _quality_change(
    sides: tuple[StudyRecords, StudyRecords], pair: tuple[Config, Config], point: Point
) -> QualityChange | Unpaired:
    texts, scores = [], []
    for side, config, is_candidate in zip(sides, pair, (False, True), strict=True):
        record = _scored(side).get(config)
        if record is None or record.corpus is None:
            return Unpaired(
                point=point, reason=f"was not measured in {side.name}", was_lost=is_candidate
            )
        texts.append(record.corpus.windows_hash)
        scores.append(short_quality_scores(side, record))
        if not scores[-1].is_finite:
            reason = f"has log-probabilities in {side.name} that are not finite"
            return Unpaired(point=point, reason=reason, was_lost=False)
    if texts[0] != texts[1]:
        return Unpaired(
            point=point,
            reason="was measured on another text, or with another tokenizer",
            was_lost=False,
        )
    return QualityChange(scores[0], scores[1])


def _scored(side: StudyRecords) -> dict[Config, QualityRecord]:
    """Return the measurements that left scored tokens."""
    found = last_quality_by_config(side)
    return {
        config: record
        for config, record in found.items()
        if record.scores_file is not None and record.corpus
    }


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

    def result(
        self, pair: Pair, ratio: Estimate | None, verdict: Verdict, reason: str = ""
    ) -> GateResult:
        return GateResult(
            condition=self.text,
            metric=self.metric,
            baseline=pair.before,
            candidate=pair.after,
            verdict=verdict,
            ratio=ratio,
            reason=reason,
        )


def metric_of_change(name: str) -> str:
    """The column of a figure that every trial records, or perplexity; in any spelling of `study.metrics`."""
    metric = find_metric(name)
    if metric is None or metric.column not in (*RECORDED, PERPLEXITY):
        known = [*(figure.name for figure in RECORDED.values()), PERPLEXITY]
        raise UsageError(
            f"unknown figure {name}; {did_you_mean(name, known)}known are {', '.join(known)}"
        )
    return metric.column


def gate_condition(text: str) -> GateCondition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(
            f'--fail-if {text!r} cannot be parsed; write it as "output_throughput < -3%" or "ttft > 5%"'
        )
    name, sign, minus, amount, percent = match.groups()
    metric = metric_of_change(name)
    if not percent and float(amount):
        shown = [
            f'"{name} {sign} {minus}{number:g}%"' for number in (float(amount), 100 * float(amount))
        ]
        raise UsageError(f"--fail-if {text!r} needs a percent sign; write {' or '.join(shown)}")
    change = float(amount) / 100 * (-1 if minus == "-" else 1)
    if change <= -1:
        raise UsageError(f"--fail-if {text!r}: no figure can fall by 100 % or more")
    return GateCondition(" ".join(text.split()), metric, sign == "<", change)


def judge_gate(
    condition: GateCondition,
    pair: Pair,
    change: Change | QualityChange,
    confidence: float,
    asked: int,
) -> GateResult:
    """`asked`: how many points and conditions are judged at once."""
    single = 1 - (1 - confidence) / asked
    ratio = change.ratio(single)
    if ratio is None:
        return condition.result(
            pair, None, Verdict.INCONCLUSIVE, "a ratio of these means is not defined"
        )
    verdict = condition.check(ratio)
    reason = "the interval contains the limit" if verdict is Verdict.INCONCLUSIVE else ""
    if lacking := change.why_undecidable(ratio):
        verdict, reason = Verdict.INCONCLUSIVE, lacking
    return condition.result(pair, ratio, verdict, reason).model_copy(update={"unit": change.unit})
