"""Perplexity, divergence from the baseline and agreement with it, from the log-probabilities that were stored.

Tokens of one window are not independent, so windows are resampled, the same ones on both sides. Means have the width of
Student's t over windows with the bootstrap's shape (as in `analysis.intervals`); the 99th percentile has the
bootstrap's own percentiles. Greedy answers and task results stand beside the baseline's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp, expm1, hypot
from zlib import crc32

import numpy as np

from bitbench.analysis.divergence import Floats, Integers, Scores, divergence, scores_of
from bitbench.analysis.intervals import Resampler, Sample, sample, with_interval
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import (
    AnswerComparison,
    ConfigQuality,
    MetricDefinition,
    PositionDivergence,
    TaskEstimate,
)
from bitbench.analysis.sequential import baseline_of as study_baseline
from bitbench.analysis.settings import with_other_settings
from bitbench.records.quality import Answer, Condition, QualityRecord, TaskResult
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import Outcome
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Plan
from bitbench.study.quality import Quality
from bitbench.util.units import show_percent

FIRST_STRETCH = 64  # tokens of a window, before stretches that double
DRAWS = 1000  # of the 99th percentile, each over all tokens
# The end of an answer is one piece over and over: at least so many times, and at least so many tokens in all. A list
# with the same beginning of each line, or "ha ha ha", stays below.
LEAST_REPEATS = 4
LEAST_REPEATED_TOKENS = 16

PERPLEXITY, RISE, KL, KL_P99, TOP1 = "perplexity", "perplexity_rise", "kl_mean", "kl_p99", "top1_agreement"
DEFINITIONS = {name: MetricDefinition.of(METRICS[name]) for name in (PERPLEXITY, RISE, KL, KL_P99, TOP1)}


def estimates_of(
    scores: Scores, baseline: Scores | None, confidence: float, seed: Sequence[int]
) -> dict[str, Estimate]:
    """Those of DEFINITIONS that can be said; raises nothing for scores that are not finite, so ask before."""
    rng = np.random.default_rng(seed)
    resampler = Resampler(rng)

    def over_windows(values: Floats) -> Sample:
        return sample([window_means(scores.window, values).tolist()], resampler)

    found = {PERPLEXITY: with_interval(over_windows(-scores.logprob), confidence, exp)}
    if baseline is None:
        return found
    worse = over_windows(baseline.logprob - scores.logprob)
    kl = divergence(baseline, scores)
    agrees = (scores.top_tokens[:, 0] == baseline.top_tokens[:, 0]).astype(np.float64)
    found[RISE] = with_interval(worse, confidence, expm1)
    found[KL] = with_interval(over_windows(kl), confidence, lambda value: max(value, 0.0))
    found[KL_P99] = _percentile(scores.window, kl, 0.99, confidence, rng)
    found[TOP1] = with_interval(over_windows(agrees), confidence, lambda value: min(max(value, 0.0), 1.0))
    return found


def window_means(window: Integers, values: Floats) -> Floats:
    """All windows have the same number of tokens, so their mean is the mean over tokens."""
    return np.asarray(np.bincount(window, values) / np.bincount(window))


def _percentile(
    window: Integers, values: Floats, share: float, confidence: float, rng: np.random.Generator
) -> Estimate:
    by_window = [values[window == number] for number in np.unique(window)]
    drawn = rng.integers(len(by_window), size=(DRAWS, len(by_window)))
    found = [np.quantile(np.concatenate([by_window[number] for number in draw]), share) for draw in drawn]
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value=float(np.quantile(values, share)), low=float(low), high=float(high), confidence=confidence)


def flag(estimates: Mapping[str, Estimate], quality: Quality) -> str | None:
    """Why the loss is certainly beyond what the study allows: the whole interval is. None where it is not sure."""
    limits = ((KL, quality.max_divergence, _nats), (RISE, quality.max_perplexity_rise, show_percent))
    for name, limit, show in limits:
        found = estimates.get(name)
        if found is None:
            continue
        low = found.value if found.low is None else found.low
        if low > limit:
            return f"its {DEFINITIONS[name].name} is at least {show(low)}, beyond the limit of {show(limit)}"
    return None


def _nats(value: float) -> str:
    return f"{value:.3g} nats"


def baseline_of(config: Config, plan: Plan) -> Config | None:
    """The same weights in the baseline's setting, where settings of an engine are compared; else the same model without
    quantization on the same engine setup, or on one that shares its quality; else what the study names as its
    baseline, where that is the same model there; None where the study has none."""
    chosen = study_baseline(plan)
    if chosen and chosen in plan.quality and chosen in with_other_settings(plan) and _alike(config, chosen, plan):
        return chosen
    wanted = plan.variant(config.variant).model
    alike = {other.engine for other in plan.sharing_quality(config)}
    dense = []
    for other in plan.quality:
        variant = plan.variant(other.variant)
        if variant.is_dense and other.engine in alike and variant.model == wanted:
            dense.append(other)
    is_compared = len(plan.quality) > 1 and chosen is not None and chosen in plan.quality
    if not dense and plan.study.baseline and chosen and is_compared and chosen.engine in alike:
        return chosen if plan.variant(chosen.variant).model == wanted else None
    return next((other for other in dense if other.engine == config.engine), dense[0] if dense else None)


def _alike(config: Config, other: Config, plan: Plan) -> bool:
    engines = {plan.study.engine(each.engine).engine for each in (config, other)}
    return config.variant == other.variant and len(engines) == 1


def by_position(
    scores: Scores, baseline: Scores, confidence: float, seed: Sequence[int]
) -> tuple[PositionDivergence, ...]:
    """In stretches that double: from 1, 64, 128 … to the end of a window. All windows are of one length."""
    resampler = Resampler(np.random.default_rng(seed))
    kl = divergence(baseline, scores)
    _, counts = np.unique(scores.window, return_counts=True)
    position = np.concatenate([np.arange(1, count + 1) for count in counts])
    end, bounds = int(counts.max()) + 1, [1]
    while max(FIRST_STRETCH, 2 * bounds[-1]) < end:
        bounds.append(max(FIRST_STRETCH, 2 * bounds[-1]))
    found = []
    for first, after in pairwise([*bounds, end]):
        inside = (position >= first) & (position < after)
        means = window_means(scores.window[inside], kl[inside])
        mean = with_interval(sample([means.tolist()], resampler), confidence, lambda value: max(value, 0.0))
        found.append(PositionDivergence(first=first, last=after - 1, divergence=mean))
    return tuple(found)


def summarize_quality(of: StudyRecords) -> tuple[ConfigQuality, ...]:
    """Each config whose quality was measured or tried, in the order of the plan."""
    last = last_alone(of)
    known = {config: record for config in of.plan.quality if (record := record_of(config, last, of.plan)) is not None}
    read = cache(lambda config: scores_of(of.scores_of(last[config])))  # a baseline is asked for often
    return tuple(_summarize(config, known, of.plan, read) for config in known)


def record_of(config: Config, last: Mapping[Config, QualityRecord], plan: Plan) -> QualityRecord | None:
    """Its own, or that of one whose quality it shares; one that failed where there is no other."""
    own = last.get(config)
    if own is not None and own.outcome is Outcome.OK:
        return own
    others = (last[other] for other in plan.sharing_quality(config) if other in last)
    return next((other for other in others if other.outcome is Outcome.OK), own)


def last_alone(of: StudyRecords) -> dict[Config, QualityRecord]:
    """The last measurement of each config; that of a noise floor comes after it, and is another."""
    return {record.config: record for record in of.quality if record.condition is Condition.ALONE}


@dataclass(frozen=True)
class Losses:
    """What a config loses to its baseline, and by whose records."""

    record: QualityRecord
    baseline: QualityRecord
    by_window: Floats  # nats per token


def losses_of(config: Config, of: StudyRecords) -> Losses | None:
    """None where it has no baseline but itself, or one of the two has no figures."""
    last, other = last_alone(of), baseline_of(config, of.plan)
    own, base = (record_of(each, last, of.plan) if each else None for each in (config, other))
    if own is None or base is None or own is base or not same_text(own, base):
        return None
    if own.outcome is not Outcome.OK or base.outcome is not Outcome.OK:
        return None
    scores, against = (scores_of(of.scores_of(record)) for record in (own, base))
    if not (scores.is_finite and against.is_finite):
        return None
    return Losses(own, base, window_means(scores.window, against.logprob - scores.logprob))


def _summarize(
    config: Config,
    records: Mapping[Config, QualityRecord],
    plan: Plan,
    read: Callable[[Config], Scores],
) -> ConfigQuality:
    quality, record = plan.study.quality or Quality(), records[config]
    baseline = baseline_of(config, plan)
    other = records.get(baseline) if baseline else None
    if other is not None and (other.outcome is not Outcome.OK or not same_text(record, other)):
        other = None
    known = ConfigQuality(
        config=config,
        baseline=baseline,
        measured_as=None if record.config == config else record.config,
        outcome=record.outcome,
        cause=record.cause,
        windows=record.corpus.windows if record.corpus else 0,
        tokens=record.tokens,
        top_tokens=record.top_tokens,
        corpus=record.corpus.description if record.corpus else None,
        answers=compare_answers(record.answers, other.answers if other else ()),
        tasks=compare_tasks(record.tasks, other.tasks if other and other is not record else ()),
        task_failures=record.task_failures,
    )
    if record.outcome is not Outcome.OK:
        return known
    scores = read(record.config)
    if not scores.is_finite:
        places = int((~np.isfinite(scores.logprob)).sum())
        reason = f"{places or 'some'} of its {record.tokens:,} log-probabilities are not finite"
        return known.model_copy(update={"flagged": True, "reason": reason})
    against = read(other.config) if other else None
    seed = [plan.study.seed, crc32(record.config.name.encode())]
    estimates = estimates_of(
        scores, against if against and against.is_finite else None, plan.study.measure.confidence, seed
    )
    reason_or_none = flag(estimates, quality)
    found = {"estimates": estimates, "flagged": reason_or_none is not None, "reason": reason_or_none}
    if baseline and baseline.variant == config.variant and against and other is not record:
        found["by_position"] = by_position(scores, against, plan.study.measure.confidence, seed)
    return known.model_copy(update=found)


def same_text(own: QualityRecord, other: QualityRecord) -> bool:
    return bool(own.corpus and other.corpus and own.corpus.windows_hash == other.corpus.windows_hash)


def compare_answers(answers: Sequence[Answer], baseline: Sequence[Answer]) -> tuple[AnswerComparison, ...]:
    others = {answer.prompt: answer for answer in baseline}
    return tuple(_compare_answer(answer, others.get(answer.prompt)) for answer in answers)


def _compare_answer(answer: Answer, other: Answer | None) -> AnswerComparison:
    return AnswerComparison(
        prompt=answer.prompt,
        text=answer.text,
        baseline_text=other.text if other else None,
        first_difference=first_difference(answer.tokens, other.tokens) if other else None,
        repeats=runs_in_a_loop(answer.tokens),
        is_question=answer.window is None,
    )


def first_difference(tokens: Sequence[int], other: Sequence[int]) -> int | None:
    """Counted from 0; one that ends earlier differs at its end. None where they are equal."""
    for place, (own, others) in enumerate(zip(tokens, other, strict=False)):
        if own != others:
            return place
    return None if len(tokens) == len(other) else min(len(tokens), len(other))


def runs_in_a_loop(tokens: Sequence[int]) -> bool:
    for length in range(1, len(tokens) // LEAST_REPEATS + 1):
        period = list(tokens[len(tokens) - length :])
        times = max(LEAST_REPEATS, -(-LEAST_REPEATED_TOKENS // length))
        if times * length <= len(tokens) and list(tokens[len(tokens) - times * length :]) == period * times:
            return True
    return False


def compare_tasks(results: Sequence[TaskResult], baseline: Sequence[TaskResult]) -> tuple[TaskEstimate, ...]:
    """Both answer the same questions, but lm-eval gives sums: the error of the difference is that of independent
    ones, which is too wide rather than too narrow."""
    others = {(result.task, result.metric): result for result in baseline}
    return tuple(_compare_task(result, others.get((result.task, result.metric))) for result in results)


def _compare_task(own: TaskResult, other: TaskResult | None) -> TaskEstimate:
    error = None
    if other and own.standard_error is not None and other.standard_error is not None:
        error = hypot(own.standard_error, other.standard_error)
    return TaskEstimate(
        task=own.task,
        metric=own.metric,
        value=own.value,
        standard_error=own.standard_error,
        samples=own.samples,
        difference=own.value - other.value if other else None,
        difference_error=error,
    )
