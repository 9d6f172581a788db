import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bitbench.analysis.budget import (
    FIRST_GUESS,
    LEAST_START_SD,
    Design,
    VarianceComponents,
    choose_variance_components,
    estimate_variance_components,
    plan_blocks,
)
from bitbench.analysis.pairs import LogSpeeds, estimate_pooled_freedom
from bitbench.study.plan import Config

# Eight configs of a real study: 110 s to start them all, 22 s for a trial of each.
EIGHT = Design(configs=8, starts_s=110, round_s=22)


def test_ten_minutes() -> None:
    plan = plan_blocks(EIGHT, 600, 0.95)
    assert plan is not None
    assert (plan.blocks, plan.rounds) == (3, 4)
    expected = stats.t.ppf(0.975, estimate_pooled_freedom(8, 3) + 2) * math.sqrt(
        2 * (0.06**2 + 0.11**2 / 4) / 3
    )
    assert plan.half_width == pytest.approx(expected)
    assert plan.relative_half_width == pytest.approx(0.16, abs=0.02)
    assert plan.seconds == 3 * (110 + 4 * 22)


def test_too_little_for_three_blocks() -> None:
    assert plan_blocks(EIGHT, 3 * (110 + 22) - 1, 0.95) is None
    least = plan_blocks(EIGHT, 3 * (110 + 22), 0.95)
    assert least is not None
    assert (least.blocks, least.rounds) == (3, 1)


def test_as_many_blocks_as_are_asked_for() -> None:
    for number in (2, 5, 100):
        plan = plan_blocks(EIGHT, 20_000, 0.95, fewest=number, most=number)
        assert plan is not None
        assert plan.blocks == number
        assert plan.seconds <= 20_000
    assert plan_blocks(EIGHT, 4 * (110 + 22), 0.95, fewest=5, most=5) is None
    alone = plan_blocks(
        EIGHT, 600, 0.95, fewest=1, most=1
    )  # of one start nothing is known: as for two
    assert alone is not None
    assert alone.blocks == 2


def test_two_configs_alone_need_more_blocks() -> None:
    """Nothing is lent, and Student's t of one degree of freedom is 12.7."""
    plan = plan_blocks(Design(configs=2, starts_s=28, round_s=6), 600, 0.95)
    assert plan is not None
    assert plan.blocks >= 5


def test_starts_that_vary_ask_for_blocks_and_trials_for_rounds() -> None:
    by_starts = plan_blocks(EIGHT, 1800, 0.95, VarianceComponents(start_sd=0.2, trial_sd=0.05))
    by_trials = plan_blocks(EIGHT, 1800, 0.95, VarianceComponents(start_sd=0.02, trial_sd=0.3))
    assert by_starts is not None
    assert by_trials is not None
    assert by_starts.blocks > by_trials.blocks
    assert by_starts.rounds < by_trials.rounds


@given(st.integers(2, 10), st.floats(0, 300), st.floats(0.5, 60), st.floats(10, 7200))
def test_a_plan_fits_and_more_budget_is_never_worse(
    configs: int, starts_s: float, round_s: float, budget_s: float
) -> None:
    design = Design(configs, starts_s, round_s)
    plan, more = (plan_blocks(design, budget, 0.95) for budget in (budget_s, 1.5 * budget_s))
    if plan is None:
        return
    assert plan.seconds <= budget_s * (1 + 1e-9)
    assert more is not None
    assert more.half_width <= plan.half_width


def test_what_is_left_is_planned_with_what_is_done() -> None:
    plan = plan_blocks(EIGHT, 400, 0.95, done=[2, 1])
    assert plan is not None
    assert (plan.blocks, plan.rounds) == (4, 4)
    variance = 2 * (0.06**2 + 0.11**2 * (1 / 2 + 1 + 2 / 4) / 4) / 4
    assert plan.half_width == pytest.approx(
        stats.t.ppf(0.975, estimate_pooled_freedom(8, 4) + 3) * math.sqrt(variance)
    )
    assert plan.seconds == 2 * (110 + 4 * 22)
    assert plan_blocks(EIGHT, 110 + 21, 0.95, done=[2, 1]) is None
    alone = plan_blocks(EIGHT, 10_000, 0.95, done=[2, 1], most=3)
    assert alone is not None
    assert (alone.blocks, alone.rounds) == (3, (10_000 - 110) // 22)


def test_no_more_rounds_than_are_asked_for_and_the_time_goes_into_blocks() -> None:
    free = plan_blocks(EIGHT, 20_000, 0.95, VarianceComponents(start_sd=0.02, trial_sd=0.3))
    held = plan_blocks(
        EIGHT, 20_000, 0.95, VarianceComponents(start_sd=0.02, trial_sd=0.3), most_rounds=3
    )
    assert free is not None
    assert held is not None
    assert held.rounds == 3 < free.rounds
    assert held.blocks > free.blocks


def simulated(start_sd: float, trial_sd: float, rounds: int, seed: int = 1) -> LogSpeeds:
    """Of 200 blocks, which all share a large shift, and six configs."""
    rng = np.random.default_rng(seed)
    starts = rng.normal(0, start_sd, (6, 200, 1)) + rng.normal(0, 0.3, (1, 200, 1))
    names = tuple(Config(variant="none", engine=str(number)) for number in range(6))
    return LogSpeeds(names, starts + rng.normal(0, trial_sd, (6, 200, rounds)))


@pytest.mark.parametrize(
    ("start_sd", "trial_sd", "rounds"), [(0.06, 0.11, 4), (0.1, 0.02, 2), (0.03, 0.1, 8)]
)
def test_components_are_found_again(start_sd: float, trial_sd: float, rounds: int) -> None:
    found = estimate_variance_components(
        {"w": simulated(start_sd, trial_sd, rounds), "v": simulated(start_sd, trial_sd, rounds, 2)}
    )
    assert found is not None
    assert found.start_sd == pytest.approx(start_sd, rel=0.1)
    assert found.trial_sd == pytest.approx(trial_sd, rel=0.1)


def test_components_with_missing_rounds() -> None:
    speeds = simulated(0.06, 0.11, 4)
    values = speeds.values.copy()
    values[np.random.default_rng(5).random(values.shape) < 0.2] = np.nan
    found = estimate_variance_components({"w": replace(speeds, values=values)})
    assert found is not None
    assert found.start_sd == pytest.approx(0.06, rel=0.15)
    assert found.trial_sd == pytest.approx(0.11, rel=0.1)


def test_components_that_cannot_be_known() -> None:
    names = (Config(variant="none", engine="a"), Config(variant="none", engine="b"))
    assert estimate_variance_components({}) is None
    assert estimate_variance_components({"w": LogSpeeds(names, np.zeros((2, 1, 5)))}) is None
    assert estimate_variance_components({"w": LogSpeeds(names, np.zeros((2, 5, 1)))}) is None
    assert choose_variance_components({}) == FIRST_GUESS


def test_starts_that_seem_equal_are_not_planned_with() -> None:
    names = (Config(variant="none", engine="a"), Config(variant="none", engine="b"))
    found = choose_variance_components(
        {"w": LogSpeeds(names, np.tile([0.0, 0.1], (2, 3, 1)) * np.array([[[1]], [[2]]]))}
    )
    assert found.start_sd == LEAST_START_SD
    assert found.trial_sd == pytest.approx(0.05)
