import numpy as np
import pytest

from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.results.summary import MemorySummary, PointSummary
from bitbench.analysis.summarize import find_baseline
from bitbench.records.trial import InstanceFacts, Memory, Outcome, TrialMetrics, TrialRecord
from bitbench.study.plan import Config, Plan, Point, Refusal
from bitbench.study.study import Count, Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.synthetic import make_instance, make_plan, make_trial, summarize

INTERACTIVE = BUILT_IN_WORKLOADS["interactive"]
MEASURE = Measure(starts=Count(min=2, max=3), trials=Count(min=2, max=4))


def speed(value: float) -> TrialMetrics:
    return TrialMetrics(output_throughput=value, latency_s=64 / value)


def one_point(
    values: dict[int, list[float]], measure: Measure = MEASURE, *more: TrialRecord
) -> PointSummary:
    """A point with these values by block."""
    plan = make_plan(["a"], [INTERACTIVE], measure)
    trials = [
        make_trial(plan.points[0], block, index, metrics=speed(value))
        for block, row in values.items()
        for index, value in enumerate(row)
    ]
    return summarize(plan, [*trials, *more], []).points[0]


def point() -> Point:
    return make_plan(["a"], [INTERACTIVE]).points[0]


def test_only_measured_and_ok_trials_count() -> None:
    warm = make_trial(point(), 0, 0, id="warm", kind="warmup", metrics=TrialMetrics(ttft_s=6.4))
    late = make_trial(
        point(),
        0,
        2,
        id="late",
        outcome=Outcome.CLIENT_BOUND,
        cause="our client was late",
        metrics=speed(2),
    )
    summary = one_point({0: [100.0, 102.0], 1: [101.0, 99.0]}, MEASURE, warm, late)
    assert summary.metrics["output_throughput"].value == pytest.approx(100.5)
    assert (basis := summary.metrics["output_throughput"].basis) is not None
    assert basis.trials == 4
    assert [run.trial_id for run in summary.runs] == [
        *(f"a-interactive-{b}-{i}" for b in (0, 1) for i in (0, 1)),
        "late",
    ]
    assert [(group.failure.outcome, group.ids) for group in summary.failures] == [
        (Outcome.CLIENT_BOUND, ("late",))
    ]


def test_what_is_not_defined_has_no_estimate() -> None:
    summary = one_point({0: [100.0, 102.0], 1: [101.0, 99.0]})
    assert "input_throughput" not in summary.metrics
    assert "peak_bytes" not in summary.metrics


def test_a_block_taken_up_by_a_second_instance_counts_as_two_starts() -> None:
    extra = [
        make_trial(point(), 0, index, instance_id="again", id=f"x{index}", metrics=speed(110.0))
        for index in (2, 3)
    ]
    summary = one_point({0: [100.0, 100.0], 1: [100.0, 100.0]}, MEASURE, *extra)
    assert (basis := summary.metrics["output_throughput"].basis) is not None
    assert basis.starts == 3
    assert summary.metrics["output_throughput"].value == pytest.approx(310 / 3)


def test_peak_memory_is_one_value_for_each_instance() -> None:
    trials = [
        make_trial(point(), block, index, memory=Memory(peak_bytes=peak, resident_bytes=peak))
        for block, row in enumerate([(100, 200), (300, 400)])
        for index, peak in enumerate(row)
    ]
    metrics = summarize(make_plan(["a"], [INTERACTIVE]), trials, []).points[0].metrics
    assert metrics["peak_bytes"].value == 300
    assert metrics["resident_bytes"].value == 250


def test_memory_of_a_config_is_one_figure_for_each_start() -> None:
    plan = make_plan(["a", "b"], [INTERACTIVE])
    stored = plan.variants[0].model_copy(update={"weight_bytes": 7})
    config = plan.configs[0]
    trials = [
        make_trial(
            point,
            block,
            index,
            memory=Memory(resident_bytes=held, peak_bytes=2 * held, device_peak_bytes=3 * held),
        )
        for block, row in enumerate([(100, 200), (300, 400)])
        for index, held in enumerate(row)
        for point in plan.points[:1]
    ]
    trials.append(
        make_trial(plan.points[0], 0, 0, kind="warmup", memory=Memory(resident_bytes=9_999))
    )
    trials.append(make_trial(plan.points[1], 0, 0, memory=Memory(resident_bytes=8_888)))
    said = InstanceFacts(weight_bytes_loaded=5, kv_cache_tokens=1000, kv_bytes_per_token=3)
    instances = [
        make_instance(config, 0, facts=said),
        make_instance(config, 1, facts=said.model_copy(update={"kv_cache_tokens": 900})),
        make_instance(
            config,
            2,
            facts=InstanceFacts(weight_bytes_loaded=6),
            ready_s=None,
            outcome=Outcome.CRASHED,
        ),
    ]
    memory = (
        summarize(plan.model_copy(update={"variants": (stored,)}), trials, instances)
        .configs[0]
        .memory
    )
    assert memory == MemorySummary(
        weight_bytes_stored=7,
        weight_bytes_loaded=Estimate(value=5, low=5, high=5, kind="extremes"),
        steady_bytes=Estimate(value=250, low=150, high=350, kind="extremes"),
        peak_bytes=Estimate(value=600, low=400, high=800, kind="extremes"),
        device_peak_bytes=Estimate(value=900, low=600, high=1200, kind="extremes"),
        kv_bytes_per_token=Estimate(value=3, low=3, high=3, kind="extremes"),
        kv_cache_tokens=Estimate(value=950, low=900, high=1000, kind="extremes"),
    )


@pytest.mark.parametrize(
    ("values", "budget", "is_unfinished"),
    [
        ({0: [100.0, 100.0], 1: [100.0, 100.0]}, None, False),
        ({b: [90.0 + 10 * b] * 4 for b in range(3)}, None, False),
        ({0: [90.0, 110.0], 1: [95.0, 112.0]}, 60.0, False),
        ({0: [100.0, 100.0]}, 60.0, True),
        ({}, None, True),
    ],
)
def test_what_lacks_starts_is_unfinished(
    values: dict[int, list[float]], budget: float | None, is_unfinished: bool
) -> None:
    assert (
        one_point(values, MEASURE.model_copy(update={"budget": budget})).is_unfinished
        is is_unfinished
    )


def test_a_point_without_enough_because_it_failed() -> None:
    dead = make_trial(point(), 1, 0, outcome=Outcome.CRASHED, cause="it died", log_lines=("boom",))
    summary = one_point({0: [100.0, 100.0]}, MEASURE, dead)
    assert not summary.is_unfinished
    assert summary.failures[0].failure.log_lines == ("boom",)


def test_failures_with_one_cause_are_one_group() -> None:
    dead = [
        make_trial(point(), block, 0, outcome=Outcome.OOM, cause=f"it took {block}.5 GiB")
        for block in range(3)
    ]
    summary = one_point({}, MEASURE, *dead)
    assert [len(group.ids) for group in summary.failures] == [3]
    assert summary.failures[0].failure.cause == "it took 0.5 GiB"


def test_outliers_do_not_hide_behind_each_other() -> None:
    summary = one_point({0: [100.0, 101.0, 99.0, 50.0], 1: [100.0, 102.0, 98.0, 50.0]})
    flagged = [outlier for outlier in summary.outliers if outlier.metric == "output_throughput"]
    assert [outlier.value for outlier in flagged] == [50.0, 50.0]


def test_an_outlier_is_flagged_and_still_counts() -> None:
    summary = one_point({0: [4153.26, 1526.74, 3906.77]})
    flagged = {outlier.metric: outlier for outlier in summary.outliers}
    assert flagged.keys() == {"output_throughput", "latency_s"}
    assert flagged["output_throughput"].value == 1526.74
    assert flagged["output_throughput"].median == 3906.77
    assert summary.metrics["output_throughput"].value == pytest.approx(3195.59)


def test_instances_tell_what_was_run() -> None:
    plan = make_plan(["a", "b"], [INTERACTIVE])
    first, second = plan.configs
    facts = InstanceFacts(
        engine_version="2.0", kernels=("Marlin", "Flash"), compile_s=3.0, command=("run", "a b")
    )
    summary = summarize(
        plan,
        [],
        [
            make_instance(first, 0, facts=facts),
            make_instance(first, 1, facts=facts),
            make_instance(first, 2, ready_s=None, outcome=Outcome.CRASHED),
            make_instance(second, 0),
        ],
    ).configs[0]
    assert (summary.instances, summary.instances_ready) == (3, 2)
    assert summary.kernels == ("Marlin", "Flash")
    assert summary.commands == ("run 'a b'",)
    assert summary.ready_s is not None
    assert (summary.ready_s.low, summary.ready_s.high) == (4.0, 5.0)
    assert summary.weight_load_s is None


@pytest.mark.parametrize(
    ("wanted", "found"), [(None, "m/x @ e"), ("m/y @ f", "m/y @ f"), ("f", "m/x @ f"), ("g", None)]
)
def test_baseline(wanted: str | None, found: str | None) -> None:
    configs = [Config(variant=f"m/{variant}", engine=engine) for engine in "ef" for variant in "xy"]
    plan = make_plan(["e", "f"], [INTERACTIVE], baseline=wanted)
    points = tuple(Point(config=config, workload="interactive") for config in configs)
    chosen = find_baseline(Plan(study=plan.study, variants=(), points=points))
    assert (chosen.name if chosen else None) == found


def test_a_refused_baseline_is_still_the_baseline() -> None:
    plan = make_plan(["a", "b"], [INTERACTIVE], baseline="a")
    refused = Plan(
        study=plan.study,
        variants=(),
        points=plan.points[1:],
        refusals=(Refusal(point=plan.points[0], reason="no"),),
    )
    summary = summarize(refused, [], [])
    assert summary.baseline is not None
    assert summary.baseline.name == "a"
    assert summary.rankings[0].baseline is None


def test_the_same_records_give_the_same_digits() -> None:
    rng = np.random.default_rng(4)
    values = {block: (100 * np.exp(0.02 * rng.normal(size=3))).tolist() for block in range(3)}
    assert one_point(values) == one_point(values)
