"""What to run, how sure that is: the first thing that a reader sees must follow from the ranks and nothing else."""

import pytest

from bitbench.core.asked.study import Count, Measure
from bitbench.core.asked.workload import Workload
from bitbench.core.cell import Contender
from bitbench.core.found.summary import ContenderQuality, StudySummary
from bitbench.core.recorded.trial import Memory, Outcome
from bitbench.core.recorded.variant import NO_MODEL
from bitbench.report.sections.headline import Lead, best_table, lead
from tests.unit.synthetic import make_plan, make_trial, speed_metrics, summarize

INTERACTIVE = Workload(name="interactive", concurrency=1, input_tokens=128, output_tokens=64)
MEDIUM_BATCH = Workload(name="medium_batch", concurrency=8, input_tokens=256, output_tokens=128)
Speeds = dict[str, tuple[float, ...]]  # of each contender, on each workload
NOISE = (0.0, 0.01, -0.01)


def study(speeds: Speeds, *, headline: str = "output_throughput", starts: int = 3, noise: float = 1.0) -> StudySummary:
    """The first is the baseline. Each start is off by up to `noise` percent, in the same way for everybody."""
    workloads = [INTERACTIVE, MEDIUM_BATCH][: len(next(iter(speeds.values())))]
    measure = Measure(headline=headline, instances=Count(min=1, max=starts), trials=Count(min=1, max=3))
    plan = make_plan(list(speeds), workloads, measure, baseline=next(iter(speeds)))
    trials = []
    for cell in plan.cells:
        speed = speeds[cell.contender.engine][[one.name for one in workloads].index(cell.workload)]
        for block in range(starts):
            for index in range(3 if starts > 1 else 1):
                factor = 1 + noise * (NOISE[block % 3] + NOISE[index] / 4)
                metrics = speed_metrics(plan.study.workload(cell.workload), speed * factor)
                memory = Memory(peak_bytes=2**30)
                trials.append(make_trial(cell, block, index, metrics=metrics, memory=memory))
    return summarize(plan, trials, [])


def led(summary: StudySummary) -> Lead:
    found = lead(summary, str)
    assert found is not None
    return found


def test_one_that_is_ahead_everywhere_is_to_be_run() -> None:
    found = led(study({"base": (100.0, 200.0), "quick": (150.0, 300.0), "slow": (50.0, 100.0)}))
    assert found.verdict == "Run quick."
    assert "nobody is surely ahead of it by output throughput" in found.reasons[0]
    assert "surely ahead of the baseline base at interactive (1.50× [" in found.reasons[1]
    assert "and medium_batch (1.50× [" in found.reasons[1]
    assert "not surely" not in found.reasons[1]
    assert found.reasons[-1] == "What it costs in quality was not measured in this study."


def test_equals_are_named_together() -> None:
    found = led(study({"base": (100.0, 200.0), "a": (150.0, 300.0), "b": (150.0, 300.0)}))
    assert found.verdict == "Run a, or b, which cannot be told from it."


def test_where_a_gain_is_not_sure_it_is_said() -> None:
    found = led(study({"base": (100.0, 200.0), "quick": (150.0, 200.0)}))
    assert found.verdict == "Run quick."
    assert found.reasons[1].endswith("; not surely at medium_batch (1.00×).")


def test_nobody_ahead_is_a_tie_and_no_reason_to_change() -> None:
    found = led(study({"base": (100.0, 200.0), "same": (100.0, 200.0)}))
    assert found.verdict == "A tie: speed alone gives no reason to change."
    assert "nobody is surely ahead of the baseline base" in found.reasons[0]


def test_a_baseline_that_is_best_is_kept() -> None:
    assert led(study({"base": (100.0, 200.0), "slow": (50.0, 100.0)})).verdict == "Keep the baseline base."


def test_best_for_one_load_and_worse_for_another_is_no_answer_for_both() -> None:
    found = led(study({"base": (100.0, 200.0), "early": (150.0, 100.0), "late": (50.0, 300.0)}))
    assert found.verdict == "It depends on the workload."
    assert [reason[:35] for reason in found.reasons] == [
        "At interactive run early, 1.50× [1.",
        "At medium_batch run late, 1.50× [1.",
    ]


def test_lower_is_better_where_it_is() -> None:
    found = led(study({"base": (100.0,), "quick": (150.0,)}, headline="latency"))
    assert found.verdict == "Run quick."
    assert "at interactive (0.67× [" in found.reasons[1]


def test_one_run_ranks_nobody() -> None:
    summary = study({"base": (100.0,), "quick": (150.0,)}, starts=1)
    assert led(summary).verdict == "Nobody is ranked."


def test_one_contender_is_no_choice() -> None:
    assert lead(study({"base": (100.0, 200.0)}), str) is None


@pytest.mark.parametrize(("speeds", "cell"), [((150.0, 300.0), "nobody"), ((100.0, 200.0), "same")])
def test_the_table_says_who_cannot_be_told_from_the_best(speeds: tuple[float, float], cell: str) -> None:
    lines = best_table(study({"base": (100.0, 200.0), "same": speeds}), str).splitlines()
    assert lines[0].split("|")[1].strip() == "Workload"
    last = [line.split("|")[5].strip() for line in lines[2:]]
    assert set(last) <= {cell, "base"} if cell == "same" else set(last) == {"nobody"}
    assert len(last) == 2


def without(summary: StudySummary, contender: str, workload: str) -> StudySummary:
    """As if it had failed there."""
    rankings = []
    for one in summary.rankings:
        kept = [entry for entry in one.entries if one.workload != workload or entry.contender.engine != contender]
        is_lost = len(kept) < len(one.entries) and one.baseline is not None and one.baseline.engine == contender
        rankings.append(one.model_copy(update={"entries": tuple(kept), "baseline": None if is_lost else one.baseline}))
    return summary.model_copy(update={"rankings": tuple(rankings)})


def with_quality(summary: StudySummary, **outcomes: str | None) -> StudySummary:
    """`outcomes`: why a contender is flagged; None where it is not."""
    rows = [
        ContenderQuality(
            contender=Contender(variant=NO_MODEL, engine=name),
            baseline=summary.baseline,
            outcome=Outcome.OK,
            flagged=reason is not None,
            reason=reason,
        )
        for name, reason in outcomes.items()
    ]
    return summary.model_copy(update={"quality": tuple(rows)})


def test_one_that_fails_where_another_does_not_is_no_answer_for_both() -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    found = led(without(summary, "quick", "medium_batch"))
    assert found.verdict == "It depends on the workload."
    assert found.reasons[0].startswith("At interactive run quick, 1.50× [")
    assert found.reasons[1] == "At medium_batch only base has a result."


def test_a_baseline_that_fails_where_another_does_not_is_no_tie() -> None:
    summary = study({"base": (100.0, 200.0), "slow": (50.0, 100.0)})
    found = led(without(summary, "base", "medium_batch"))
    assert found.verdict == "It depends on the workload."
    assert found.reasons == (
        "Where it has a result, nobody is surely ahead of the baseline base by output throughput; "
        "at medium_batch it has none, and others have.",
    )


def test_nobody_is_told_to_run_one_whose_quality_is_flagged() -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    found = led(with_quality(summary, base=None, quick="perplexity +900 %"))
    assert found.verdict == "Ahead, but flagged for its quality: quick."
    assert found.reasons[1] == "Its quality is flagged: perplexity +900 %."


def test_of_equals_the_one_that_is_not_flagged_is_to_be_run() -> None:
    summary = study({"base": (100.0, 200.0), "a": (150.0, 300.0), "b": (150.0, 300.0)})
    assert led(with_quality(summary, base=None, a="broken", b=None)).verdict == "Run b."


def test_at_each_workload_too_a_flag_is_said() -> None:
    summary = study({"base": (100.0, 200.0), "early": (150.0, 100.0), "late": (50.0, 300.0)})
    found = led(with_quality(summary, base=None, early="broken", late=None))
    assert found.reasons[0].startswith("At interactive early is ahead, but flagged for its quality, 1.50× [")
    assert found.reasons[1].startswith("At medium_batch run late, 1.50× [")


def test_quality_without_a_result_is_said() -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    found = led(with_quality(summary, base=None))
    assert found.reasons[-1] == "What it costs in quality is not known: there is no result for it."
    assert "quality" not in led(with_quality(summary, base=None, quick=None)).reasons[-1]


def test_where_nothing_has_a_result_there_is_no_answer() -> None:
    summary = study({"base": (100.0, 200.0), "quick": (150.0, 300.0)})
    nothing = tuple(one.model_copy(update={"entries": (), "baseline": None}) for one in summary.rankings)
    assert lead(summary.model_copy(update={"rankings": nothing}), str) == Lead(
        "No answer:", ("no contender has a result.",)
    )
    assert lead(summary.model_copy(update={"rankings": nothing[:1]}), str) is None
