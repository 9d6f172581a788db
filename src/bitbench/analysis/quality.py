"""Perplexity, divergence from the baseline and agreement with it, from the log-probabilities that were stored.

An engine gives the K likeliest tokens at each place, and the one that stands there, not the whole vocabulary. So the
KL divergence is computed over a coarser distribution: every token whose probability is known from both sides is an
event of its own, and all others together are one more, whose mass on each side is what is left to 1. Lumping can only
lower a KL divergence (log-sum inequality): the figure is a lower bound, exactly 0 for equal distributions, and the
closer the more mass the shared tokens hold.

Tokens of one window are not independent, so windows are the unit, the same ones on both sides. Means have Student's t
over windows, the 99th percentile a bootstrap over windows. Greedy answers stand beside the baseline's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from math import exp, expm1
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bitbench.analysis.configs import configs_with_other_settings
from bitbench.analysis.intervals import mean_t_interval
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import AnswerComparison, ConfigQuality, MetricDefinition, PositionDivergence
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

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# Log-probabilities come in 32 bits: what is left of 1 after subtracting up to K of them is no better known than this.
LEAST_REST = 1e-6
AT_ONCE = 1024  # tokens; each needs K × K comparisons


@dataclass(frozen=True)
class Scores:
    """The rows of one config as arrays; tokens in the order of windows and positions."""

    window: Integers
    token: Integers
    logprob: Floats
    top_tokens: Integers  # tokens × K
    top_logprobs: Floats

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.logprob).all() and np.isfinite(self.top_logprobs).all())

    def among(self, windows: npt.ArrayLike) -> "Scores":
        """The rows of these windows alone."""
        return self.part(np.isin(self.window, windows))

    def part(self, rows: slice | npt.NDArray[np.bool_]) -> "Scores":
        return Scores(*(getattr(self, column.name)[rows] for column in fields(self)))


def quality_scores(rows: pa.Table) -> Scores:
    def matrix(name: str) -> npt.NDArray[np.generic]:
        flat: npt.NDArray[np.generic] = rows[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(rows.num_rows, -1)

    return Scores(
        window=np.asarray(rows["window"].to_numpy(), dtype=np.int64),
        token=np.asarray(rows["token"].to_numpy(), dtype=np.int64),
        logprob=np.asarray(rows["logprob"].to_numpy(), dtype=np.float64),
        top_tokens=np.asarray(matrix("top_tokens"), dtype=np.int64),
        top_logprobs=np.asarray(matrix("top_logprobs"), dtype=np.float64),
    )


def divergence(baseline: Scores, other: Scores) -> Floats:
    """KL(baseline ‖ other) at each token, in nats; see the module's docstring."""
    result = np.empty(len(baseline.token))
    for first in range(0, len(result), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        result[part] = _divergence(baseline.part(part), other.part(part))
    return result


def _divergence(baseline: Scores, other: Scores) -> Floats:
    same = baseline.top_tokens[:, :, np.newaxis] == other.top_tokens[:, np.newaxis, :]
    shared, place = same.any(axis=2), same.argmax(axis=2)
    log_p = baseline.top_logprobs
    log_q = np.take_along_axis(other.top_logprobs, place, axis=1)
    p, q = np.where(shared, np.exp(log_p), 0.0), np.where(shared, np.exp(log_q), 0.0)
    terms = np.where(shared, p * (log_p - log_q), 0.0).sum(axis=1)
    mass_p, mass_q = p.sum(axis=1), q.sum(axis=1)
    # The token of the text is known from both sides even where it is not among the top of both.
    alone = ~(shared & (baseline.top_tokens == baseline.token[:, np.newaxis])).any(axis=1)
    own_p, own_q = np.where(alone, np.exp(baseline.logprob), 0.0), np.where(alone, np.exp(other.logprob), 0.0)
    terms += own_p * np.where(alone, baseline.logprob - other.logprob, 0.0)
    rest_p = np.maximum(1.0 - mass_p - own_p, LEAST_REST)
    rest_q = np.maximum(1.0 - mass_q - own_q, LEAST_REST)
    terms += rest_p * (np.log(rest_p) - np.log(rest_q))
    return np.asarray(np.maximum(terms, 0.0))  # below zero only by rounding


FIRST_STRETCH = 64  # tokens of a window, before stretches that double
DRAWS = 1000  # of the 99th percentile, each over all tokens
# The end of an answer is one piece over and over: at least so many times, and at least so many tokens in all. A list
# with the same beginning of each line, or "ha ha ha", stays below.
LEAST_REPEATS = 4
LEAST_REPEATED_TOKENS = 16

PERPLEXITY, RISE, KL, KL_P99, TOP1 = "perplexity", "perplexity_rise", "kl_mean", "kl_p99", "top1_agreement"
DEFINITIONS = {name: MetricDefinition.of(METRICS[name]) for name in (PERPLEXITY, RISE, KL, KL_P99, TOP1)}


def quality_estimates(
    scores: Scores, baseline: Scores | None, confidence: float, seed: Sequence[int]
) -> dict[str, Estimate]:
    """Those of DEFINITIONS that can be said; raises nothing for scores that are not finite, so ask before."""
    rng = np.random.default_rng(seed)

    def over_windows(values: Floats, scale: Callable[[float], float] = float) -> Estimate:
        return mean_t_interval(window_means(scores.window, values).tolist(), confidence, scale)

    found = {PERPLEXITY: over_windows(-scores.logprob, exp)}
    if baseline is None:
        return found
    kl = divergence(baseline, scores)
    agrees = (scores.top_tokens[:, 0] == baseline.top_tokens[:, 0]).astype(np.float64)
    found[RISE] = over_windows(baseline.logprob - scores.logprob, expm1)
    found[KL] = over_windows(kl, lambda value: max(value, 0.0))
    found[KL_P99] = _percentile(scores.window, kl, 0.99, confidence, rng)
    found[TOP1] = over_windows(agrees, lambda value: min(max(value, 0.0), 1.0))
    return found


def window_means(window: Integers, values: Floats) -> Floats:
    """Of each window in the rows. Where all have the same number of tokens, their mean is the mean over tokens."""
    _, place, counts = np.unique(window, return_inverse=True, return_counts=True)
    return np.asarray(np.bincount(place, values) / counts)


def short_quality_scores(of: StudyRecords, record: QualityRecord) -> Scores:
    """Of the windows of `window_tokens`, which come first."""
    found = quality_scores(of.scores_of(record))
    return found.among(np.arange(record.corpus.windows)) if record.corpus else found


def _percentile(
    window: Integers, values: Floats, share: float, confidence: float, rng: np.random.Generator
) -> Estimate:
    by_window = [values[window == number] for number in np.unique(window)]
    drawn = rng.integers(len(by_window), size=(DRAWS, len(by_window)))
    found = [np.quantile(np.concatenate([by_window[number] for number in draw]), share) for draw in drawn]
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value=float(np.quantile(values, share)), low=float(low), high=float(high), confidence=confidence)


def _flag_quality_loss(estimates: Mapping[str, Estimate], quality: Quality) -> str | None:
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


def quality_baseline(config: Config, plan: Plan) -> Config | None:
    """The same weights in the baseline's setting, where settings of an engine are compared; else the same model without
    quantization on the same engine setup, or on one that shares its quality; else what the study names as its
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
    return next((other for other in dense if other.engine == config.engine), dense[0] if dense else None)


def _with_whole_cache(config: Config, plan: Plan) -> set[str]:
    """Names of setups: those of the same engine with the same arguments and a KV cache that is not quantized, where
    this one's is and the study has them; else those that share its quality."""
    alike = {other.engine for other in plan.sharing_quality(config)}
    if not has_quantized_cache(config, plan.study):
        return alike
    measured = [plan.study.engine(other.engine) for other in plan.quality if plan.variant(other.variant).is_dense]
    own = _but_cache(plan.study.engine(config.engine))
    whole = {setup.name for setup in measured if not setup.has_quantized_cache and _but_cache(setup) == own}
    return whole or alike


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


def divergence_by_position(scores: Scores, baseline: Scores, confidence: float) -> tuple[PositionDivergence, ...]:
    """In stretches that double: from 1, 64, 128 … to the end of the longest window. One that few windows reach has
    the wide interval of few."""
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
        mean = mean_t_interval(means.tolist(), confidence, lambda value: max(value, 0.0))
        found.append(PositionDivergence(first=first, last=after - 1, divergence=mean))
    return tuple(found)


def summarize_quality(of: StudyRecords) -> tuple[ConfigQuality, ...]:
    """Each config whose quality was measured or tried, in the order of the plan."""
    last = last_quality_by_config(of)
    known = {config: record for config in of.plan.quality if (record := _record_of(config, last, of.plan)) is not None}
    read = cache(lambda config: quality_scores(of.scores_of(last[config])))  # a baseline is asked for often
    return adjust_task_p_values([_summarize(config, known, of.plan, read) for config in known])


def _record_of(config: Config, last: Mapping[Config, QualityRecord], plan: Plan) -> QualityRecord | None:
    """Its own, or that of one whose quality it shares; one that failed where there is no other."""
    own = last.get(config)
    if own is not None and own.outcome is Outcome.OK:
        return own
    others = (last[other] for other in plan.sharing_quality(config) if other in last)
    return next((other for other in others if other.outcome is Outcome.OK), own)


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
    own, base = (_record_of(each, last, of.plan) if each else None for each in (config, other))
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
    config: Config, records: Mapping[Config, QualityRecord], plan: Plan, read: Callable[[Config], Scores]
) -> ConfigQuality:
    quality, record = plan.study.quality or Quality(), records[config]
    baseline = quality_baseline(config, plan)
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
        answers=answers_against_baseline(record.answers, other.answers if other else ()),
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
        return known.model_copy(update={"flagged": True, "reason": reason})
    against = read(other.config) if other else None
    against = against if against and against.is_finite else None
    seed = [plan.study.seed, crc32(record.config.name.encode())]
    short = np.arange(known.windows)
    estimates = quality_estimates(
        scores.among(short), against.among(short) if against else None, plan.study.measure.confidence, seed
    )
    reason_or_none = _flag_quality_loss(estimates, quality)
    found: dict[str, object] = {"estimates": estimates}
    is_setting = baseline is not None and baseline.variant == config.variant
    if against and other is not record and (is_setting or quality.lengths):
        stretches = divergence_by_position(scores, against, plan.study.measure.confidence)
        found |= {"by_position": stretches, "loses_from": first_divergent_position(stretches, quality.max_divergence)}
        reason_or_none = _with_place(
            reason_or_none, first_divergent_position(stretches, quality.max_divergence), quality
        )
    return known.model_copy(update={**found, "flagged": reason_or_none is not None, "reason": reason_or_none})


def _with_place(reason: str | None, place: int | None, quality: Quality) -> str | None:
    """Why it is flagged, with the place of a text from which on it loses; what loses everywhere needs none."""
    if place is None or (reason is not None and place == 1):
        return reason
    where = f"its mean KL divergence exceeds {_nats(quality.max_divergence)} from token {place:,} of a text on"
    return where if reason is None else f"{reason}; {where}"


def first_divergent_position(stretches: Sequence[PositionDivergence], limit: float) -> int | None:
    """The first place from which on every stretch certainly exceeds the limit; None where the last one does not."""
    first = None
    for stretch in reversed(stretches):
        if not stretch.divergence.is_above(limit):
            break
        first = stretch.first
    return first


def same_text(own: QualityRecord, other: QualityRecord) -> bool:
    return bool(own.corpus and other.corpus and own.corpus.windows_hash == other.corpus.windows_hash)


def answers_against_baseline(answers: Sequence[Answer], baseline: Sequence[Answer]) -> tuple[AnswerComparison, ...]:
    others = {answer.prompt: answer for answer in baseline}
    return tuple(_compare_answer(answer, others.get(answer.prompt)) for answer in answers)


def _compare_answer(answer: Answer, other: Answer | None) -> AnswerComparison:
    return AnswerComparison(
        prompt=answer.prompt,
        text=answer.text,
        baseline_text=other.text if other else None,
        first_difference=first_answer_difference(answer.tokens, other.tokens) if other else None,
        repeats=is_repetitive_answer(answer.tokens),
        is_question=answer.window is None,
    )


def first_answer_difference(tokens: Sequence[int], other: Sequence[int]) -> int | None:
    """Counted from 0; one that ends earlier differs at its end. None where they are equal."""
    for place, (own, others) in enumerate(zip(tokens, other, strict=False)):
        if own != others:
            return place
    return None if len(tokens) == len(other) else min(len(tokens), len(other))


def is_repetitive_answer(tokens: Sequence[int]) -> bool:
    for length in range(1, len(tokens) // LEAST_REPEATS + 1):
        period = list(tokens[len(tokens) - length :])
        times = max(LEAST_REPEATS, -(-LEAST_REPEATED_TOKENS // length))
        if times * length <= len(tokens) and list(tokens[len(tokens) - times * length :]) == period * times:
            return True
    return False
