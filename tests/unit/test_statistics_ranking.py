import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitbench.analysis.claims import adjust_p_values
from bitbench.analysis.results.summary import AgainstBaseline, Ranking
from bitbench.records.trial import TrialMetrics
from bitbench.study.study import Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.synthetic import make_plan, make_trial, summarize

WORKLOAD = BUILT_IN_WORKLOADS["interactive"]


def ranking(
    speeds: dict[str, list[float]], *, higher_is_better: bool = True, baseline: str | None = None
) -> Ranking:
    """One start for each value, of three equal trials."""
    primary_metric, metric = (
        ("output_throughput",) * 2 if higher_is_better else ("latency", "latency_s")
    )
    starts = max((len(means) for means in speeds.values()), default=1)
    measure = Measure.model_validate({"starts": starts, "trials": 3, "metric": primary_metric})
    plan = make_plan(list(speeds), [WORKLOAD], measure, baseline=baseline)
    trials = [
        make_trial(point, block, index, metrics=TrialMetrics(**{metric: value}))
        for point in plan.points
        for block, value in enumerate(speeds[point.config.engine])
        for index in range(3)
    ]
    return summarize(plan, trials, []).rankings[0]


def ranks(of: Ranking) -> dict[str, tuple[int | None, int | None]]:
    return {entry.config.name: (entry.rank_low, entry.rank_high) for entry in of.entries}


SPEEDS = {
    "slow": [50.0, 50.1, 49.9],
    "one": [99.0, 101.0, 100.0],
    "fast": [150.0, 150.2, 149.8],
    "other": [100.5, 99.5, 100.2],
}


def test_a_tie_between_a_winner_and_a_loser() -> None:
    made = ranking(SPEEDS)
    assert ranks(made) == {"fast": (1, 1), "one": (2, 3), "other": (2, 3), "slow": (4, 4)}
    assert {
        entry.config.name: [one.name for one in entry.undecided_with] for entry in made.entries
    } == {
        "fast": [],
        "one": ["other"],
        "other": ["one"],
        "slow": [],
    }
    assert made.entries[0].config.name == "fast"


def test_none_stands_before_one_that_is_claimed_to_be_faster() -> None:
    """`early` left after two blocks, before the machine became slower: its mean is the largest, and no reason."""
    plan = make_plan(
        ["base", "early", "best"], [WORKLOAD], Measure.model_validate({"starts": 6, "trials": 3})
    )
    figures = {
        "base": [50.0, 50.1, 35.0, 35.1, 34.9, 35.0],
        "early": [100.0, 100.2],
        "best": [110.0, 110.2, 77.0, 77.1, 76.9, 77.0],
    }
    trials = [
        make_trial(point, block, index, metrics=TrialMetrics(output_throughput=value))
        for point in plan.points
        for block, value in enumerate(figures[point.config.engine])
        for index in range(3)
    ]
    made = summarize(plan, trials, []).rankings[0]
    assert [entry.config.name for entry in made.entries] == ["best", "early", "base"]


def test_single_starts_are_not_ranked_and_not_counted_in_the_ranks_of_others() -> None:
    plan = make_plan(
        [*SPEEDS, "single"], [WORKLOAD], Measure.model_validate({"starts": 3, "trials": 3})
    )
    figures = {**SPEEDS, "single": [400.0]}
    trials = [
        make_trial(point, block, index, metrics=TrialMetrics(output_throughput=value))
        for point in plan.points
        for block, value in enumerate(figures[point.config.engine])
        for index in range(3)
    ]
    made = summarize(plan, trials, []).rankings[0]
    assert ranks(made) == {
        "single": (None, None),
        "fast": (1, 1),
        "one": (2, 3),
        "other": (2, 3),
        "slow": (4, 4),
    }
    assert made.entries[0].undecided_with == ()


def test_less_is_better_turns_it_around() -> None:
    assert ranks(ranking(SPEEDS, higher_is_better=False)) == {
        "slow": (1, 1),
        "one": (2, 3),
        "other": (2, 3),
        "fast": (4, 4),
    }


def test_ratio_to_the_baseline() -> None:
    made = {
        entry.config.name: entry.ratio_to_baseline
        for entry in ranking(SPEEDS, baseline="slow").entries
    }
    assert made["slow"] is None
    assert made["fast"] is not None
    assert made["fast"].value == pytest.approx(3.0)
    assert made["fast"].interval is not None
    assert 2.9 < made["fast"].interval.low < 3.0 < made["fast"].interval.high < 3.1


def test_a_baseline_without_a_result_gives_no_ratio() -> None:
    made = ranking(SPEEDS, baseline="gone")
    assert made.baseline is None
    assert all(entry.ratio_to_baseline is None for entry in made.entries)


def test_one_start_is_not_ranked_and_leaves_nothing_to_rank_against() -> None:
    made = ranking({"one": [10.0], "known": [99.0, 100.0, 101.0]})
    assert ranks(made) == {"known": (None, None), "one": (None, None)}
    assert made.starts_needed == 3


def test_trials_of_one_start_claim_nothing() -> None:
    """Whatever their number: the next start may differ as much."""
    made = ranking({"slow": [10.0], "fast": [99.0]}, baseline="slow")
    fast = next(entry for entry in made.entries if entry.config.name == "fast")
    assert fast.against_baseline is AgainstBaseline.UNDECIDED
    assert fast.ratio_to_baseline is not None
    assert (fast.ratio_to_baseline.value, fast.ratio_to_baseline.interval) == (
        pytest.approx(9.9),
        None,
    )
    assert made.possible_bests == ()


def test_claims_against_the_baseline_and_who_may_be_the_best() -> None:
    made = ranking(SPEEDS, baseline="other")
    claims = {entry.config.name: entry.against_baseline for entry in made.entries}
    assert claims == {
        "fast": AgainstBaseline.FASTER,
        "one": AgainstBaseline.UNDECIDED,
        "other": None,
        "slow": AgainstBaseline.SLOWER,
    }
    assert [config.name for config in made.possible_bests] == ["fast"]


def test_none_and_one_config() -> None:
    assert ranks(ranking({"alone": [1.0, 2.0]})) == {"alone": (1, 1)}


def test_holm_by_hand() -> None:
    assert adjust_p_values([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjust_p_values([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_only_raises_and_keeps_the_order(p_values: list[float]) -> None:
    adjusted = adjust_p_values(p_values)
    assert all(p <= new <= 1 for p, new in zip(p_values, adjusted, strict=True))
    in_order = [adjusted[place] for place in sorted(range(len(p_values)), key=p_values.__getitem__)]
    assert in_order == sorted(in_order)
