"""Configs of one study: a pair has one ratio and one interval, whichever command is asked."""

import numpy as np
import pytest

from bitbench.analysis.changes import Changes, Pair, make_changes_within_study
from bitbench.analysis.recommend import recommend
from bitbench.analysis.results.comparison import ComparedPoint
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.recommendation import Limits
from bitbench.analysis.study_comparison import compare_within_study
from bitbench.analysis.summarize import summarize
from bitbench.api.compare import compare
from bitbench.records.folder import StudyRecords
from bitbench.study.plan import Config, Plan
from bitbench.study.study import Count, Measure
from bitbench.study.variant import NO_MODEL
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.gallery import SHOOTOUT
from tests.support.synthetic import make_plan, make_records, make_trial, speed_metrics

WORKLOAD = BUILT_IN_WORKLOADS["interactive"]
SPEEDS = {"plain": 100.0, "quick": 130.0, "twin": 101.0, "slow": 70.0}


def study(primary_metric: str = "output_throughput") -> StudyRecords:
    """Three blocks of three rounds; what a block shares varies by 20 %, a trial by 2 %."""
    measure = Measure(starts=Count(min=3, max=3), trials=Count(min=3, max=3), metric=primary_metric)  # type: ignore[arg-type]
    plan: Plan = make_plan(list(SPEEDS), [WORKLOAD], measure, baseline="plain")
    rng = np.random.default_rng(3)
    moods = rng.normal(0, 0.2, (3, 3))
    trials = [
        make_trial(point, block, index, round=index, metrics=speed_metrics(WORKLOAD, float(speed)))
        for point in plan.points
        for block in range(3)
        for index in range(3)
        if (
            speed := SPEEDS[point.config.engine] * np.exp(moods[block, index] + rng.normal(0, 0.02))
        )
    ]
    return make_records(plan, trials)


def named(engine: str) -> Config:
    return Config(variant=NO_MODEL, engine=engine)


def compared(of: StudyRecords, before: str, after: str) -> ComparedPoint:
    (point,) = compare_within_study(of, [(named(before), named(after))], conditions=()).points
    return point


def interval(ratio: Estimate | None) -> tuple[float, float, float]:
    assert ratio is not None
    assert ratio.interval is not None
    return ratio.value, ratio.interval.low, ratio.interval.high


@pytest.mark.parametrize("primary_metric", ["output_throughput", "latency"])
@pytest.mark.parametrize("engine", ["quick", "twin", "slow"])
def test_report_recommend_and_compare_say_the_same_of_a_pair(
    primary_metric: str, engine: str
) -> None:
    of = study(primary_metric)
    summary = summarize(of)
    (entry,) = [one for one in summary.rankings[0].entries if one.config == named(engine)]
    (choice,) = recommend(summary, Limits()).choices
    reported = interval(entry.ratio_to_baseline)
    assert interval(choice.of(named(engine)).ratio_to_baseline) == reported
    assert interval(compared(of, "plain", engine).ratio) == pytest.approx(reported)
    assert (reported[0] > 1) is (engine == "quick") or engine == "twin"
    value, low, high = interval(compared(of, engine, "plain").ratio)
    assert (1 / value, 1 / high, 1 / low) == pytest.approx(reported)


def test_what_a_block_shares_cancels() -> None:
    """By the two samples alone, 30 % would be lost in what the blocks share."""
    of = study()
    value, low, high = interval(compared(of, "plain", "quick").ratio)
    assert low < 1.3 < high
    assert high / low < 1.15
    alone = Changes(make_changes_within_study(of).samples)
    points = {point.config.engine: point for point in of.plan.points}
    change = alone.find(Pair(points["plain"], points["quick"]), "output_throughput")
    assert change is not None
    _, low, high = interval(change.ratio(0.95))
    assert low < 1 < value < high


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("gguf-q8_0", "gguf-q4_0"),
        ("smollm2-135m/gguf-q8_0", "smollm2-135m/gguf-q4_0"),
        ("smollm2-135m/gguf-q8_0 @ llamacpp", "smollm2-135m/gguf-q4_0 @ llamacpp"),
    ],
)
def test_configs_are_found_by_recipe_variant_or_whole_name(before: str, after: str) -> None:
    one, *_ = compare(SHOOTOUT, variants=(before, after)).points
    assert one.ratio is not None
    assert one.ratio.interval is not None
    assert one.ratio.interval.low > 1
