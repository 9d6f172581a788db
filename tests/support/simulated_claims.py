"""Simulated studies through the real analysis, and how often it was right."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from bitbench.analysis.budget import (
    Design,
    VarianceComponents,
    choose_variance_components,
    plan_blocks,
)
from bitbench.analysis.claims import (
    FIRST_LOOK,
    Claims,
    divide_error,
    list_interim_analyses,
    list_undecided_configs,
    make_undecided_claims,
    update_claims,
)
from bitbench.analysis.pairs import LogSpeeds, PairedRatio, PairTable, collect_pair_tables
from bitbench.analysis.results.summary import AgainstBaseline
from bitbench.study.plan import Config
from tests.support.machine_simulation import (
    MACHINES,
    START_S,
    TRIAL_S,
    Floats,
    Machine,
    Schedule,
    Simulation,
    configs,
    simulate,
)

ALPHA = 0.05
CONFIDENCE = 0.95
DIFFERENT = (AgainstBaseline.FASTER, AgainstBaseline.SLOWER)

# Configs, and how they are measured: one after the other, and in turns.
DESIGNS = [
    (2, Schedule(blocks=5, rounds=3)),
    (4, Schedule(blocks=3, rounds=3)),
    (8, Schedule(blocks=3, rounds=3)),
    (4, Schedule(blocks=4, rounds=4, alternate=True)),
    (8, Schedule(blocks=3, rounds=6, alternate=True)),
]
# What does not fit into memory at once: so many beside the baseline at a time.
SHIFTS = [
    (5, Schedule(blocks=3, rounds=6, alternate=True, shift=2)),
    (5, Schedule(blocks=4, rounds=4, alternate=True, shift=2)),
    (8, Schedule(blocks=3, rounds=4, alternate=True, shift=3)),
]
# Of workloads, relative to each other: trials of one request vary more than trials of 64.
SPREADS = [(1.0, 1.0, 1.0, 1.0), (2.0, 1.0, 1.0, 0.5)]
# The eight configs of examples/cpu-shootout.yaml with one request at a time; the first is the baseline.
SHOOTOUT = (1.0, 0.92, 0.59, 1.26, 1.35, 1.48, 1.61, 2.28)


@dataclass(frozen=True)
class Outcome:
    """One study: what its figures say, what is claimed, and the true speeds of its configs."""

    table: PairTable
    claims: Claims
    speeds: dict[Config, float]

    @property
    def baseline(self) -> Config:
        return self.table.configs[0]

    @property
    def about_baseline(self) -> list[bool]:
        """Of each config that is claimed to be faster or slower: is it?"""
        reference = self.speeds[self.baseline]
        return [
            self.speeds[one] > reference
            if said is AgainstBaseline.FASTER
            else self.speeds[one] < reference
            for one, said in self.claims.against_baseline.items()
            if said in DIFFERENT
        ]

    @property
    def excludes_best(self) -> bool:
        """Of several that are equally fast the last stands for the best: it could be so by any margin."""
        best = max(reversed(self.table.configs), key=self.speeds.__getitem__)
        return best not in self.claims.possible_bests

    @property
    def is_wrong_about_ranks(self) -> bool:
        return any(
            self.speeds[faster] <= self.speeds[slower] for faster, slower in self.claims.told_apart
        )

    @property
    def covered(self) -> list[bool]:
        """Of each pair: is the true ratio in its interval?"""
        return [self._covers(pair) for pair in self.table.pairs]

    @property
    def covered_of_baseline(self) -> list[bool]:
        pairs = (pair for pair in self.table.pairs if self.baseline in (pair.first, pair.second))
        return [self._covers(pair) for pair in pairs]

    def _covers(self, pair: PairedRatio) -> bool:
        truth = np.log(self.speeds[pair.first] / self.speeds[pair.second])
        return bool(abs(pair.log_mean - truth) <= pair.half_width(CONFIDENCE))


Study = Callable[[int], Outcome]  # from a seed


def fixed_plan(machine: Machine, speeds: Sequence[float], schedule: Schedule) -> Study:
    """One look at the end."""

    def study(seed: int) -> Outcome:
        return _outcome(simulate(machine, speeds, schedule, np.random.default_rng(seed)), speeds)

    return study


def sequential(
    machine: Machine, speeds: Sequence[float], budget_s: int, first_start_s: int = START_S
) -> Study:
    """Blocks as what is left of the budget plans them, a look after each, and only those with an open question go on.

    `first_start_s`: of each config in the first block, where later starts are quicker.
    """
    everyone = configs(len(speeds))

    def study(seed: int) -> Outcome:
        running = Simulation(machine, speeds, np.random.default_rng(seed), 2 * budget_s)
        claims = make_undecided_claims(everyone, everyone[0])
        blocks: list[Floats] = []
        ends: list[float] = []
        figures: LogSpeeds | None = None
        while live := [everyone.index(one) for one in list_undecided_configs(claims, everyone[0])]:
            expected_s = first_start_s if len(blocks) < 2 else START_S
            start_s = START_S if blocks else first_start_s
            rounds = rounds_of_block(
                [design_of(len(live), seconds) for seconds in (expected_s, start_s)],
                [values.shape[1] for values in blocks],
                budget_s - running.clock_s,
                choose_variance_components({"workload": figures} if figures else {}),
            )
            blocks.append(running.block(live, rounds, alternate=True, start_s=start_s))
            ends.append(float(running.clock_s))
            figures = figures_of(everyone, blocks)
            made = list_interim_analyses(ends, budget_s, ALPHA)
            table = _table(figures)
            if made:
                claims = update_claims(table, everyone[0], made[-1].alpha, earlier=claims)
            if made and made[-1].is_last:
                break
        return Outcome(table, claims, dict(zip(everyone, speeds, strict=True)))

    return study


def design_of(count: int, start_s: int = START_S) -> Design:
    return Design(max(count, 2), starts_s=start_s * count, round_s=TRIAL_S * count)


def rounds_of_block(
    designs: Sequence[Design], done: Sequence[int], left_s: float, components: VarianceComponents
) -> int:
    """As `measure.estimate` has them: the fewest by the designs that were known before and after the starts; then
    as many as fit, where no other block does."""
    plans = [plan_blocks(design, left_s, CONFIDENCE, components, done=done) for design in designs]
    rounds = min(plan.rounds if plan else 1 for plan in plans)
    block_s = designs[-1].starts_s + rounds * designs[-1].round_s
    more_s = left_s - block_s
    is_last = bool(done) and more_s < block_s
    return rounds + max(0, int(more_s // designs[-1].round_s)) if is_last else rounds


def figures_of(
    everyone: tuple[Config, ...], blocks: Sequence[Floats], rows: Sequence[int] | None = None
) -> LogSpeeds:
    """Of blocks with different numbers of rounds."""
    most = max(values.shape[1] for values in blocks)
    padded = [
        np.pad(part, ((0, 0), (0, most - part.shape[1])), constant_values=np.nan) for part in blocks
    ]
    values = np.stack(padded, axis=1)
    chosen = list(range(len(everyone))) if rows is None else list(rows)
    return LogSpeeds(tuple(everyone[row] for row in chosen), values[chosen])


def several_workloads(
    count: int,
    spreads: Sequence[float],
    blocks: int = 3,
    *,
    trial_sd: float = 0.1,
    noisy_baseline: float = 1.0,
) -> Study:
    """Starts and trials vary by 10 % times the spread of a workload; half of a start's luck is shared by all.

    The outcome is that of the first workload.
    """

    def study(seed: int) -> Outcome:
        rng = np.random.default_rng(seed)
        luck = rng.normal(0, 0.07, (1, count, blocks, 1)) + rng.normal(
            0, 0.07, (len(spreads), count, blocks, 1)
        )
        luck[:, 0] *= noisy_baseline
        values = (luck + rng.normal(0, trial_sd, (len(spreads), count, blocks, 3))) * np.reshape(
            spreads, (-1, 1, 1, 1)
        )
        everyone = configs(count)
        figures = {str(place): LogSpeeds(everyone, found) for place, found in enumerate(values)}
        table = collect_pair_tables(figures, everyone[0])["0"]
        return Outcome(
            table, update_claims(table, everyone[0], ALPHA), dict.fromkeys(everyone, 1.0)
        )

    return study


def interrupted_shifts(blocks: int) -> Study:
    """Five configs in two shifts, and every block was interrupted between them: the baseline was started anew."""

    def study(seed: int) -> Outcome:
        rng = np.random.default_rng(seed)
        values = np.full((5, blocks, 8), np.nan)
        for members, rounds in (([0, 1, 2], slice(0, 4)), ([0, 3, 4], slice(4, 8))):
            mood = rng.normal(0, 0.15, (1, blocks, 4))
            values[members, :, rounds] = (
                mood + rng.normal(0, 0.06, (3, blocks, 1)) + rng.normal(0, 0.1, (3, blocks, 4))
            )
        return _outcome(LogSpeeds(configs(5), values), [1.0] * 5)

    return study


MOST_BLOCKS = 6
ROUNDS = 3


@dataclass(frozen=True)
class Cell:
    """Of studies that end after so many blocks, with an analysis after each from the first on that may claim."""

    false: float  # share of them with a false claim against the baseline
    coverage: float  # of ratios to the baseline, by intervals at the end
    told: float  # configs that are rightly told from the baseline, in the mean


def claims_by_blocks(machine: Machine, speeds: Sequence[float], studies: int) -> dict[int, Cell]:
    """By the number of blocks that was planned, all from the same simulated studies."""
    schedule = Schedule(MOST_BLOCKS, ROUNDS, alternate=True)
    found: dict[int, list[Outcome]] = {planned: [] for planned in range(2, MOST_BLOCKS + 1)}
    truth = dict(zip(configs(len(speeds)), speeds, strict=True))
    for seed in range(studies):
        figures = simulate(machine, speeds, schedule, np.random.default_rng(seed))
        ends = range(2, MOST_BLOCKS + 1)
        tables = {
            blocks: _table(LogSpeeds(figures.configs, figures.values[:, :blocks]))
            for blocks in ends
        }
        for planned, outcomes in found.items():
            claims = make_undecided_claims(figures.configs, figures.configs[0])
            moments = (
                (blocks, blocks / planned, blocks == planned)
                for blocks in range(FIRST_LOOK, planned + 1)
            )
            for look in divide_error(ALPHA, moments):
                claims = update_claims(
                    tables[look.blocks], figures.configs[0], look.alpha, earlier=claims
                )
            outcomes.append(Outcome(tables[planned], claims, truth))
    return {planned: _cell(outcomes) for planned, outcomes in found.items()}


def _cell(outcomes: Sequence[Outcome]) -> Cell:
    return Cell(
        false=share(not all(one.about_baseline) for one in outcomes),
        coverage=share(hit for one in outcomes for hit in one.covered_of_baseline),
        told=float(np.mean([sum(one.about_baseline) for one in outcomes])),
    )


def share(found: Iterator[bool]) -> float:
    return float(np.mean(list(found)))


def allowed(studies: int, error: float = ALPHA) -> float:
    """The share of wrong studies that is exceeded in 1 % of runs of a method whose error is `error`."""
    return error + 2.33 * sqrt(error * (1 - error) / studies)


def assert_honest(study: Study, studies: int, least_coverage: float = 0.94) -> None:
    """Each family is wrong in at most 5 % of the studies, and intervals of ratios cover."""
    outcomes = [study(seed) for seed in range(studies)]
    assert share(not all(one.about_baseline) for one in outcomes) <= allowed(studies)
    assert share(one.excludes_best for one in outcomes) <= allowed(studies)
    assert share(one.is_wrong_about_ranks for one in outcomes) <= allowed(studies)
    assert share(hit for one in outcomes for hit in one.covered) >= least_coverage


def assert_equality_is_honest(machine: Machine, schedule: Schedule, studies: int) -> None:
    """Configs 11 % faster than the baseline are seldom called equal within 10 %, and equal ones seldom different."""
    for speeds, wrong in (
        ((1.0, 1.11, 1.11, 1.11), [AgainstBaseline.EQUAL]),
        ((1.0,) * 4, list(DIFFERENT)),
    ):
        tables = [fixed_plan(machine, speeds, schedule)(seed).table for seed in range(studies)]
        said = [
            update_claims(table, table.configs[0], ALPHA, equal_within=0.1).against_baseline
            for table in tables
        ]
        assert share(any(one in wrong for one in found.values()) for found in said) <= allowed(
            studies
        )


@dataclass(frozen=True)
class Power:
    """What a design is to find out at the least, in the mean over studies."""

    machine: str
    speeds: tuple[float, ...]
    plan: Schedule | int  # or a budget in seconds
    told_from_baseline: float  # configs, rightly
    single_best: float  # share of the studies with only one possible best

    def __str__(self) -> str:
        plan = (
            f"{self.plan} s"
            if isinstance(self.plan, int)
            else f"{self.plan.blocks}x{self.plan.rounds}"
        )
        turns = isinstance(self.plan, int) or self.plan.alternate
        return f"{self.machine}-{len(self.speeds)}-{max(self.speeds)}-{plan}-{'turns' if turns else 'visits'}"

    def study(self) -> Study:
        machine = MACHINES[self.machine]
        if isinstance(self.plan, int):
            return sequential(machine, self.speeds, self.plan)
        return fixed_plan(machine, self.speeds, self.plan)


# The floors are what such studies gave, less about three standard errors of 100 studies.
POWER = [
    Power("gallery", SHOOTOUT, Schedule(3, 3), 3.1, 0.38),
    Power("luck", SHOOTOUT, Schedule(3, 3), 3.0, 0.30),
    Power("gallery", SHOOTOUT, Schedule(3, 3, alternate=True), 4.3, 0.68),
    Power("gallery", SHOOTOUT, Schedule(3, 6, alternate=True), 5.0, 0.83),
    Power("drift", SHOOTOUT, Schedule(3, 6, alternate=True), 4.6, 0.80),
    Power("gallery", SHOOTOUT, 600, 4.6, 0.78),
    Power("gallery", SHOOTOUT, 900, 5.8, 0.91),
    Power("gallery", (1.0, 1.2), Schedule(7, 4, alternate=True), 0.86, 0.90),
    Power("gallery", (1.0, 1.2, 1.0, 1.0), Schedule(4, 5, alternate=True), 0.48, 0.35),
    Power("gallery", (1.0, 1.5, 1.0, 1.0), Schedule(4, 5, alternate=True), 0.95, 0.95),
    Power("gallery", (1.0, 1.2, *[1.0] * 6), Schedule(7, 4, alternate=True), 0.66, 0.42),
]


def assert_power(entry: Power, studies: int) -> None:
    outcomes = [entry.study()(seed) for seed in range(studies)]
    assert np.mean([sum(one.about_baseline) for one in outcomes]) >= entry.told_from_baseline
    assert share(len(one.claims.possible_bests) == 1 for one in outcomes) >= entry.single_best


def _outcome(figures: LogSpeeds, speeds: Sequence[float]) -> Outcome:
    table = _table(figures)
    return Outcome(
        table,
        update_claims(table, table.configs[0], ALPHA),
        dict(zip(table.configs, speeds, strict=True)),
    )


def _table(figures: LogSpeeds) -> PairTable:
    return collect_pair_tables({"workload": figures}, figures.configs[0])["workload"]
