"""What to run, how sure that is: the first thing that a reader sees must follow from the ranks and nothing else."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from bitbench.analysis.results.estimate import Estimate, Finding, Verdict
from bitbench.analysis.results.summary import (
    AgainstBaseline,
    ConfigQuality,
    QualityState,
    StudySummary,
)
from bitbench.records.trial import Memory, Outcome
from bitbench.reports.document.html import render_html
from bitbench.reports.document.markdown import render_markdown, render_markdown_phrase
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.reports.sections.lead import find_lead
from bitbench.reports.sections.ranked import format_rank
from bitbench.reports.study import build_study_report
from bitbench.study.plan import Config
from bitbench.study.study import Count, Measure
from bitbench.study.variant import NO_MODEL, ModelFacts, Variant
from bitbench.study.workload import Workload
from tests.support.synthetic import make_lock, make_plan, make_trial, speed_metrics, summarize

INTERACTIVE = Workload(name="interactive", concurrency=1, input_tokens=128, output_tokens=64)
MEDIUM_BATCH = Workload(name="medium_batch", concurrency=8, input_tokens=256, output_tokens=128)
Speeds = dict[str, tuple[float, ...]]  # of each config, on each workload
NOISE = (0.0, 0.01, -0.01)


def study(
    speeds: Speeds,
    *,
    primary_metric: str = "output_throughput",
    starts: int = 3,
    noise: float = 1.0,
    form: str | None = "compressed-tensors/w4a16-int",
    random_weights: bool = False,
) -> StudySummary:
    """The first is the baseline. Each start is off by up to `noise` percent, and each config's differently. All run
    a variant of this form; None: no model."""
    workloads = [INTERACTIVE, MEDIUM_BATCH][: len(next(iter(speeds.values())))]
    measure = Measure(
        metric=primary_metric, starts=Count(min=1, max=starts), trials=Count(min=1, max=3)
    )
    plan = make_plan(list(speeds), workloads, measure, baseline=next(iter(speeds)))
    if form is not None:
        facts = ModelFacts(random_weights=random_weights)
        variant = Variant(name=NO_MODEL, model="m", recipe="r", form=form, facts=facts)
        plan = plan.model_copy(update={"variants": (variant,)})
    trials = []
    for point in plan.points:
        speed = speeds[point.config.engine][[one.name for one in workloads].index(point.workload)]
        for block in range(starts):
            for index in range(3 if starts > 1 else 1):
                own = (block + list(speeds).index(point.config.engine)) % 3
                factor = 1 + noise * (NOISE[own] + NOISE[index] / 4)
                metrics = speed_metrics(plan.study.workload(point.workload), speed * factor)
                memory = Memory(peak_bytes=2**30)
                trials.append(make_trial(point, block, index, metrics=metrics, memory=memory))
    return summarize(plan, trials, [])


class Said:
    """A lead in plain words."""

    def __init__(self, summary: StudySummary) -> None:
        found = find_lead(summary)
        assert found is not None
        self.verdict = render_markdown_phrase(found.verdict).replace("`", "")
        self.reasons = [render_markdown_phrase(reason).replace("`", "") for reason in found.reasons]


def led(summary: StudySummary) -> Said:
    return Said(summary)


def test_one_that_is_ahead_everywhere_is_to_be_used() -> None:
    found = led(study({"base": (100.0, 200.0), "quick": (150.0, 300.0), "slow": (50.0, 100.0)}))
    assert found.verdict == "Use quick. Its quality was not measured."
    assert found.reasons[0].startswith("1.50× (95 % CI 1.")
    assert ") the output throughput of base on interactive and 1.50× [" in found.reasons[0]
    assert found.reasons[0].endswith("] on medium_batch.")
    assert not any("not significant" in reason for reason in found.reasons)


@pytest.mark.parametrize("form", ["dense", "gguf/dense", None])
def test_the_quality_of_a_model_that_is_not_quantized_is_no_question(form: str | None) -> None:
    assert (
        led(study({"base": (100.0, 200.0), "quick": (150.0, 300.0)}, form=form)).verdict
        == "Use quick."
    )
    other = led(
        study({"base": (100.0, 200.0), "early": (150.0, 100.0), "late": (50.0, 300.0)}, form=form)
    )
    assert other.verdict == "Use early on interactive. Use late on medium_batch."


def test_random_weights_have_no_quality_to_be_measured() -> None:
    found = led(study({"base": (100.0, 200.0), "quick": (150.0, 300.0)}, random_weights=True))
    assert found.verdict == "Use quick."
    assert not any("quality" in reason for reason in found.reasons)


def test_equals_are_named_together() -> None:
    summary = study({"base": (100.0, 200.0), "a": (150.0, 300.0), "b": (150.0, 300.0)})
    assert (
        led(summary).verdict
        == "Use a or b (undecided between them). Their quality was not measured."
    )
    assert (
        led(with_quality(summary, base=None, a=None, b=None)).verdict
        == "Use a or b (undecided between them)."
    )
    some = led(with_quality(summary, base=None, a=None))
    assert some.verdict == "Use a or b (undecided between them). The quality of b is unknown."


def test_a_tie_with_one_that_is_no_gain_is_said_in_the_first_sentence() -> None:
    summary = study(
        {"base": (100.0, 200.0), "quick": (112.0, 200.0), "near": (106.0, 200.0)}, noise=4.0
    )
    entries = {one.config.engine: one for one in summary.rankings[0].entries}
    gain = Estimate(value=1.12, low=1.05, high=1.2, confidence=0.95)
    faster = entries["quick"].model_copy(
        update={"against_baseline": AgainstBaseline.FASTER, "ratio_to_baseline": gain}
    )
    undecided = entries["near"].model_copy(update={"against_baseline": AgainstBaseline.UNDECIDED})
    tied = summary.rankings[0].model_copy(
        update={
            "entries": (faster, undecided, entries["base"]),
            "possible_bests": (faster.config, undecided.config),
        }
    )
    known = with_quality(summary, base=None, quick=None, near=None)
    found = led(known.model_copy(update={"rankings": (tied, *summary.rankings[1:])}))
    assert found.verdict == "Use quick (undecided against near) on interactive."


def test_a_claim_whose_interval_contains_1_by_now_is_not_confirmed() -> None:
    summary = study({"base": (100.0,), "quick": (150.0,)})
    (ranking,) = summary.rankings
    quick, base = ranking.entries
    wide = quick.model_copy(
        update={"ratio_to_baseline": Estimate(value=1.48, low=0.85, high=2.58, confidence=0.95)}
    )
    found = led(
        summary.model_copy(
            update={"rankings": (ranking.model_copy(update={"entries": (wide, base)}),)}
        )
    )
    assert found.verdict.startswith("Leading, not confirmed: quick")


def test_two_starts_decide_nothing_and_say_who_looks_faster() -> None:
    summary = study({"base": (100.0,), "quick": (150.0,), "slow": (50.0,)}, starts=2)
    (ranking,) = summary.rankings
    assert {entry.against_baseline for entry in ranking.entries} == {
        None,
        AgainstBaseline.UNDECIDED,
    }
    assert {(entry.rank_low, entry.rank_high) for entry in ranking.entries} == {(1, 3)}
    found = find_lead(summary)
    assert found is not None
    assert found.chosen == ()
    reasons = led(summary).reasons
    assert any(
        reason.startswith("quick looks faster, not yet decided: 1.49× (95 % CI ")
        for reason in reasons
    )
    assert "A decision needs 3 starts of each config; there are 2." in reasons


def test_where_a_gain_is_not_significant_it_is_said() -> None:
    found = led(study({"base": (100.0, 200.0), "quick": (150.0, 200.0)}))
    assert found.verdict == "Use quick on interactive. Its quality was not measured."
    assert (
        found.reasons[1] == "No config is significantly faster than the baseline on medium_batch."
    )


def test_no_one_ahead_is_a_tie_and_no_reason_to_change() -> None:
    found = led(study({"base": (100.0, 200.0), "same": (100.0, 200.0)}))
    assert found.verdict == "Undecided: speed alone gives no reason to change."
    assert found.reasons == [
        "No config is significantly faster than the baseline on interactive and medium_batch.",
    ]


def test_a_baseline_that_is_best_is_kept() -> None:
    assert (
        led(study({"base": (100.0, 200.0), "slow": (50.0, 100.0)})).verdict
        == "Keep the baseline base."
    )
    once = led(study({"base": (100.0, 200.0), "other": (50.0, 200.0)}))
    assert once.verdict == "Keep the baseline base on interactive."
    assert once.reasons == ["No config is significantly faster than the baseline on medium_batch."]


def test_best_for_one_load_and_worse_for_another_is_no_answer_for_both() -> None:
    found = led(study({"base": (100.0, 200.0), "early": (150.0, 100.0), "late": (50.0, 300.0)}))
    assert (
        found.verdict
        == "Use early on interactive. Use late on medium_batch. Their quality was not measured."
    )
    assert [reason.split(" (95")[0] for reason in found.reasons] == [
        "early: 1.50×",
        "late: 1.50×",
        "To measure quality, add quality: {} to the study and run it into a new folder.",
    ]


def test_a_choice_that_failed_now_and_then_is_named_with_a_caution() -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    points = []
    for point in summary.points:
        is_it = point.point.config.engine == "quick" and point.point.workload == "interactive"
        runs = (
            (point.runs[0].model_copy(update={"outcome": Outcome.CRASHED}), *point.runs[1:])
            if is_it
            else point.runs
        )
        points.append(point.model_copy(update={"runs": runs}))
    found = led(summary.model_copy(update={"points": tuple(points)}))
    assert "Caution: 1 of its 9 trials on interactive failed." in found.reasons
    assert not any("Caution" in reason for reason in led(summary).reasons)


def test_a_choice_that_misses_an_objective_is_named_with_a_caution() -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    judged = Finding(
        name="ttft", unit="s", limit=0.2, estimate=Estimate(value=0.5), verdict=Verdict.MISSED
    )
    points = tuple(
        point.model_copy(update={"objectives": (judged,)})
        if point.point.workload == "interactive"
        else point
        for point in summary.points
    )
    found = led(summary.model_copy(update={"points": points}))
    caution = "Caution: it misses ttft ≤ 200 ms on interactive; bitbench recommend --slo chooses among those that meet "
    assert f"{caution}such limits." in found.reasons


def test_of_ties_the_figures_name_whose_they_are() -> None:
    found = led(study({"base": (100.0, 200.0), "a": (150.0, 300.0), "b": (150.0, 300.0)}))
    assert found.reasons[0].startswith(("a: 1.50× (95 % CI 1.", "b: 1.50× (95 % CI 1."))


def test_lower_is_better_where_it_is() -> None:
    found = led(study({"base": (100.0,), "quick": (150.0,)}, primary_metric="latency"))
    assert found.verdict == "Use quick. Its quality was not measured."
    assert found.reasons[0].startswith("1.50× (95 % CI 1.")
    assert ") as fast as base in latency on interactive." in found.reasons[0]


def test_a_single_run_is_no_ranking() -> None:
    summary = study({"base": (100.0,), "quick": (150.0,)}, starts=1)
    assert led(summary).verdict == "No ranking: one start."
    assert "3 starts" in led(summary).reasons[0]
    assert [format_rank(entry) for entry in summary.rankings[0].entries] == [
        "one start, not ranked"
    ] * 2


def test_one_config_is_no_choice() -> None:
    assert find_lead(study({"base": (100.0, 200.0)})) is None


def test_what_is_recommended_is_known_by_name() -> None:
    """The chart stars it, and the table sets it in bold."""
    tied = find_lead(study({"base": (100.0, 200.0), "a": (150.0, 300.0), "b": (150.0, 300.0)}))
    kept = find_lead(study({"base": (100.0, 200.0), "slow": (50.0, 100.0)}))
    none = find_lead(study({"base": (100.0, 200.0), "same": (100.0, 200.0)}))
    chosen = [{one.engine for one in found.chosen} for found in (tied, kept, none) if found]
    assert chosen == [{"a", "b"}, {"base"}, set()]


def without(summary: StudySummary, config: str, workload: str) -> StudySummary:
    """As if it had failed there."""
    rankings = []
    for one in summary.rankings:
        kept = [
            entry
            for entry in one.entries
            if one.workload != workload or entry.config.engine != config
        ]
        is_lost = (
            len(kept) < len(one.entries)
            and one.baseline is not None
            and one.baseline.engine == config
        )
        bests = tuple(
            best for best in one.possible_bests if any(entry.config == best for entry in kept)
        )
        left = {
            "entries": tuple(kept),
            "baseline": None if is_lost else one.baseline,
            "possible_bests": bests,
        }
        rankings.append(one.model_copy(update=left))
    return summary.model_copy(update={"rankings": tuple(rankings)})


UNDECIDED = "undecided"


def with_quality(summary: StudySummary, **outcomes: str | None) -> StudySummary:
    """`outcomes`: why a config is flagged, or UNDECIDED; None where it is within the limits."""

    def state(reason: str | None) -> QualityState:
        if reason is None:
            return QualityState.WITHIN
        return QualityState.UNDECIDED if reason == UNDECIDED else QualityState.BEYOND

    rows = [
        ConfigQuality(
            config=Config(variant=NO_MODEL, engine=name),
            baseline=summary.baseline,
            outcome=Outcome.OK,
            estimates={"perplexity_rise": Estimate(value=0.01)},
            state=state(reason),
            reason=reason,
        )
        for name, reason in outcomes.items()
    ]
    return summary.model_copy(update={"quality": tuple(rows)})


def test_one_that_fails_where_another_does_not_is_no_answer_for_both() -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    found = led(without(summary, "quick", "medium_batch"))
    assert found.verdict == "Use quick on interactive. Its quality was not measured."
    assert found.reasons[0].startswith("1.50× (95 % CI 1")
    assert found.reasons[1] == "Only base has a result on medium_batch."


def test_a_baseline_that_fails_where_another_does_not_is_no_tie() -> None:
    summary = study({"base": (100.0, 200.0), "slow": (50.0, 100.0)})
    found = led(without(summary, "base", "medium_batch"))
    assert found.verdict == "Keep the baseline base on interactive."
    assert found.reasons == ["Only slow has a result on medium_batch."]


def test_one_whose_quality_is_flagged_is_never_recommended() -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    found = led(with_quality(summary, base=None, quick="perplexity +900 %"))
    where = "on interactive and medium_batch, but its quality is flagged: perplexity +900 %."
    assert found.verdict == "Keep the baseline base."
    assert found.reasons == [f"quick is the fastest {where}"]
    slower = with_quality(
        study({"base": (100.0, 200.0), "slow": (50.0, 100.0)}), base="perplexity +900 %", slow=None
    )
    assert led(slower).verdict == f"base is the fastest {where}"
    assert (found_lead := find_lead(slower)) is not None
    assert not found_lead.chosen


def test_that_there_was_too_little_text_to_tell_is_no_pass() -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    found = led(with_quality(summary, base=None, quick=UNDECIDED))
    assert found.verdict == "Use quick. The quality of quick is undecided."
    assert "undecided" not in led(with_quality(summary, base=None, quick=None)).verdict
    split = study({"base": (100.0, 200.0), "early": (150.0, 100.0), "late": (50.0, 300.0)})
    verdict = led(with_quality(split, base=None, early=UNDECIDED, late=None)).verdict
    assert verdict.endswith("The quality of early is undecided.")


def test_of_equals_the_one_that_is_not_flagged_is_to_be_used() -> None:
    summary = study({"base": (100.0, 200.0), "a": (150.0, 300.0), "b": (150.0, 300.0)})
    assert led(with_quality(summary, base=None, a="broken", b=None)).verdict == "Use b."


def test_on_each_workload_too_a_flag_is_said() -> None:
    summary = study({"base": (100.0, 200.0), "early": (150.0, 100.0), "late": (50.0, 300.0)})
    found = led(with_quality(summary, base=None, early="broken", late=None))
    assert found.verdict == "Keep the baseline base on interactive. Use late on medium_batch."
    assert found.reasons[0].startswith("late: 1.50× (95 % CI 1")
    assert (
        found.reasons[1]
        == "early is the fastest on interactive, but its quality is flagged: broken."
    )


def test_where_the_fastest_is_flagged_the_best_of_the_others_is_to_be_used() -> None:
    summary = study(
        {
            "base": (100.0, 200.0),
            "wild": (400.0, 800.0),
            "quick": (150.0, 300.0),
            "slow": (110.0, 220.0),
        }
    )
    found = led(with_quality(summary, base=None, wild="perplexity +900 %", quick=None, slow=None))
    assert found.verdict == "Use quick."
    assert found.reasons[0].startswith("1.50× (95 % CI ")
    where = "on interactive and medium_batch, but its quality is flagged: perplexity +900 %."
    assert found.reasons[-1] == f"wild is the fastest {where}"


def test_one_that_only_a_flagged_one_beats_stays_in_the_tie() -> None:
    """`small` is tied with `sure` everywhere; on one workload only `wild`, which is out, is ahead of it."""
    summary = study(
        {
            "base": (100.0, 200.0),
            "wild": (400.0, 320.0),
            "sure": (150.0, 300.0),
            "small": (150.0, 200.0),
        }
    )
    entries = {one.config.engine: one for one in summary.rankings[1].entries}
    tied = {
        "wild": ["sure"],
        "sure": ["wild", "small"],
        "small": ["sure", "base"],
        "base": ["small"],
    }
    second = summary.rankings[1].model_copy(
        update={
            "entries": tuple(
                entries[name].model_copy(
                    update={"undecided_with": tuple(entries[other].config for other in others)}
                )
                for name, others in tied.items()
            ),
            "possible_bests": (entries["wild"].config, entries["sure"].config),
        }
    )
    summary = summary.model_copy(update={"rankings": (summary.rankings[0], second)})
    found = led(with_quality(summary, base=None, wild="perplexity +900 %", sure=None, small=None))
    first = "Use sure or small (undecided between them) on interactive."
    assert found.verdict == f"{first} Use sure (undecided against small) on medium_batch."
    assert found.reasons[-1].startswith("wild is the fastest ")


def test_quality_without_a_result_is_said() -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    found = led(with_quality(summary, base=None))
    assert found.verdict == "Use quick. Its quality is unknown."
    known = with_quality(summary, base=None, quick=None)
    assert led(known).verdict == "Use quick."
    alone = tuple(one.model_copy(update={"estimates": {}}) for one in known.quality)
    assert (
        led(known.model_copy(update={"quality": alone})).verdict
        == "Use quick. Its quality is unknown."
    )


@pytest.mark.parametrize("form", ["terminal", "page", "Markdown"])
def test_every_form_begins_with_the_same_sentence(form: str) -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    document = build_study_report(summary, make_lock(make_plan(["base", "quick"], [INTERACTIVE])))
    console = Console(file=io.StringIO(), width=120)
    if form == "terminal":
        render_in_terminal(document, console)
    assert isinstance(console.file, io.StringIO)
    texts: dict[str, Callable[[], str]] = {
        "terminal": console.file.getvalue,
        "page": lambda: render_html(document, "").replace("<code>", "").replace("</code>", ""),
        "Markdown": lambda: render_markdown(document).replace("`", ""),
    }
    assert "Use quick. Its quality was not measured." in texts[form]()


def test_where_nothing_has_a_result_there_is_no_answer() -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    nothing = tuple(
        one.model_copy(update={"entries": (), "baseline": None, "possible_bests": ()})
        for one in summary.rankings
    )
    assert led(summary.model_copy(update={"rankings": nothing})).verdict == "No answer:"
