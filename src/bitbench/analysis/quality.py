"""Perplexity, divergence from the baseline and agreement with it, from stored log-probabilities.

Tokens of one window are not independent, so windows are the unit: a mean has the interval of
Student's t over windows, and both sides have the same windows. The interval of a divergence
includes the probability that a server did not list (`analysis.divergence`). Percentiles are over
tokens and have no interval. Greedy answers are compared with the baseline's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp, expm1, sqrt

import numpy as np

from bitbench.analysis.configs import list_configs_with_other_settings
from bitbench.analysis.divergence import (
    Divergence,
    Floats,
    Integers,
    Scores,
    compute_window_means,
    divergence,
    estimate_divergence,
    estimate_divergence_bounds,
    has_too_little_mass,
    make_scores,
)
from bitbench.analysis.intervals import estimate_t_mean
from bitbench.analysis.results.estimate import Estimate, Verdict, check_against_limit
from bitbench.analysis.results.summary import (
    ConfigQuality,
    MetricDefinition,
    PositionDivergence,
    QualityState,
)
from bitbench.analysis.sequential import find_baseline as study_baseline
from bitbench.analysis.tasks import adjust_task_p_values, compare_tasks, iter_needles
from bitbench.records.folder import StudyRecords
from bitbench.records.quality import Answer, Condition, QualityRecord
from bitbench.records.trial import Outcome
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Plan
from bitbench.study.quality import Quality
from bitbench.study.study import EngineSetup, Study
from bitbench.util.units import show_percent

FIRST_STRETCH = 64  # tokens of a window, before stretches that double
# An answer is repetitive if it ends in one piece that occurs at least so many times, with at least
# so many tokens in all. A list with the same beginning of each line, or "ha ha ha", stays below.
LEAST_REPEATS = 4
LEAST_REPEATED_TOKENS = 16

PERPLEXITY = "perplexity"
RISE = "perplexity_rise"
KL = "kl_mean"
TOP1 = "top1_agreement"
KL_MEDIAN = "kl_median"
KL_TAIL = "kl_p99_9"
KL_MASS = "kl_mass"
PROBABILITY_CHANGE = "probability_change_rms"
KEYS = (PERPLEXITY, RISE, KL, KL_MASS, KL_MEDIAN, KL_TAIL, PROBABILITY_CHANGE, TOP1)
DEFINITIONS = {name: MetricDefinition.of(METRICS[name]) for name in KEYS}


def estimate_quality(
    scores: Scores, baseline: Scores | None, confidence: float
) -> dict[str, Estimate]:
    """Return the metrics of DEFINITIONS that can be estimated. Without a baseline, only perplexity.

    The scores must be finite.
    """

    def over_windows(values: Floats, scale: Callable[[float], float] = float) -> Estimate:
        return estimate_t_mean(
            compute_window_means(scores.window, values).tolist(), confidence, scale
        )

    estimates = {PERPLEXITY: over_windows(-scores.logprob, exp)}
    if baseline is None:
        return estimates
    bounds = estimate_divergence_bounds(baseline, scores)
    agrees = (scores.top_tokens[:, 0] == baseline.top_tokens[:, 0]).astype(np.float64)
    squares = (np.exp(scores.logprob) - np.exp(baseline.logprob)) ** 2
    estimates[RISE] = over_windows(baseline.logprob - scores.logprob, expm1)
    estimates[KL] = _estimate_mean_divergence(scores.window, bounds, confidence)
    estimates[KL_MASS] = Estimate(value=float(bounds.mass.mean()))
    estimates[KL_MEDIAN] = Estimate(value=float(np.median(bounds.lower)))
    estimates[KL_TAIL] = Estimate(value=float(np.quantile(bounds.lower, 0.999)))
    estimates[PROBABILITY_CHANGE] = over_windows(squares, lambda square: sqrt(max(square, 0.0)))
    estimates[TOP1] = over_windows(agrees, lambda value: min(max(value, 0.0), 1.0))
    return estimates


def _estimate_mean_divergence(window: Integers, bounds: Divergence, confidence: float) -> Estimate:
    lower = compute_window_means(window, bounds.lower)
    upper = compute_window_means(window, bounds.upper)
    return estimate_divergence(lower, upper, confidence)


def read_short_scores(records: StudyRecords, record: QualityRecord) -> Scores:
    """Return the scores of the windows of `window_tokens`, which come first in the file."""
    scores = make_scores(records.scores_of(record))
    return scores.select_windows(np.arange(record.corpus.windows)) if record.corpus else scores


def _judge_quality_loss(
    estimates: Mapping[str, Estimate], quality: Quality
) -> tuple[QualityState, str]:
    """Return whether the loss is certainly beyond the study's limits, within them, or neither.

    The second item is the reason, empty if the loss is within the limits.
    """
    limits = (
        (KL, quality.max_divergence, _format_nats),
        (RISE, quality.max_perplexity_rise, show_percent),
    )
    undecided = ""
    for name, limit, show in limits:
        estimate = estimates[name]
        verdict = check_against_limit(estimate, limit)
        metric = f"its {DEFINITIONS[name].name}"
        if verdict is Verdict.MISSED and estimate.low is not None:
            low = show(estimate.low)
            reason = f"{metric} is at least {low}, beyond the limit of {show(limit)}"
            return QualityState.BEYOND, reason
        if verdict is Verdict.INCONCLUSIVE and not undecided:
            lack = (
                "probability mass"
                if name == KL and has_too_little_mass(estimate, limit)
                else "text"
            )
            interval = f"{metric} {_describe_range(estimate, show)} (limit {show(limit)})"
            undecided = f"not enough {lack} to tell: {interval}"
    return (QualityState.UNDECIDED, undecided) if undecided else (QualityState.WITHIN, "")


def _describe_range(estimate: Estimate, show: Callable[[float], str]) -> str:
    if estimate.interval is None:
        return f"is {show(estimate.value)}, of one window"
    return f"may be from {show(estimate.interval.low)} to {show(estimate.interval.high)}"


def _format_nats(value: float) -> str:
    return f"{value:.3g} nats"


def find_quality_baseline(config: Config, plan: Plan) -> Config | None:
    """Return the config that `config` is compared with for quality, or None.

    1. The study's baseline, if the study compares engine settings and both have the same weights.
    2. The unquantized model on the same setup, else on another setup that may be compared.
    3. The baseline that the study names, if it is the same model.

    A setup with a quantized KV cache is compared with one that has a full-precision cache, if the
    study has it. Otherwise both sides would contain the loss.
    """
    baseline = study_baseline(plan)
    if baseline not in plan.quality:
        baseline = None
    if (
        baseline is not None
        and baseline in list_configs_with_other_settings(plan)
        and _is_same_except_settings(config, baseline, plan)
    ):
        return baseline
    model = plan.variant(config.variant).model
    setups = _list_comparable_setups(config, plan)
    unquantized = []
    for other in plan.quality:
        variant = plan.variant(other.variant)
        if variant.is_dense and other.engine in setups and variant.model == model:
            unquantized.append(other)
    if unquantized:
        same_setup = [other for other in unquantized if other.engine == config.engine]
        return (same_setup or unquantized)[0]
    if baseline is None or not plan.study.baseline or len(plan.quality) < 2:
        return None
    is_comparable = baseline.engine in setups and plan.variant(baseline.variant).model == model
    return baseline if is_comparable else None


def _list_comparable_setups(config: Config, plan: Plan) -> set[str]:
    """Return the names of the setups that a config may be compared on.

    For a quantized KV cache, these are the setups of the same engine and arguments without one, if
    the study has them. Otherwise it is the config's own setup.
    """
    if not has_quantized_cache(config, plan.study):
        return {config.engine}
    setup = _ignore_cache_setting(plan.study.engine(config.engine))
    whole = set()
    for other in plan.quality:
        if plan.variant(other.variant).is_dense:
            candidate = plan.study.engine(other.engine)
            if not candidate.has_quantized_cache and _ignore_cache_setting(candidate) == setup:
                whole.add(candidate.name)
    return whole or {config.engine}


def has_quantized_cache(config: Config, study: Study) -> bool:
    """Return True if the config's engine setup quantizes its KV cache."""
    return any(setup.name == config.engine and setup.has_quantized_cache for setup in study.engines)


def is_changed_by_cache_only(config: Config, baseline: Config | None, study: Study) -> bool:
    """Return True if a config differs from its baseline's weights only by a quantized KV cache."""
    if baseline is None or baseline == config or baseline.variant != config.variant:
        return False
    return has_quantized_cache(config, study)


def _ignore_cache_setting(setup: EngineSetup) -> EngineSetup:
    return setup.model_copy(update={"name": "", "kv_cache": None})


def _is_same_except_settings(config: Config, other: Config, plan: Plan) -> bool:
    """Return True if both configs run the same variant on the same engine."""
    engine = plan.study.engine(config.engine).engine
    return config.variant == other.variant and engine == plan.study.engine(other.engine).engine


def estimate_divergence_by_position(
    scores: Scores, baseline: Scores, confidence: float
) -> tuple[PositionDivergence, ...]:
    """Return the divergence in stretches that double, to the end of the longest window.

    Stretches begin at 1, 64, 128 … A stretch that few windows reach has a wide interval.
    """
    tokens = estimate_divergence_bounds(baseline, scores)
    _, counts = np.unique(scores.window, return_counts=True)
    position = np.concatenate([np.arange(1, count + 1) for count in counts])
    end = int(counts.max()) + 1
    bounds = [1]
    while max(FIRST_STRETCH, 2 * bounds[-1]) < end:
        bounds.append(max(FIRST_STRETCH, 2 * bounds[-1]))
    stretches = []
    for first, after in pairwise([*bounds, end]):
        inside = (position >= first) & (position < after)
        mean = _estimate_mean_divergence(scores.window[inside], tokens.part(inside), confidence)
        stretches.append(PositionDivergence(first=first, last=after - 1, divergence=mean))
    return tuple(stretches)


def summarize_quality(records: StudyRecords) -> tuple[ConfigQuality, ...]:
    """Return each config whose quality was measured or tried, in the order of the plan."""
    last = collect_last_quality(records)
    by_config = {config: last[config] for config in records.plan.quality if config in last}
    # A baseline's scores are needed for many configs.
    read = cache(lambda config: make_scores(records.scores_of(last[config])))
    return adjust_task_p_values(
        [_summarize_config_quality(config, by_config, records.plan, read) for config in by_config]
    )


def collect_last_quality(records: StudyRecords) -> dict[Config, QualityRecord]:
    """Return the last measurement of each config, without measurements of a noise floor."""
    return {
        record.config: record for record in records.quality if record.condition is Condition.ALONE
    }


@dataclass(frozen=True)
class Losses:
    """The loss of a config against its baseline in each window, with the records of both.

    The loss is how much less likely the text became. For the same weights with a quantized KV
    cache, it is the divergence.
    """

    record: QualityRecord
    baseline: QualityRecord
    by_window: Floats  # nats per token


def find_losses(config: Config, records: StudyRecords) -> Losses | None:
    """Return what a config loses to its baseline.

    Return None if it has no baseline but itself, or if one of the two has no finite scores.
    """
    last = collect_last_quality(records)
    baseline = find_quality_baseline(config, records.plan)
    record = last.get(config)
    other = last.get(baseline) if baseline else None
    if record is None or other is None or record is other or not has_same_text(record, other):
        return None
    if record.outcome is not Outcome.OK or other.outcome is not Outcome.OK:
        return None
    scores = read_short_scores(records, record)
    other_scores = read_short_scores(records, other)
    if not (scores.is_finite and other_scores.is_finite):
        return None
    if is_changed_by_cache_only(record.config, other.config, records.study):
        lost = divergence(other_scores, scores)
    else:
        lost = other_scores.logprob - scores.logprob
    return Losses(record, other, compute_window_means(scores.window, lost))


def _summarize_config_quality(
    config: Config,
    records: Mapping[Config, QualityRecord],
    plan: Plan,
    read: Callable[[Config], Scores],
) -> ConfigQuality:
    quality = plan.study.quality or Quality()
    confidence = plan.study.measure.confidence
    record = records[config]
    baseline = find_quality_baseline(config, plan)
    other = records.get(baseline) if baseline else None
    if other is not None and (other.outcome is not Outcome.OK or not has_same_text(record, other)):
        other = None
    if other is None or other is record:
        tasks = compare_tasks(record.tasks, (), record.task_answers, (), confidence)
    else:
        tasks = compare_tasks(
            record.tasks, other.tasks, record.task_answers, other.task_answers, confidence
        )
    other_answers = other.answers if other else ()
    windows = record.corpus.windows if record.corpus else 0
    corpus = record.corpus.description if record.corpus else None
    summary = ConfigQuality(
        config=config,
        baseline=baseline,
        outcome=record.outcome,
        cause=record.cause,
        windows=windows,
        tokens=record.tokens,
        top_tokens=record.top_tokens,
        corpus=corpus,
        answers=len(record.answers),
        equal_answers=count_equal_answers(record.answers, other_answers),
        looping_answers=sum(is_repetitive_answer(answer.tokens) for answer in record.answers),
        tasks=tasks,
        needles=tuple(iter_needles(record.task_answers)),
        task_failures=record.task_failures,
    )
    if record.outcome is not Outcome.OK:
        return summary
    scores = read(record.config)
    if not scores.is_finite:
        count = int((~np.isfinite(scores.logprob)).sum())
        reason = f"{count or 'some'} of its {record.tokens:,} log-probabilities are not finite"
        return summary.model_copy(update={"state": QualityState.BEYOND, "reason": reason})
    short = np.arange(windows)
    other_scores = read(other.config) if other else None
    if other_scores is None or not other_scores.is_finite:
        estimates = estimate_quality(scores.select_windows(short), None, confidence)
        return summary.model_copy(update={"estimates": estimates})
    estimates = estimate_quality(
        scores.select_windows(short), other_scores.select_windows(short), confidence
    )
    state, reason = _judge_quality_loss(estimates, quality)
    update: dict[str, object] = {"estimates": estimates}
    is_setting = baseline is not None and baseline.variant == config.variant
    if other is not record and (is_setting or quality.lengths):
        stretches = estimate_divergence_by_position(scores, other_scores, confidence)
        position = find_first_divergent_position(stretches, quality.max_divergence)
        update["by_position"] = stretches
        state, reason = _add_position(state, reason, position, quality)
    return summary.model_copy(update={**update, "state": state, "reason": reason or None})


def _add_position(
    state: QualityState, reason: str, position: int | None, quality: Quality
) -> tuple[QualityState, str]:
    """Return the state and reason with the position of a text after which the config loses.

    A config that loses from the first token on needs no position.
    """
    is_beyond = state is QualityState.BEYOND
    if position is None or (is_beyond and position == 1):
        return state, reason
    loss = (
        f"its mean KL divergence exceeds {_format_nats(quality.max_divergence)} "
        f"from token {position:,} of a text on"
    )
    return QualityState.BEYOND, f"{reason}; {loss}" if is_beyond else loss


def find_first_divergent_position(
    stretches: Sequence[PositionDivergence], limit: float
) -> int | None:
    """Return the first position after which every stretch certainly exceeds the limit.

    Return None if the last stretch does not exceed it.
    """
    first = None
    for stretch in reversed(stretches):
        if not stretch.divergence.is_above(limit):
            break
        first = stretch.first
    return first


def has_same_text(record: QualityRecord, other: QualityRecord) -> bool:
    """Return True if both measurements scored the same windows of text."""
    if not record.corpus or not other.corpus:
        return False
    return record.corpus.windows_hash == other.corpus.windows_hash


def count_equal_answers(answers: Sequence[Answer], baseline: Sequence[Answer]) -> int | None:
    """Return how many answers equal the baseline's, token for token.

    Return None if there is nothing to compare with.
    """
    others = {answer.prompt: answer.tokens for answer in baseline}
    common = [answer for answer in answers if answer.prompt in others]
    if not common:
        return None
    return sum(others[answer.prompt] == answer.tokens for answer in common)


def is_repetitive_answer(tokens: Sequence[int]) -> bool:
    """Return True if an answer ends in one piece that repeats."""
    for length in range(1, len(tokens) // LEAST_REPEATS + 1):
        times = max(LEAST_REPEATS, -(-LEAST_REPEATED_TOKENS // length))
        repeated = list(tokens[len(tokens) - length :]) * times
        start = len(tokens) - len(repeated)
        if start >= 0 and list(tokens[start:]) == repeated:
            return True
    return False
