"""Perplexity, divergence from the baseline and agreement with it, from the log-probabilities that were stored.

Tokens of one window are not independent, so windows are the unit: a mean has the interval of Student's t over windows,
the same ones on both sides. What a server did not tell of a distribution is in the interval of its divergence
(`analysis.divergence`). Percentiles are over tokens and have no interval. Greedy answers are compared with the
baseline's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp, expm1, sqrt

import numpy as np

from bitbench.analysis.configs import configs_with_other_settings
from bitbench.analysis.divergence import (
    Divergence,
    Floats,
    Integers,
    Scores,
    bound_divergence,
    divergence,
    divergence_interval,
    lacks_mass,
    quality_scores,
    window_means,
)
from bitbench.analysis.intervals import mean_t_interval
from bitbench.analysis.results.estimate import Estimate, Verdict, check_against_limit
from bitbench.analysis.results.summary import (
    ConfigQuality,
    MetricDefinition,
    PositionDivergence,
    QualityState,
)
from bitbench.analysis.sequential import baseline_of as study_baseline
from bitbench.analysis.tasks import adjust_task_p_values, compare_tasks, needles_of
from bitbench.records.folder import StudyRecords
from bitbench.records.quality import Answer, Condition, QualityRecord
from bitbench.records.trial import Outcome
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Plan
from bitbench.study.quality import Quality
from bitbench.study.study import EngineSetup, Study
from bitbench.util.units import show_percent

FIRST_STRETCH = 64  # tokens of a window, before stretches that double
# The end of an answer is one piece over and over: at least so many times, and at least so many tokens in all. A list
# with the same beginning of each line, or "ha ha ha", stays below.
LEAST_REPEATS = 4
LEAST_REPEATED_TOKENS = 16

PERPLEXITY, RISE, KL, TOP1 = "perplexity", "perplexity_rise", "kl_mean", "top1_agreement"
KL_MEDIAN, KL_TAIL, KL_MASS = "kl_median", "kl_p99_9", "kl_mass"
PROBABILITY_CHANGE = "probability_change_rms"
KEYS = (PERPLEXITY, RISE, KL, KL_MASS, KL_MEDIAN, KL_TAIL, PROBABILITY_CHANGE, TOP1)
DEFINITIONS = {name: MetricDefinition.of(METRICS[name]) for name in KEYS}


def quality_estimates(
    scores: Scores, baseline: Scores | None, confidence: float
) -> dict[str, Estimate]:
    """Return those of DEFINITIONS that can be said; ask before whether the scores are finite."""

    def over_windows(values: Floats, scale: Callable[[float], float] = float) -> Estimate:
        return mean_t_interval(window_means(scores.window, values).tolist(), confidence, scale)

    found = {PERPLEXITY: over_windows(-scores.logprob, exp)}
    if baseline is None:
        return found
    bounds = bound_divergence(baseline, scores)
    agrees = (scores.top_tokens[:, 0] == baseline.top_tokens[:, 0]).astype(np.float64)
    squares = (np.exp(scores.logprob) - np.exp(baseline.logprob)) ** 2
    found[RISE] = over_windows(baseline.logprob - scores.logprob, expm1)
    found[KL] = _mean_divergence(scores.window, bounds, confidence)
    found[KL_MASS] = Estimate(value=float(bounds.mass.mean()))
    found[KL_MEDIAN] = Estimate(value=float(np.median(bounds.lower)))
    found[KL_TAIL] = Estimate(value=float(np.quantile(bounds.lower, 0.999)))
    found[PROBABILITY_CHANGE] = over_windows(squares, lambda square: sqrt(max(square, 0.0)))
    found[TOP1] = over_windows(agrees, lambda value: min(max(value, 0.0), 1.0))
    return found


def _mean_divergence(window: Integers, bounds: Divergence, confidence: float) -> Estimate:
    lower = window_means(window, bounds.lower)
    upper = window_means(window, bounds.upper)
    return divergence_interval(lower, upper, confidence)


def short_quality_scores(of: StudyRecords, record: QualityRecord) -> Scores:
    """Of the windows of `window_tokens`, which come first."""
    found = quality_scores(of.scores_of(record))
    return found.among(np.arange(record.corpus.windows)) if record.corpus else found


def _judge_quality_loss(
    estimates: Mapping[str, Estimate], quality: Quality
) -> tuple[QualityState, str]:
    """Return whether the loss is certainly beyond what the study allows, certainly within it, or neither, and why."""
    limits = (
        (KL, quality.max_divergence, _nats),
        (RISE, quality.max_perplexity_rise, show_percent),
    )
    undecided = ""
    for name, limit, show in limits:
        found = estimates[name]
        verdict = check_against_limit(found, limit)
        what = f"its {DEFINITIONS[name].name}"
        if verdict is Verdict.MISSED and found.low is not None:
            return (
                QualityState.BEYOND,
                f"{what} is at least {show(found.low)}, beyond the limit of {show(limit)}",
            )
        if verdict is Verdict.INCONCLUSIVE and not undecided:
            lack = "probability mass" if name == KL and lacks_mass(found, limit) else "text"
            undecided = (
                f"not enough {lack} to tell: {what} {_range(found, show)} (limit {show(limit)})"
            )
    return (QualityState.UNDECIDED, undecided) if undecided else (QualityState.WITHIN, "")


def _range(found: Estimate, show: Callable[[float], str]) -> str:
    if found.interval is None:
        return f"is {show(found.value)}, of one window"
    return f"may be from {show(found.interval.low)} to {show(found.interval.high)}"


def _nats(value: float) -> str:
    return f"{value:.3g} nats"


def quality_baseline(config: Config, plan: Plan) -> Config | None:
    """The same weights in the baseline's setting, where settings of an engine are compared; else the same model without
    quantization on the same engine setup; else what the study names as its
    baseline, where that is the same model there; None where the study has none.

    A quantized KV cache is no setup to be compared in, where the study has the same with a cache that is not: its loss
    would be in both."""
    chosen = study_baseline(plan)
    if (
        chosen
        and chosen in plan.quality
        and chosen in configs_with_other_settings(plan)
        and _alike(config, chosen, plan)
    ):
        return chosen
    wanted = plan.variant(config.variant).model
    setups = _with_whole_cache(config, plan)
    dense = []
    for other in plan.quality:
        variant = plan.variant(other.variant)
        if variant.is_dense and other.engine in setups and variant.model == wanted:
            dense.append(other)
    is_compared = len(plan.quality) > 1 and chosen is not None and chosen in plan.quality
    if not dense and plan.study.baseline and chosen and is_compared and chosen.engine in setups:
        return chosen if plan.variant(chosen.variant).model == wanted else None
    return next(
        (other for other in dense if other.engine == config.engine), dense[0] if dense else None
    )


def _with_whole_cache(config: Config, plan: Plan) -> set[str]:
    """Names of setups: those of the same engine with the same arguments and a KV cache that is not quantized, where
    this one's is and the study has them; else its own."""
    if not has_quantized_cache(config, plan.study):
        return {config.engine}
    measured = [
        plan.study.engine(other.engine)
        for other in plan.quality
        if plan.variant(other.variant).is_dense
    ]
    own = _but_cache(plan.study.engine(config.engine))
    whole = {
        setup.name
        for setup in measured
        if not setup.has_quantized_cache and _but_cache(setup) == own
    }
    return whole or {config.engine}


def has_quantized_cache(config: Config, study: Study) -> bool:
    return any(setup.name == config.engine and setup.has_quantized_cache for setup in study.engines)


def loses_quality_by_cache(config: Config, baseline: Config | None, study: Study) -> bool:
    """Whether nothing but a quantized KV cache tells a config from its baseline's weights."""
    if baseline is None or baseline == config or baseline.variant != config.variant:
        return False
    return has_quantized_cache(config, study)


def _but_cache(setup: EngineSetup) -> EngineSetup:
    return setup.model_copy(update={"name": "", "kv_cache": None})


def _alike(config: Config, other: Config, plan: Plan) -> bool:
    engines = {plan.study.engine(each.engine).engine for each in (config, other)}
    return config.variant == other.variant and len(engines) == 1


def divergence_by_position(
    scores: Scores, baseline: Scores, confidence: float
) -> tuple[PositionDivergence, ...]:
    """In stretches that double: from 1, 64, 128 … to the end of the longest window. One that few windows reach has
    the wide interval of few."""
    tokens = bound_divergence(baseline, scores)
    _, counts = np.unique(scores.window, return_counts=True)
    position = np.concatenate([np.arange(1, count + 1) for count in counts])
    end, bounds = int(counts.max()) + 1, [1]
    while max(FIRST_STRETCH, 2 * bounds[-1]) < end:
        bounds.append(max(FIRST_STRETCH, 2 * bounds[-1]))
    found = []
    for first, after in pairwise([*bounds, end]):
        inside = (position >= first) & (position < after)
        mean = _mean_divergence(scores.window[inside], tokens.part(inside), confidence)
        found.append(PositionDivergence(first=first, last=after - 1, divergence=mean))
    return tuple(found)


def summarize_quality(of: StudyRecords) -> tuple[ConfigQuality, ...]:
    """Each config whose quality was measured or tried, in the order of the plan."""
    last = last_quality_by_config(of)
    known = {config: last[config] for config in of.plan.quality if config in last}
    read = cache(
        lambda config: quality_scores(of.scores_of(last[config]))
    )  # a baseline is asked for often
    return adjust_task_p_values([_summarize(config, known, of.plan, read) for config in known])


def last_quality_by_config(of: StudyRecords) -> dict[Config, QualityRecord]:
    """The last measurement of each config; that of a noise floor comes after it, and is another."""
    return {record.config: record for record in of.quality if record.condition is Condition.ALONE}


@dataclass(frozen=True)
class Losses:
    """What a config loses to its baseline, and by whose records: how much less likely the text became, or, of the same
    weights with a quantized KV cache, how far they diverge."""

    record: QualityRecord
    baseline: QualityRecord
    by_window: Floats  # nats per token


def losses_of(config: Config, of: StudyRecords) -> Losses | None:
    """None where it has no baseline but itself, or one of the two has no figures."""
    last, other = last_quality_by_config(of), quality_baseline(config, of.plan)
    own, base = last.get(config), last.get(other) if other else None
    if own is None or base is None or own is base or not same_text(own, base):
        return None
    if own.outcome is not Outcome.OK or base.outcome is not Outcome.OK:
        return None
    scores, against = (short_quality_scores(of, record) for record in (own, base))
    if not (scores.is_finite and against.is_finite):
        return None
    by_cache = loses_quality_by_cache(own.config, base.config, of.study)
    lost = divergence(against, scores) if by_cache else against.logprob - scores.logprob
    return Losses(own, base, window_means(scores.window, lost))


def _summarize(
    config: Config,
    records: Mapping[Config, QualityRecord],
    plan: Plan,
    read: Callable[[Config], Scores],
) -> ConfigQuality:
    quality, record = plan.study.quality or Quality(), records[config]
    baseline = quality_baseline(config, plan)
    other = records.get(baseline) if baseline else None
    if other is not None and (other.outcome is not Outcome.OK or not same_text(record, other)):
        other = None
    known = ConfigQuality(
        config=config,
        baseline=baseline,
        outcome=record.outcome,
        cause=record.cause,
        windows=record.corpus.windows if record.corpus else 0,
        tokens=record.tokens,
        top_tokens=record.top_tokens,
        corpus=record.corpus.description if record.corpus else None,
        answers=len(record.answers),
        equal_answers=count_equal_answers(record.answers, other.answers if other else ()),
        looping_answers=sum(is_repetitive_answer(answer.tokens) for answer in record.answers),
        tasks=compare_tasks(
            record.tasks,
            other.tasks if other and other is not record else (),
            record.task_answers,
            other.task_answers if other and other is not record else (),
            plan.study.measure.confidence,
        ),
        needles=tuple(needles_of(record.task_answers)),
        task_failures=record.task_failures,
    )
    if record.outcome is not Outcome.OK:
        return known
    scores = read(record.config)
    if not scores.is_finite:
        places = int((~np.isfinite(scores.logprob)).sum())
        reason = f"{places or 'some'} of its {record.tokens:,} log-probabilities are not finite"
        return known.model_copy(update={"state": QualityState.BEYOND, "reason": reason})
    against = read(other.config) if other else None
    against = against if against and against.is_finite else None
    confidence = plan.study.measure.confidence
    short = np.arange(known.windows)
    estimates = quality_estimates(
        scores.among(short), against.among(short) if against else None, confidence
    )
    if against is None:
        return known.model_copy(update={"estimates": estimates})
    state, reason = _judge_quality_loss(estimates, quality)
    found: dict[str, object] = {"estimates": estimates}
    is_setting = baseline is not None and baseline.variant == config.variant
    if other is not record and (is_setting or quality.lengths):
        stretches = divergence_by_position(scores, against, confidence)
        place = first_divergent_position(stretches, quality.max_divergence)
        found["by_position"] = stretches
        state, reason = _with_place(state, reason, place, quality)
    return known.model_copy(update={**found, "state": state, "reason": reason or None})


def _with_place(
    state: QualityState, reason: str, place: int | None, quality: Quality
) -> tuple[QualityState, str]:
    """Add the place of a text from which on it loses; what loses everywhere needs none."""
    is_beyond = state is QualityState.BEYOND
    if place is None or (is_beyond and place == 1):
        return state, reason
    where = f"its mean KL divergence exceeds {_nats(quality.max_divergence)} from token {place:,} of a text on"
    return QualityState.BEYOND, f"{reason}; {where}" if is_beyond else where


def first_divergent_position(stretches: Sequence[PositionDivergence], limit: float) -> int | None:
    """The first place from which on every stretch certainly exceeds the limit; None where the last one does not."""
    first = None
    for stretch in reversed(stretches):
        if not stretch.divergence.is_above(limit):
            break
        first = stretch.first
    return first


def same_text(own: QualityRecord, other: QualityRecord) -> bool:
    return bool(
        own.corpus and other.corpus and own.corpus.windows_hash == other.corpus.windows_hash
    )


def count_equal_answers(answers: Sequence[Answer], baseline: Sequence[Answer]) -> int | None:
    """Return how many answers are the baseline's, token for token; None if there is nothing to compare with."""
    others = {answer.prompt: answer.tokens for answer in baseline}
    known = [answer for answer in answers if answer.prompt in others]
    return sum(others[answer.prompt] == answer.tokens for answer in known) if known else None


def is_repetitive_answer(tokens: Sequence[int]) -> bool:
    for length in range(1, len(tokens) // LEAST_REPEATS + 1):
        period = list(tokens[len(tokens) - length :])
        times = max(LEAST_REPEATS, -(-LEAST_REPEATED_TOKENS // length))
        if (
            times * length <= len(tokens)
            and list(tokens[len(tokens) - times * length :]) == period * times
        ):
            return True
    return False
