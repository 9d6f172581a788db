"""Noise floor and equivalence, against answers that are known."""

import numpy as np

from bitbench.analysis.results.summary import StudySummary
from bitbench.features.behaviour.types import Behaviour
from bitbench.features.behaviour.words import behaviour_section, behaviour_sentences
from bitbench.records.quality import Condition
from bitbench.reports.document.markdown import (
    render_markdown,
    render_markdown_phrase,
    render_markdown_section,
)
from bitbench.reports.sections.lead import find_lead
from bitbench.reports.study import build_study_report
from tests.support.synthetic import demo_study, make_lock, summarize
from tests.unit.test_statistics_quality import TOP, VOCABULARY, logits, noisy, plan, record, rows


def measured(*, with_floor: bool = True, margin: float = 0.01) -> StudySummary:
    """A baseline with a floor of little noise; a variant with as much, and one with much more."""
    known = {
        "bf16": rows(logits(1)),
        "bf16-again": rows(noisy(0.02, seed=4)),
        "w8": rows(noisy(0.03, seed=5)),
        "w4": rows(noisy(0.8, seed=6)),
    }
    records = [record(recipe) for recipe in ("bf16", "w8", "w4")]
    if with_floor:
        again = {"id": "bf16-again", "condition": Condition.RESTARTED}
        records.append(records[0].model_copy(update=again))
    return summarize(
        plan("bf16", "w8", "w4", equivalence_margin=margin),
        [],
        [],
        quality=records,
        scores_of=lambda one: known[one.id],
    )


def behaviour_of(summary: StudySummary) -> Behaviour:
    found = summary.part(Behaviour)
    assert found is not None
    return found


def test_a_variant_within_the_noise_is_equivalent_and_one_beyond_it_is_not() -> None:
    found = behaviour_of(measured())
    (floor,) = found.floors
    assert 0 < floor.divergence.value < 0.002
    verdicts = {name: one.verdict for name, one in found.equivalence.items()}
    assert verdicts == {"m/w8 @ vllm": "equivalent", "m/w4 @ vllm": "different"}
    excess = found.equivalence["m/w8 @ vllm"].excess
    assert excess.interval is not None
    tight = behaviour_of(measured(margin=excess.value)).equivalence["m/w8 @ vllm"]
    assert tight.verdict == "inconclusive"  # its interval covers the margin: neither can be said


def test_a_floor_is_not_a_result_of_the_baseline() -> None:
    """Figures of quality are from windows that were asked for one at a time, whatever came later."""
    with_floor, without = measured(), measured(with_floor=False)
    assert with_floor.quality == without.quality
    assert without.part(Behaviour) is None


def restarted(noise: float, loss: float) -> StudySummary:
    """Eight of twelve windows, scored again by another start with so much noise; one variant with another loss."""
    of_restart = rows(noisy(noise, seed=4))
    kept = np.isin(of_restart["window"].to_numpy(), [0, 1, 3, 4, 6, 7, 9, 10])
    known = {
        "bf16": rows(logits(1)),
        "again": of_restart.filter(kept),
        "w8": rows(noisy(loss, seed=5)),
    }
    base = record("bf16")
    again = base.model_copy(
        update={"id": "again", "condition": Condition.RESTARTED, "instance_id": "i0002"}
    )
    return summarize(
        plan("bf16", "w8"),
        [],
        [],
        quality=[base, record("w8"), again],
        scores_of=lambda one: known[one.id],
    )


def test_what_a_restart_changes_is_taken_off_a_loss() -> None:
    found = behaviour_of(restarted(noise=0.1, loss=0.1))
    (floor,) = found.floors
    (equal,) = found.equivalence.values()
    assert equal.floor == floor
    assert equal.excess.interval is not None
    assert equal.excess.interval.low < 0 < equal.excess.interval.high
    worse = behaviour_of(restarted(noise=0.1, loss=0.5))
    assert [one.excess.is_above(0) for one in worse.equivalence.values()] == [True]
    (exact,) = behaviour_of(restarted(noise=0.0, loss=0.0)).equivalence.values()
    assert (exact.verdict, exact.excess.interval) == ("equivalent", (0.0, 0.0))


def started_twice(top: int = TOP) -> StudySummary:
    """Return a study whose baseline was started twice."""
    known = {
        "bf16": rows(logits(1), top),
        "again": rows(noisy(0.02, seed=4), top),
        "w8": rows(noisy(0.05, seed=5), top),
    }
    base = record("bf16")
    again = base.model_copy(update={"id": "again", "condition": Condition.RESTARTED})
    records = [base, again, record("w8")]
    return summarize(
        plan("bf16", "w8"), [], [], quality=records, scores_of=lambda one: known[one.id]
    )


def test_a_margin_that_only_the_missing_mass_may_exceed_is_no_pass() -> None:
    (some,) = behaviour_of(started_twice()).equivalence.values()
    (every,) = behaviour_of(started_twice(VOCABULARY)).equivalence.values()
    assert some.excess.interval is not None
    assert every.excess.interval is not None
    assert (
        some.excess.interval.high > every.excess.interval.high
    )  # the rest of the vocabulary counts


def test_the_report_says_what_is_equivalent() -> None:
    summary = measured()
    said = [
        render_markdown_phrase(one) for one in behaviour_sentences(behaviour_of(summary), summary)
    ]
    assert said[0].startswith(
        "Behaviour: `w8` is equivalent to the unquantized model within the 0.01-nat margin"
    )
    assert said[1].startswith("Behaviour: `w4` is not equivalent to the unquantized model")
    text = "\n".join(render_markdown_section(behaviour_section(behaviour_of(summary), summary)))
    assert text.index("w8") < text.rindex("w4")


def test_a_study_of_quality_alone_leads_with_behaviour() -> None:
    summary = measured()
    alone = summary.model_copy(update={"study": summary.study.model_copy(update={"workloads": ()})})
    found = find_lead(alone)
    assert found is not None
    assert (
        render_markdown_phrase(found.verdict)
        == "`w8` is equivalent to the unquantized model within the 0.01-nat margin."
    )
    (others,) = (render_markdown_phrase(one) for one in found.reasons)
    assert others == "1 variant is not equivalent."
    assert find_lead(alone.model_copy(update={"parts": {}})) is None


def test_a_baseline_that_is_quantized_is_named() -> None:
    summary = measured()
    no_reference = [one.model_copy(update={"is_reference": False}) for one in summary.configs]
    quantized = summary.model_copy(update={"configs": tuple(no_reference)})
    said = [
        render_markdown_phrase(one)
        for one in behaviour_sentences(behaviour_of(quantized), quantized)
    ]
    assert said[1].startswith("Behaviour: `w4` is not equivalent to `bf16`")
    assert not any("unquantized" in one for one in said)


def test_a_study_without_speeds_says_nothing_of_ranks() -> None:
    asked, trials, instances, _ = demo_study()
    assert "Ranks, n and" in render_markdown(
        build_study_report(summarize(asked, trials, instances), make_lock(asked))
    )
    assert "Ranks, n and" not in render_markdown(
        build_study_report(measured(), make_lock(plan("bf16", "w8", "w4")))
    )


def test_a_study_without_quality_says_nothing_of_behaviour() -> None:
    asked, trials, instances, _ = demo_study()
    assert summarize(asked, trials, instances).part(Behaviour) is None
