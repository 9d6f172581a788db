"""Simulated searches through the real race and the real confirmation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bitbench.analysis.budget import choose_variance_components, plan_confirmation_blocks
from bitbench.analysis.claims import Look, list_interim_analyses
from bitbench.analysis.pairs import LogSpeeds, PairTable, collect_pair_tables
from bitbench.features.tune.race import Admission, Race, race
from bitbench.study.plan import Config
from tests.support.machine_simulation import Floats, Machine, Simulation, configs
from tests.support.simulated_claims import (
    ALPHA,
    CONFIDENCE,
    allowed,
    design_of,
    figures_of,
    rounds_of_block,
    share,
)

BUDGET_S = 1800
CONFIRM = 0.3
WITHIN = 0.02
# Three variants × two numbers of threads × two KV caches; the first, the baseline, is the plain one of all.
SPACE = tuple(
    variant * threads * cache
    for variant in (1.0, 1.35, 1.6)
    for threads in (1.0, 0.62)
    for cache in (1.0, 0.93)
)
# The best four differ by 3 % from one to the next: for a machine on which that can be seen.
CLOSE_SPACE = (1.0, 1.2, 1.236, 1.273, 1.311, 0.8, 0.9, 1.1, 1.15, 1.18)
EQUAL = (1.0,) * 12


@dataclass(frozen=True)
class Found:
    """One search: the race at its end, and what the confirmation says of the leader against the baseline."""

    race: Race
    speeds: dict[Config, float]
    able: frozenset[Config]
    is_gain: bool

    @property
    def regret(self) -> float:
        """By how much the best of those that meet the limits is better than the chosen one."""
        assert self.race.leader is not None
        return max(self.speeds[one] for one in self.able) / self.speeds[self.race.leader] - 1


def searched(
    machine: Machine,
    speeds: Sequence[float],
    seed: int,
    *,
    budget_s: int = BUDGET_S,
    broken: Sequence[int] = (),
) -> Found:
    """`broken`: configs that miss a limit, which is known from the first look on."""
    everyone = configs(len(speeds))
    able = frozenset(one for place, one in enumerate(everyone) if place not in broken)
    running = Simulation(machine, speeds, np.random.default_rng(seed), 2 * budget_s)
    search_s = int((1 - CONFIRM) * budget_s)
    blocks, ends, looked = list[Floats](), list[float](), list[tuple[Look, PairTable]]()
    figures: LogSpeeds | None = None
    found = race((), everyone, Admission(able, able), within=WITHIN)
    while found.end is None:
        live = (
            range(len(everyone)) if len(ends) < 2 else [everyone.index(one) for one in found.left]
        )
        rounds = rounds_of_block(
            [design_of(len(live))],
            [values.shape[1] for values in blocks],
            search_s - running.clock_s,
            choose_variance_components({"workload": figures} if figures else {}),
        )
        blocks.append(running.block(live, rounds, alternate=True))
        ends.append(float(running.clock_s))
        figures = figures_of(everyone, blocks)
        made = list_interim_analyses(ends, search_s, ALPHA)
        if made:
            looked = [*looked, (made[-1], _table(figures))]
        found = race(looked, everyone, Admission(able, able), within=WITHIN)
    assert found.leader is not None
    assert figures is not None
    pair = [0, everyone.index(found.leader)]
    components = choose_variance_components({"workload": figures})
    fresh = plan_confirmation_blocks(
        design_of(2), budget_s - running.clock_s, CONFIDENCE, components, target=WITHIN
    )
    confirming = (
        [running.block(pair, fresh.rounds, alternate=True) for _ in range(fresh.blocks)]
        if pair[1]
        else []
    )
    is_gain = False
    if confirming:
        two = (everyone[0], found.leader)
        confirmed = _table(figures_of(everyone, confirming, pair)).between(*reversed(two))
        assert confirmed is not None
        interval = confirmed.ratio(CONFIDENCE).interval
        is_gain = interval is not None and interval.low > 1
    return Found(found, dict(zip(everyone, speeds, strict=True)), able, is_gain)


def _table(figures: LogSpeeds) -> PairTable:
    return collect_pair_tables({"workload": figures}, figures.configs[0])["workload"]


def assert_finds_the_best(
    machine: Machine, speeds: Sequence[float], searches: int, *, broken: Sequence[int] = ()
) -> None:
    """Within 2 % of the best in 95 % of the searches; what is said of the rest holds in 95 %, too."""
    found = [searched(machine, speeds, seed, broken=broken) for seed in range(searches)]
    assert share(one.regret > WITHIN for one in found) <= allowed(searches)
    assert_bounds_hold(found)


def assert_bounds_hold(found: Sequence[Found]) -> None:
    """No config is better than the chosen one by more than the search says, on any machine."""
    assert share(
        one.race.shortfall is not None and one.regret > one.race.shortfall for one in found
    ) <= allowed(len(found))


def assert_claims_no_gain(machine: Machine, searches: int) -> None:
    """Where all are equal, the luckiest is chosen, and the fresh study says that it is no better."""
    found = [searched(machine, EQUAL, seed) for seed in range(searches)]
    assert share(one.is_gain for one in found) <= allowed(searches)
    assert_bounds_hold(found)
