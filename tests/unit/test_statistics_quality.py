"""Perplexity, divergence and agreement, against distributions whose answer is known."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from bitbench.analysis.divergence import (
    compute_window_means,
    divergence,
    estimate_divergence,
    estimate_divergence_bounds,
    has_too_little_mass,
    make_scores,
)
from bitbench.analysis.intervals import estimate_t_mean
from bitbench.analysis.quality import (
    DEFINITIONS,
    count_equal_answers,
    estimate_quality,
    is_repetitive_answer,
    summarize_quality,
)
from bitbench.analysis.results.summary import ConfigQuality, QualityState
from bitbench.analysis.tasks import compare_tasks
from bitbench.records.quality import Answer, CorpusFacts, QualityRecord, TaskResult
from bitbench.records.trial import Outcome
from bitbench.study.plan import Config, Plan
from bitbench.study.quality import Quality
from bitbench.study.study import EngineSetup, Study
from bitbench.study.variant import Variant
from tests.support.synthetic import make_records

VOCABULARY = 50
TOP = 8
WINDOWS, LENGTH = 12, 40

Floats = npt.NDArray[np.float64]


def logits(seed: int) -> Floats:
    return np.random.default_rng(seed).normal(0, 2.5, size=(WINDOWS * LENGTH, VOCABULARY))


def log_softmax(values: Floats) -> Floats:
    shifted = values - values.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def rows(values: Floats, top: int = TOP) -> pa.Table:
    """As they are stored, for texts whose tokens are drawn once and for all."""
    logprobs = log_softmax(values)
    tokens = np.random.default_rng(7).integers(VOCABULARY, size=len(values))
    order = np.argsort(-logprobs, axis=1)[:, :top]
    return pa.table(
        {
            "window": pa.array(np.repeat(np.arange(WINDOWS), LENGTH), pa.int32()),
            "position": pa.array(np.tile(np.arange(1, LENGTH + 1), WINDOWS), pa.int32()),
            "token": pa.array(tokens, pa.int32()),
            "logprob": pa.array(logprobs[np.arange(len(values)), tokens], pa.float32()),
            "top_tokens": pa.array(order.tolist(), pa.list_(pa.int32())),
            "top_logprobs": pa.array(
                np.take_along_axis(logprobs, order, axis=1).tolist(), pa.list_(pa.float32())
            ),
        }
    )


def true_divergence(base: Floats, other: Floats) -> Floats:
    p, q = log_softmax(base), log_softmax(other)
    return np.asarray((np.exp(p) * (p - q)).sum(axis=1))


def noisy(amount: float, seed: int = 3) -> Floats:
    return logits(1) + np.random.default_rng(seed).normal(
        0, amount, size=(WINDOWS * LENGTH, VOCABULARY)
    )


def test_a_variant_has_no_divergence_from_itself_at_all() -> None:
    same = make_scores(rows(logits(1)))
    assert divergence(same, make_scores(rows(logits(1)))).max() == 0.0
    found = estimate_quality(same, same, 0.95)
    for key, value in (("perplexity_rise", 0.0), ("kl_mean", 0.0), ("top1_agreement", 1.0)):
        interval = found[key].interval
        assert interval is not None
        assert (interval.low, found[key].value, interval.high) == (value, value, value)


@pytest.mark.parametrize("amount", [0.05, 0.3, 1.0])
def test_divergence_of_the_top_tokens_is_a_lower_bound_and_exact_with_all_of_them(
    amount: float,
) -> None:
    truth = true_divergence(logits(1), noisy(amount))
    some = divergence(make_scores(rows(logits(1))), make_scores(rows(noisy(amount))))
    every = divergence(
        make_scores(rows(logits(1), VOCABULARY)), make_scores(rows(noisy(amount), VOCABULARY))
    )
    np.testing.assert_allclose(every, truth, rtol=0.01, atol=3e-6)
    assert (some <= truth + 3e-6).all()
    assert some.mean() > 0.5 * truth.mean()


def test_perplexity_and_its_paired_rise() -> None:
    base, other = rows(logits(1)), rows(noisy(0.5))
    found = estimate_quality(make_scores(other), make_scores(base), 0.95)
    plain, worse = (
        float(np.exp(-one["logprob"].to_numpy().astype(float).mean())) for one in (base, other)
    )
    assert found["perplexity"].value == pytest.approx(worse)
    assert found["perplexity_rise"].value == pytest.approx(worse / plain - 1)
    paired, alone = found["perplexity_rise"].interval, found["perplexity"].interval
    assert paired is not None
    assert alone is not None
    assert (
        paired.high - paired.low < (alone.high - alone.low) / plain
    )  # the text's own variation cancels
    assert set(found) == set(DEFINITIONS)
    assert set(estimate_quality(make_scores(other), None, 0.95)) == {"perplexity"}


def test_intervals_cover_what_they_say() -> None:
    """Windows differ in level: over 200 texts the interval of the mean divergence holds the true one about 95 times."""
    rng, hits = np.random.default_rng(11), 0
    window = np.repeat(np.arange(32), 30)
    for _ in range(200):
        level = rng.gamma(2.0, 0.05, size=32)  # mean 0.1
        values = rng.exponential(level[window])
        interval = estimate_t_mean(compute_window_means(window, values).tolist(), 0.95).interval
        assert interval is not None
        hits += interval.low <= 0.1 <= interval.high
    assert 180 <= hits <= 200


@pytest.mark.parametrize("top", [4, 8, 20, VOCABULARY])
@pytest.mark.parametrize("amount", [0.05, 0.3, 1.0])
def test_the_bounds_hold_the_divergence_of_the_whole_vocabulary(amount: float, top: int) -> None:
    truth = true_divergence(logits(1), noisy(amount))
    found = estimate_divergence_bounds(
        make_scores(rows(logits(1), top)), make_scores(rows(noisy(amount), top))
    )
    assert (found.lower <= truth + 3e-6).all()
    assert truth.mean() <= found.upper.mean() + 3e-6
    assert ((found.mass > 0) & (found.mass <= 1.0)).all()


def test_more_tokens_hold_more_mass_and_bound_closer() -> None:
    found = [
        estimate_divergence_bounds(
            make_scores(rows(logits(1), top)), make_scores(rows(noisy(0.3), top))
        )
        for top in (4, 8, 20, VOCABULARY)
    ]
    assert np.all(np.diff([one.mass.mean() for one in found]) > 0)
    assert np.all(np.diff([one.lower.mean() for one in found]) > 0)
    assert np.all(np.diff([(one.upper - one.lower).mean() for one in found]) < 0)
    assert found[-1].mass.mean() == pytest.approx(1.0, abs=1e-5)
    assert found[-1].upper == pytest.approx(found[-1].lower, abs=1e-5)


def test_tokens_that_one_side_alone_told_widen_the_upper_bound() -> None:
    """A token that falls out of the top of the other side has lost more than any that both told."""
    base = logits(1)
    fallen = base.copy()
    third = np.argsort(-base, axis=1)[:, 2:3]
    np.put_along_axis(fallen, third, -20.0, axis=1)
    found = estimate_divergence_bounds(make_scores(rows(base, 4)), make_scores(rows(fallen, 4)))
    assert (found.upper - found.lower).mean() > 0.01


def test_what_is_lacking_is_text_or_mass() -> None:
    exact = np.array([0.08, 0.09, 0.08, 0.09])
    assert has_too_little_mass(estimate_divergence(exact, exact + 0.1, 0.95), 0.1)
    assert not has_too_little_mass(estimate_divergence(exact, exact, 0.95), 0.1)  # within
    assert not has_too_little_mass(
        estimate_divergence(exact + 0.1, exact + 0.2, 0.95), 0.1
    )  # beyond
    wide = np.array([0.02, 0.15, 0.03, 0.14])
    assert not has_too_little_mass(estimate_divergence(wide, wide + 0.1, 0.95), 0.1)


def config(recipe: str) -> Config:
    return Config(variant=f"m/{recipe}", engine="vllm")


def plan(*recipes: str, **quality: float) -> Plan:
    study = Study(
        name="s",
        models=("m",),
        recipes=recipes,
        engines=(EngineSetup(name="vllm", engine="vllm"),),
        quality=Quality.model_validate(quality),
    )
    variants = [
        Variant(
            name=f"m/{recipe}",
            model="m",
            recipe=recipe,
            form="dense" if recipe == "bf16" else "compressed-tensors",
        )
        for recipe in recipes
    ]
    return Plan(
        study=study, variants=tuple(variants), points=(), quality=tuple(map(config, recipes))
    )


def record(recipe: str, outcome: Outcome = Outcome.OK, windows_hash: str = "h") -> QualityRecord:
    facts = CorpusFacts(
        description="text",
        text_hash="t",
        windows_hash=windows_hash,
        windows=WINDOWS,
        window_tokens=41,
        room=1000,
    )
    return QualityRecord(
        id=recipe,
        config=config(recipe),
        instance_id="i0001",
        started_at="2026-11-02T10:00:00+00:00",
        duration_s=1.0,
        outcome=outcome,
        corpus=facts,
        top_tokens=TOP,
        tokens=WINDOWS * LENGTH,
    )


def summarized(values: Floats, **limits: float) -> ConfigQuality:
    study = plan("bf16", "w4", **limits)
    known = {"bf16": rows(logits(1)), "w4": rows(values)}
    return of_records(study, [record("bf16"), record("w4")], known)[1]


def of_records(
    study: Plan, records: list[QualityRecord], known: dict[str, pa.Table]
) -> tuple[ConfigQuality, ...]:
    return summarize_quality(
        make_records(study, quality=records, scores_of=lambda record: known[record.id])
    )


def test_a_loss_is_within_the_limits_beyond_one_or_undecided() -> None:
    assert summarized(noisy(0.1)).state is QualityState.WITHIN
    damaged = summarized(noisy(1.5))
    assert damaged.state is QualityState.BEYOND
    assert "mean KL divergence is at least" in (damaged.reason or "")
    by_perplexity = summarized(noisy(1.5), max_divergence=100.0)
    assert "rise of perplexity" in (by_perplexity.reason or "")
    kl = damaged.estimates["kl_mean"]
    assert kl.interval is not None
    unsure = summarized(noisy(1.5), max_divergence=kl.value, max_perplexity_rise=100.0)
    assert unsure.state is QualityState.UNDECIDED
    assert (unsure.reason or "").startswith("not enough text to tell")
    assert not unsure.flagged


def test_a_lower_bound_within_the_limit_proves_nothing_without_the_mass() -> None:
    """The text suffices, but the eight likeliest of fifty tokens leave room for more than the limit."""
    kl = summarized(noisy(0.3), max_perplexity_rise=100.0).estimates["kl_mean"]
    assert kl.interval is not None
    of_known = 2 * kl.value - kl.interval.low
    limit = (of_known + kl.interval.high) / 2
    found = summarized(noisy(0.3), max_divergence=limit, max_perplexity_rise=100.0)
    assert found.state is QualityState.UNDECIDED
    assert (found.reason or "").startswith("not enough probability mass to tell")
    more = summarized(noisy(0.3), max_divergence=kl.interval.high, max_perplexity_rise=100.0)
    assert more.state is QualityState.WITHIN


def test_figures_that_llama_cpp_prints() -> None:
    base, other = (
        make_scores(rows(logits(1), VOCABULARY)),
        make_scores(rows(noisy(0.3), VOCABULARY)),
    )
    found = estimate_quality(other, base, 0.95)
    kl = true_divergence(logits(1), noisy(0.3))
    assert found["kl_median"].value == pytest.approx(np.median(kl), rel=0.01)
    assert found["kl_p99_9"].value == pytest.approx(np.quantile(kl, 0.999), rel=0.01)
    assert found["kl_p99_9"].interval is None
    change = np.exp(other.logprob) - np.exp(base.logprob)
    assert found["probability_change_rms"].value == pytest.approx(np.sqrt((change**2).mean()))
    assert found["kl_mass"].value == pytest.approx(1.0, abs=1e-5)


def test_what_is_no_number_is_flagged_whatever_the_limits() -> None:
    broken = noisy(0.1)
    broken[5] = np.nan
    found = summarized(broken, max_divergence=1e9, max_perplexity_rise=1e9)
    assert found.flagged
    assert "not finite" in (found.reason or "")
    assert found.estimates == {}


def test_without_the_baselines_result_or_on_another_text_nothing_is_paired() -> None:
    study, known = plan("bf16", "w4"), {"bf16": rows(logits(1)), "w4": rows(noisy(0.1))}
    (_, alone) = of_records(study, [record("bf16", Outcome.CRASHED), record("w4")], known)
    assert set(alone.estimates) == {"perplexity"}
    (_, other_text) = of_records(study, [record("bf16"), record("w4", windows_hash="other")], known)
    assert set(other_text.estimates) == {"perplexity"}
    (only,) = of_records(plan("w4"), [record("w4")], known)
    assert only.baseline is None


def test_which_answers_are_equal_and_which_loop() -> None:
    assert is_repetitive_answer([5, *[1, 2, 3] * 6])
    assert is_repetitive_answer([7] * 16)
    assert not is_repetitive_answer([7] * 12)  # "ha ha ha"
    assert not is_repetitive_answer(list(range(48)))
    base = [Answer(prompt="a", text="x", tokens=(1, 2)), Answer(prompt="b", text="y", tokens=(3,))]
    mine = [Answer(prompt="a", text="x", tokens=(1, 2)), Answer(prompt="b", text="z", tokens=(4,))]
    assert count_equal_answers(mine, base) == 1
    assert count_equal_answers(mine, []) is None


def test_tasks_beside_the_baselines() -> None:
    def result(value: float) -> TaskResult:
        return TaskResult(
            task="t", metric="acc,none", value=value, standard_error=0.03, samples=100
        )

    (one,) = compare_tasks([result(0.5)], [result(0.54)])
    assert one.difference == pytest.approx(-0.04)
    assert one.difference_error == pytest.approx(0.03 * 2**0.5)
    (alone,) = compare_tasks([result(0.5)], [])
    assert alone.difference is None
