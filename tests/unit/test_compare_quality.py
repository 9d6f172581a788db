"""Did quality get worse? Scores of the same text on both sides, whose truth is known."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from bitbench.analysis.changes import parse_gate_condition
from bitbench.analysis.results.comparison import QUALITY, ChangeVerdict, Comparison
from bitbench.analysis.results.estimate import Verdict
from bitbench.analysis.study_comparison import compare_within_study
from bitbench.records.folder import StudyRecords
from bitbench.records.quality import Condition, CorpusFacts, QualityRecord
from bitbench.records.trial import Outcome
from bitbench.study.plan import Config
from bitbench.study.variant import NO_MODEL
from bitbench.util.errors import CannotCompareError
from tests.unit.test_compare import SLOWER_BY_3, against, page, side
from tests.unit.test_statistics_quality import logits, noisy, rows

ENGINE = Config(variant=NO_MODEL, engine="engine")


Measured = tuple[str, pa.Table]  # the hash of the text, and the scored tokens


def measured(scores: pa.Table, text: str = "same") -> Measured:
    return text, scores


def scored(study: StudyRecords, quality: Mapping[Config, Measured]) -> StudyRecords:
    """The same study, with these measurements of quality."""
    records = [
        QualityRecord(
            id=config.name,
            config=config,
            instance_id="i0001",
            started_at="2026-11-02T10:00:00+00:00",
            duration_s=1.0,
            outcome=Outcome.OK,
            corpus=CorpusFacts(
                description="",
                text_hash="",
                windows_hash=text,
                windows=12,
                window_tokens=41,
                room=8,
            ),
            scores_file="quality/q0001.parquet",
        )
        for config, (text, _) in quality.items()
    ]
    return replace(study, quality=records, scores_of=lambda record: quality[record.config][1])


def with_quality(seed: int, quality: Measured | None) -> StudyRecords:
    return scored(side(f"study-{seed}", 1.0, seed), {ENGINE: quality} if quality else {})


def compared(after: Measured | None, *limits: str) -> Comparison:
    return against(with_quality(1, measured(rows(logits(1)))), with_quality(2, after), *limits)


def quality_verdicts(comparison: Comparison) -> list[ChangeVerdict]:
    return [point.verdict for point in comparison.points if point.candidate.workload == QUALITY]


def test_the_same_scores_are_a_tie() -> None:
    comparison = compared(measured(rows(logits(1))), "perplexity > 1%")
    assert quality_verdicts(comparison) == [ChangeVerdict.UNDECIDED]
    assert comparison.exit_code == 0


def test_a_noise_floor_is_not_what_is_compared() -> None:
    before, after = (with_quality(seed, measured(rows(logits(1)))) for seed in (1, 2))
    alone, noise = rows(logits(1)), rows(noisy(1.5))
    again = after.quality[0].model_copy(update={"id": "q0002", "condition": Condition.RESTARTED})
    after = replace(
        after,
        quality=[*after.quality, again],
        scores_of=lambda record: noise if record.condition is Condition.RESTARTED else alone,
    )
    assert quality_verdicts(against(before, after)) == [ChangeVerdict.UNDECIDED]


def test_noise_in_the_logits_is_worse_quality_although_speed_is_a_tie() -> None:
    comparison = compared(measured(rows(noisy(1.5))), "perplexity > 1%", SLOWER_BY_3)
    assert quality_verdicts(comparison) == [ChangeVerdict.WORSE]
    assert comparison.exit_code == 1
    text = page(comparison)
    assert "Perplexity against `study-1`: worse quality (`engine · quality`)." in text
    assert "## Fails if perplexity &gt; 1%" in text


def test_the_other_way_round_is_better() -> None:
    before, after = (
        with_quality(1, measured(rows(noisy(1.5)))),
        with_quality(2, measured(rows(logits(1)))),
    )
    assert quality_verdicts(against(before, after)) == [ChangeVerdict.BETTER]


def test_the_ratio_is_that_of_the_perplexities() -> None:
    comparison = compared(measured(rows(noisy(1.0))))
    (point,) = [point for point in comparison.points if point.candidate.workload == QUALITY]
    assert point.ratio is not None
    assert point.before.value == pytest.approx(
        float(np.exp(-rows(logits(1))["logprob"].to_numpy().mean())), rel=1e-4
    )
    assert point.before.value / point.after.value == pytest.approx(point.ratio.value)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (None, "was not measured in study-2"),
        (
            measured(rows(logits(1)), "another"),
            "was measured on another text, or with another tokenizer",
        ),
        (
            measured(rows(np.full_like(logits(1), np.nan))),
            "has log-probabilities in study-2 that are not finite",
        ),
    ],
)
def test_what_cannot_be_paired_is_said_and_keeps_no_limit(
    after: Measured | None, reason: str
) -> None:
    comparison = compared(after, "perplexity > 1%")
    assert [gate.verdict for gate in comparison.gates] == [Verdict.INCONCLUSIVE]
    assert comparison.exit_code == 2
    assert f"`engine · quality` {reason}" in page(comparison)


def test_a_limit_on_quality_that_nobody_measured_is_refused() -> None:
    with pytest.raises(CannotCompareError, match="needs studies that measured quality"):
        against(side("a", 1.0, 1), side("b", 1.0, 2), "perplexity > 1%")


def test_two_variants_of_one_study() -> None:
    both = side("a", 1.0, 1, engines=("old", "new"))
    old, new = (Config(variant=NO_MODEL, engine=name) for name in ("old", "new"))
    both = scored(both, {old: measured(rows(logits(1))), new: measured(rows(noisy(1.5)))})
    comparison = compare_within_study(
        both, [(old, new)], conditions=[parse_gate_condition("perplexity > 1%")]
    )
    assert quality_verdicts(comparison) == [ChangeVerdict.WORSE]
    assert comparison.exit_code == 1


def without_speed(study: StudyRecords) -> StudyRecords:
    """Of a study that measured quality alone."""
    plan = study.plan.model_copy(update={"points": (), "quality": study.plan.configs})
    return replace(study, lock=study.lock.model_copy(update={"plan": plan}), trials=[])


def test_two_variants_of_a_study_that_measured_quality_alone() -> None:
    old, new = (Config(variant=NO_MODEL, engine=name) for name in ("old", "new"))
    quality = {old: measured(rows(logits(1))), new: measured(rows(noisy(1.5)))}
    both = without_speed(scored(side("a", 1.0, 1, engines=("old", "new")), quality))
    comparison = compare_within_study(
        both, [(old, new)], conditions=[parse_gate_condition("perplexity > 1%")]
    )
    assert quality_verdicts(comparison) == [ChangeVerdict.WORSE]
    assert comparison.exit_code == 1
    assert "throughput" not in page(comparison)
    with pytest.raises(
        CannotCompareError, match="a limit on output_throughput needs a workload that both ran"
    ):
        compare_within_study(both, [(old, new)], conditions=[parse_gate_condition(SLOWER_BY_3)])
    with pytest.raises(
        CannotCompareError, match="no workload in common in a, and no measured quality"
    ):
        compare_within_study(replace(both, quality=()), [(old, new)], conditions=[])


def test_two_studies_that_measured_quality_alone() -> None:
    before = without_speed(with_quality(1, measured(rows(logits(1)))))
    after = without_speed(with_quality(2, measured(rows(noisy(1.5)))))
    comparison = against(before, after)
    assert quality_verdicts(comparison) == [ChangeVerdict.WORSE]
    assert len(comparison.points) == 1
