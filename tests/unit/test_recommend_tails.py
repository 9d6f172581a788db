"""Percentiles that a service promises, from request rows to the recommendation: how often it is wrong, and what it
says where the requests are too few."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from bitbench.analysis.pairs import Floats
from bitbench.analysis.recommend import recommend
from bitbench.analysis.results.estimate import CountedEvent, Finding, Verdict
from bitbench.analysis.results.recommendation import Limits
from bitbench.analysis.results.summary import StudySummary
from bitbench.records.trial import InstanceFacts, TrialMetrics, TrialRecord
from bitbench.reports.answers.recommend import build_recommendation
from bitbench.reports.document.markdown import render_markdown
from bitbench.study.metrics import Promised, Statistic
from bitbench.study.objective import Objective
from bitbench.study.plan import Plan
from bitbench.study.study import Count, Measure
from bitbench.study.workload import Workload
from tests.support import simulated_requests
from tests.support.synthetic import make_instance, make_plan, make_trial, summarize

STUDIES = 60
LOOP = Workload(name="loop", concurrency=4, input_tokens=8, output_tokens=2, arrival="closed_loop")  # type: ignore[arg-type]
BATCH = Workload(name="batch", concurrency=64, input_tokens=8, output_tokens=2)


def table_of(ttft: Floats) -> pa.Table:
    """Complete requests of two tokens, a tenth of a second apart."""
    size = ttft.size
    chunks = np.column_stack([ttft, ttft + 0.1])
    return pa.table(
        {
            "request": pa.array(range(size), pa.int32()),
            "planned_s": np.zeros(size),
            "first_token_s": ttft,
            "last_token_s": ttft + 0.1,
            "end_s": ttft + 0.1,
            "chunk_s": pa.ListArray.from_arrays(np.arange(size + 1) * 2, chunks.ravel()),
            "output_tokens": np.full(size, 2),
            "timed_tokens": np.full(size, 1),
            "status": ["ok"] * size,
        }
    )


def study(
    of_starts: Sequence[Sequence[Floats]],
    workload: Workload = LOOP,
    objectives: dict[str, float] | None = None,
    *,
    was_running: bool = False,
) -> StudySummary:
    """Times to first token: one group per start, one array per trial."""
    measure = Measure(starts=Count(min=len(of_starts), max=len(of_starts)))
    plan: Plan = make_plan(["engine"], [workload], measure, objectives=objectives or {})
    (point,) = plan.points
    tables: dict[str, pa.Table] = {}
    trials = []
    for block, start in enumerate(of_starts):
        for index, ttft in enumerate(start):
            metrics = TrialMetrics(
                output_throughput=100.0 + index + block, ttft_s=float(ttft.mean())
            )
            trial = make_trial(
                point,
                block,
                index,
                metrics=metrics,
                requests=ttft.size,
                requests_file=f"requests/{block}-{index}",
            )
            tables[trial.id] = table_of(ttft)
            trials.append(trial)

    def requests_of(trial: TrialRecord, columns: Sequence[str]) -> pa.Table:
        return tables[trial.id].select(list(columns))

    facts = InstanceFacts(was_running=was_running)
    return summarize(
        plan, trials, [make_instance(point.config, 0, facts=facts)], requests_of=requests_of
    )


def asked(limit: float, metric: Promised = "ttft", statistic: Statistic = "p99") -> Limits:
    return Limits(objectives=(Objective(metric=metric, statistic=statistic, limit=limit),))


def finding(summary: StudySummary, limits: Limits) -> Finding:
    (choice,) = recommend(summary, limits).choices
    (judged,) = choice.judged
    (only,) = judged.findings
    return only


def simulated(point: simulated_requests.Point) -> Callable[[int], StudySummary]:
    return lambda seed: study(simulated_requests.requests(point, np.random.default_rng(seed)))


@pytest.mark.parametrize(
    "point", [simulated_requests.Point(6, 5, 8), simulated_requests.Point(6, 3, 100)], ids=str
)
def test_a_p99_that_is_11_percent_beyond_the_limit_is_seldom_called_met(
    point: simulated_requests.Point,
) -> None:
    """As the mean of the p99 of trials, 6 starts of 5 trials of 8 requests met it in 91 % of such studies."""
    limits = asked(simulated_requests.true_percentile(99) / 1.11)
    verdicts = [finding(simulated(point)(seed), limits).verdict for seed in range(STUDIES)]
    assert verdicts.count(Verdict.MET) <= 0.05 * STUDIES


def test_a_p99_far_within_the_limit_is_met_with_enough_requests() -> None:
    """Else a recommendation that never meets anything would pass, too."""
    limits = asked(2 * simulated_requests.true_percentile(99))
    verdicts = [
        finding(simulated(simulated_requests.Point(6, 3, 100))(seed), limits).verdict
        for seed in range(20)
    ]
    assert verdicts.count(Verdict.MET) >= 16


def even(starts: int, trials: int, requests: int) -> list[list[Floats]]:
    return [[np.linspace(0.1, 0.2, requests)] * trials for _ in range(starts)]


def test_eight_requests_are_inconclusive_and_it_says_how_many_more_would_tell() -> None:
    summary = study(even(3, 3, 8))
    found = finding(summary, asked(10.0))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.estimate is not None
    assert (found.value, found.estimate.high, found.estimate.note) == (
        pytest.approx(0.2),
        None,
        "slowest of 72",
    )
    assert found.reason == "72 requests are too few for an upper end; about 1,900 more would tell"
    text = render_markdown(build_recommendation(recommend(summary, asked(10.0))))
    assert "(slowest of 72) ?" in text
    assert "about 1,900 more would tell" in text


def test_what_is_beyond_the_limit_as_a_whole_is_ruled_out_without_an_upper_end() -> None:
    found = finding(study(even(3, 3, 100)), asked(0.05))
    assert found.estimate is not None
    assert (found.verdict, found.estimate.high) == (Verdict.MISSED, None)


def test_one_start_decides_nothing_unless_no_start_is_in_question() -> None:
    one_start = even(1, 6, 1000)
    found = finding(study(one_start), asked(10.0))
    assert found.estimate is not None
    assert (found.verdict, found.estimate.low, found.reason) == (
        Verdict.INCONCLUSIVE,
        None,
        "one start does not cover a restart",
    )
    assert finding(study(one_start, was_running=True), asked(10.0)).verdict is Verdict.MET


def test_a_batch_has_no_p99_of_one_batch_per_trial() -> None:
    """3 × 6 batches of 64 are 1,152 requests, and 18 events."""
    summary = study(even(3, 6, 64), BATCH)
    tail = summary.points[0].tails["ttft_p99_s"]
    assert (tail.event, tail.events, tail.is_carried, tail.high) == (
        CountedEvent.BATCH,
        18,
        False,
        None,
    )
    found = finding(summary, asked(10.0))
    assert found.estimate is not None
    assert (found.verdict, found.estimate.note) == (Verdict.INCONCLUSIVE, "slowest of 18 batches")
    assert "18 batches are too few" in found.reason


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [(0.3, Verdict.MET), (0.05, Verdict.MISSED), (0.15, Verdict.INCONCLUSIVE)],
)
def test_objectives_of_a_study_have_a_verdict_in_its_summary(
    limit: float, verdict: Verdict
) -> None:
    (point,) = study(even(6, 5, 100), objectives={"ttft_p50": limit}).points
    (judged,) = point.objectives
    assert judged.verdict is verdict
    assert judged.value == pytest.approx(0.15)
    assert judged.reason == (
        "its interval contains the limit" if verdict is Verdict.INCONCLUSIVE else ""
    )


def test_a_mean_is_that_of_trials() -> None:
    (point,) = study(even(4, 3, 4), objectives={"ttft": 0.2}).points
    (judged,) = point.objectives
    assert judged.estimate is not None
    assert (judged.verdict, judged.value, judged.estimate.note) == (
        Verdict.MET,
        pytest.approx(0.15),
        "",
    )
