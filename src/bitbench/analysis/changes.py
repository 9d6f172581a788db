"""The change of one metric between two points, and gates such as `output_throughput < -3%`.

Several points may be tested at once, so each interval has the confidence 1 − (1 − c) / number
(Bonferroni). The chance that any of equal points is called broken stays below 1 − c. One start says
nothing about the next one, and has no interval. A server that bitbench did not start is judged by
its trials, and its results do not cover a restart. Quality is the perplexity of the same text on
both sides, token by token, over windows.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from math import exp, log

from bitbench.analysis.absolute import Samples
from bitbench.analysis.divergence import Scores, compute_window_means
from bitbench.analysis.intervals import Sample, estimate_t_mean
from bitbench.analysis.pairs import LogRatio, PairTable
from bitbench.analysis.quality import PERPLEXITY, collect_last_quality, read_short_scores
from bitbench.analysis.ranking import ModelGroup, list_model_groups
from bitbench.analysis.results.comparison import QUALITY, GateResult, Replicate, Unpaired
from bitbench.analysis.results.estimate import Estimate, Verdict, check_against_limit
from bitbench.analysis.sequential import PrimaryMetric, collect_pairs_by_workload, find_baseline
from bitbench.analysis.summarize import collect_samples, collect_values_by_start
from bitbench.analysis.trial import DEFINITIONS, RECORDED
from bitbench.analysis.unpaired import Starts, collect_unpaired_ratios, estimate_unpaired_ratio
from bitbench.records.folder import StudyRecords
from bitbench.records.quality import QualityRecord
from bitbench.study.metrics import FigureSource, find_metric
from bitbench.study.plan import Config, Point
from bitbench.util.errors import UsageError
from bitbench.util.text import suggest_name

# For a running server, on each side: as many as `bitbench load` makes of a point by default.
FEWEST_TRIALS = 3


@dataclass(frozen=True)
class Pair:
    """The two points that are compared."""

    before: Point
    after: Point


@dataclass(frozen=True)
class Change:
    """One metric of a pair of points.

    `log_ratio` is log(after / before) if more than the two samples determines it: a difference
    within blocks, or a pooled variance.
    """

    before: Sample
    after: Sample
    log_ratio: LogRatio | None = None
    unit: Replicate = Replicate.STARTS

    def ratio(self, confidence: float) -> Estimate | None:
        """Return after / before, or None if it is not defined."""
        if self.log_ratio is not None:
            return self.log_ratio.ratio(confidence)
        return estimate_unpaired_ratio(self.after, self.before, confidence)

    def explain_undecidable(self, ratio: Estimate) -> str:
        """Return why there are too few repetitions to decide anything, or an empty text."""
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
        lost = compute_window_means(self.after.window, self.before.logprob - self.after.logprob)
        return estimate_t_mean(lost.tolist(), confidence, exp)

    @property
    def perplexities(self) -> tuple[Estimate, Estimate]:
        """Return both without intervals: the interval of the ratio is paired, and much narrower."""
        return _estimate_perplexity(self.before), _estimate_perplexity(self.after)

    def explain_undecidable(self, ratio: Estimate) -> str:
        """Return why there is too little text to decide anything, or an empty text."""
        return "" if ratio.interval else "too few windows of text for an interval"


def _estimate_perplexity(scores: Scores) -> Estimate:
    return Estimate(value=exp(float(-compute_window_means(scores.window, scores.logprob).mean())))


@dataclass(frozen=True)
class Changes:
    """Every metric of every pair of points.

    `log_ratio` returns a ratio for a pair and a metric. Without it, the samples are compared.
    """

    samples: tuple[Samples, Samples]
    log_ratio: Callable[[Pair, str], LogRatio | None] | None = None
    # Configs that bitbench did not start: their trials are the repetitions.
    running: frozenset[Config] = frozenset()
    quality: Mapping[Pair, QualityChange | Unpaired] = field(default_factory=dict)

    def before(self, pair: Pair, metric: str) -> Sample | None:
        return self.samples[0].get(pair.before, {}).get(metric)

    def after(self, pair: Pair, metric: str) -> Sample | None:
        return self.samples[1].get(pair.after, {}).get(metric)

    def find(self, pair: Pair, metric: str) -> Change | QualityChange | None:
        """Return the change of a metric, or None if a side does not have the metric."""
        if metric == PERPLEXITY:
            quality = self.quality.get(pair)
            return quality if isinstance(quality, QualityChange) else None
        before = self.before(pair, metric)
        after = self.after(pair, metric)
        if before is None or after is None:
            return None
        log_ratio = self.log_ratio(pair, metric) if self.log_ratio else None
        if self.running.isdisjoint((pair.before.config, pair.after.config)):
            return Change(before, after, log_ratio)
        return Change(before, after, log_ratio, Replicate.TRIALS)

    def explain_missing(self, pair: Pair, metric: str) -> str:
        """Return why a pair does not have a metric on both sides."""
        lost = self.quality.get(pair)
        if isinstance(lost, Unpaired):
            return lost.reason
        side = "candidate" if self.before(pair, metric) else "baseline"
        return f"the {side} lacks this figure"


def make_changes_between_studies(before: StudyRecords, after: StudyRecords) -> Changes:
    """Return the changes of the same points between two studies.

    Nothing is paired, and the variances of all points of both studies are pooled. A point with one
    start on a side is undecided: the next start of the same config may differ as much.
    """
    pooled = cache(lambda metric: _collect_pooled_ratios(before, after, metric))
    samples = (collect_samples(before), collect_samples(after))
    return Changes(
        samples,
        lambda pair, metric: pooled(metric).get(pair.after),
        running=_list_running_configs(before) | _list_running_configs(after),
    )


def make_changes_within_study(records: StudyRecords) -> Changes:
    """Return the changes between configs of one study, from differences within its blocks.

    The report of the study has the same ratios. Two configs with fewer than two common blocks are
    compared by their samples alone.
    """
    group_of: dict[Config, ModelGroup] = {}
    for model_group in list_model_groups(records.plan):
        group_of |= dict.fromkeys(model_group.configs, model_group)
    tables = cache(lambda metric, group: _collect_pair_tables(records, metric, group))

    def log_ratio(pair: Pair, metric: str) -> LogRatio | None:
        group = group_of[pair.after.config]
        common = group if group is group_of[pair.before.config] else None
        return _find_block_ratio(tables(metric, common), pair, metric)

    samples = collect_samples(records)
    return Changes((samples, samples), log_ratio, running=_list_running_configs(records))


def _list_running_configs(records: StudyRecords) -> frozenset[Config]:
    return frozenset(config for config in records.plan.configs if records.was_running(config))


def _collect_pair_tables(
    records: StudyRecords, metric: str, group: ModelGroup | None
) -> dict[str, PairTable]:
    """Return the pairs of one model by workload, or the pairs of all models if `group` is None."""
    if not _is_noisy_metric(metric):
        return {}
    primary_metric = PrimaryMetric(metric, DEFINITIONS[metric].higher_is_better)
    if group is None:
        return collect_pairs_by_workload(
            records.trials, primary_metric, find_baseline(records.plan)
        )
    configs = set(group.configs)
    trials = [trial for trial in records.trials if trial.point.config in configs]
    return collect_pairs_by_workload(trials, primary_metric, group.baseline)


def _find_block_ratio(tables: Mapping[str, PairTable], pair: Pair, metric: str) -> LogRatio | None:
    """Return log(after / before). A table has speeds, so a ratio of times is the inverse."""
    table = tables.get(pair.after.workload)
    if table is None:
        return None
    if DEFINITIONS[metric].higher_is_better:
        return table.between(pair.after.config, pair.before.config)
    return table.between(pair.before.config, pair.after.config)


def _is_noisy_metric(metric: str) -> bool:
    """Return True for speeds and times, whose noise is relative. Memory hardly varies."""
    return RECORDED[metric].source is FigureSource.ROWS


def _collect_pooled_ratios(
    before: StudyRecords, after: StudyRecords, metric: str
) -> dict[Point, LogRatio]:
    """Return log(after / before) of each point, with variances pooled over all points.

    The result is empty for memory.
    """
    if not _is_noisy_metric(metric):
        return {}
    return collect_unpaired_ratios(_collect_logs(before, metric), _collect_logs(after, metric))


def _collect_logs(records: StudyRecords, metric: str) -> dict[Point, Starts]:
    """Return the log values by point and start, without points that have a value of 0."""
    logs: dict[Point, Starts] = {}
    for point, starts in collect_values_by_start(records, metric).items():
        if all(value > 0 for value in chain.from_iterable(starts)):
            logs[point] = [list(map(log, start)) for start in starts]
    return logs


def list_quality_pairs(
    sides: tuple[StudyRecords, StudyRecords], pairs: Iterable[tuple[Config, Config]]
) -> list[tuple[Config, Config]]:
    """Return the pairs whose quality at least one side measured."""
    before = _collect_scored_records(sides[0])
    after = _collect_scored_records(sides[1])
    return [pair for pair in dict.fromkeys(pairs) if pair[0] in before or pair[1] in after]


def collect_quality_changes(
    sides: tuple[StudyRecords, StudyRecords], pairs: Iterable[tuple[Config, Config]]
) -> dict[Pair, QualityChange | Unpaired]:
    """Return the change of quality of each pair that a side measured, or why it has none."""
    changes: dict[Pair, QualityChange | Unpaired] = {}
    for before, after in list_quality_pairs(sides, pairs):
        point = Point(config=after, workload=QUALITY)
        pair = Pair(Point(config=before, workload=QUALITY), point)
        changes[pair] = _compare_quality(sides, (before, after), point)
    return changes


def _compare_quality(
    sides: tuple[StudyRecords, StudyRecords], pair: tuple[Config, Config], point: Point
) -> QualityChange | Unpaired:
    texts = []
    scores = []
    for records, config, is_candidate in zip(sides, pair, (False, True), strict=True):
        record = _collect_scored_records(records).get(config)
        if record is None or record.corpus is None:
            reason = f"was not measured in {records.name}"
            return Unpaired(point=point, reason=reason, was_lost=is_candidate)
        texts.append(record.corpus.windows_hash)
        scores.append(read_short_scores(records, record))
        if not scores[-1].is_finite:
            reason = f"has log-probabilities in {records.name} that are not finite"
            return Unpaired(point=point, reason=reason, was_lost=False)
    if texts[0] != texts[1]:
        reason = "was measured on another text, or with another tokenizer"
        return Unpaired(point=point, reason=reason, was_lost=False)
    return QualityChange(scores[0], scores[1])


def _collect_scored_records(records: StudyRecords) -> dict[Config, QualityRecord]:
    """Return the last measurements that left scored tokens."""
    scored = {}
    for config, record in collect_last_quality(records).items():
        if record.scores_file is not None and record.corpus:
            scored[config] = record
    return scored


_CONDITION = re.compile(r"\s*(\w+)\s*([<>])\s*([+-]?)\s*([0-9]*\.?[0-9]+)\s*(%?)\s*")


@dataclass(frozen=True)
class GateCondition:
    """A limit on the change of a metric relative to the baseline.

    It is broken if the change is below (`<`) or above (`>`) `change`.
    """

    text: str
    metric: str
    is_below: bool
    change: float

    @property
    def limit(self) -> float:
        """Return the limit of the ratio candidate / baseline."""
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


def parse_change_metric(name: str) -> str:
    """Return the column of a metric that every trial records, or perplexity.

    `name` may have any spelling of `study.metrics`. Raise UsageError for an unknown name.
    """
    metric = find_metric(name)
    if metric is None or metric.column not in (*RECORDED, PERPLEXITY):
        names = [*(recorded.name for recorded in RECORDED.values()), PERPLEXITY]
        raise UsageError(
            f"unknown figure {name}; {suggest_name(name, names)}known are {', '.join(names)}"
        )
    return metric.column


def parse_gate_condition(text: str) -> GateCondition:
    """Parse a condition such as `ttft > 5%`. Raise UsageError if it is not valid."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--fail-if {text!r} cannot be parsed; "
            'write it as "output_throughput < -3%" or "ttft > 5%"'
        )
    name, sign, minus, amount, percent = match.groups()
    metric = parse_change_metric(name)
    value = float(amount)
    if not percent and value:
        start = f"{name} {sign} {minus}"
        raise UsageError(
            f"--fail-if {text!r} needs a percent sign; "
            f'write "{start}{value:g}%" or "{start}{100 * value:g}%"'
        )
    change = -value / 100 if minus == "-" else value / 100
    if change <= -1:
        raise UsageError(f"--fail-if {text!r}: no figure can fall by 100 % or more")
    return GateCondition(" ".join(text.split()), metric, sign == "<", change)


def judge_gate(
    condition: GateCondition,
    pair: Pair,
    change: Change | QualityChange,
    confidence: float,
    tests: int,
) -> GateResult:
    """Judge one condition on one pair. `tests` counts all conditions and points that are judged."""
    ratio = change.ratio(1 - (1 - confidence) / tests)
    if ratio is None:
        return condition.result(
            pair, None, Verdict.INCONCLUSIVE, "a ratio of these means is not defined"
        )
    verdict = condition.check(ratio)
    reason = "the interval contains the limit" if verdict is Verdict.INCONCLUSIVE else ""
    if lacking := change.explain_undecidable(ratio):
        verdict = Verdict.INCONCLUSIVE
        reason = lacking
    return condition.result(pair, ratio, verdict, reason).model_copy(update={"unit": change.unit})
