"""Time that is won goes into rounds: blocks on paper, with a clock, starts and trials that take what they are told."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from bitbench.analysis.elapsed import block_ends
from bitbench.analysis.ranking import baselines_of
from bitbench.analysis.sequential import looks_taken
from bitbench.engines.null import NullEngine
from bitbench.measure.budget import StudyPace
from bitbench.measure.estimate import Estimator
from bitbench.measure.progress import Progress
from bitbench.records.trial import InstanceRecord, Outcome, TrialMetrics, TrialRecord
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.synthetic import make_instance, make_plan, make_trial

WORKLOAD = BUILT_IN_WORKLOADS["interactive"]
ENGINES = {"null": NullEngine()}
BEGAN = datetime(2026, 11, 2, 10, tzinfo=UTC)
Records = list[TrialRecord | InstanceRecord]


def paper_plan(names: str = "abcd", **measure: object) -> Plan:
    return make_plan(list(names), [WORKLOAD], Measure.model_validate(measure))


def pace_of(plan: Plan, records: Records = [], available_bytes: int = 2**34) -> tuple[StudyPace, Progress]:  # noqa: B006
    pace = StudyPace(plan, ENGINES, Estimator(plan, ENGINES), available_bytes=available_bytes, on_device=False)
    progress = Progress(plan, pace, baselines_of(plan))
    for record in records:
        pace.add(record)
        progress.add([record])
    return pace, progress


@dataclass
class PaperRun:
    """As a study runs its groups. `start_s` by block; `trial_s` by config's name and block."""

    plan: Plan
    start_s: Callable[[int], float]
    trial_s: Callable[[str, int], float] = lambda _name, _block: 5.0
    fails: frozenset[tuple[str, int]] = frozenset()  # a config, and the block in which its trials crash
    best: float = 103.0  # tok/s of b; others have 100 or 101
    available_bytes: int = 2**34
    now_s: float = 0.0
    records: Records = field(default_factory=list)
    asked: list[tuple[int, int, int]] = field(default_factory=list)  # records so far, block, rounds: each time

    def __post_init__(self) -> None:
        self.pace, self.progress = pace_of(self.plan, available_bytes=self.available_bytes)
        self.random = Random(1)

    def run(self) -> "PaperRun":
        while (group := self.progress.next_group()) is not None:
            for shift in group.shifts_of_members:
                members = [*shift, *([group.stays] if group.stays else [])]
                for member in members:
                    self.start(member.config, group.block)
                number = self.progress.rounds_begun(group.block)
                points = [Point(config=member.config, workload=WORKLOAD.name) for member in members]
                while wanted := [point for point in points if self.wants(point, group.block)]:
                    for point in wanted:
                        self.trial(point, group.block, number if len(group.members) > 1 else None)
                    number += 1
        return self

    def wants(self, point: Point, block: int) -> bool:
        self.asked.append((len(self.records), block, self.pace.rounds(block)))
        return self.progress.wants_trial(point, block)

    def start(self, config: Config, block: int) -> None:
        ready_s = self.start_s(block)
        self.add(make_instance(config, block, started_at=self.at(), ready_s=ready_s), ready_s + 0.2)

    def trial(self, point: Point, block: int, number: int | None) -> None:
        name, index = point.config.engine, len(self.progress.trials_of(point, block))
        took_s = self.trial_s(name, block) * self.random.uniform(0.9, 1.1)
        speed = {"a": 100.0, "b": self.best}.get(name, 101.0) * self.random.uniform(0.95, 1.05)
        outcome = Outcome.CRASHED if (name, block) in self.fails else Outcome.OK
        self.add(
            make_trial(
                point, block, index, started_at=self.at(), duration_s=took_s, round=number,
                outcome=outcome, metrics=TrialMetrics(output_throughput=speed),
            ),
            took_s + 0.3,
        )  # fmt: skip

    def add(self, record: TrialRecord | InstanceRecord, took_s: float) -> None:
        self.now_s += took_s
        self.records.append(record)
        self.pace.add(record)
        self.progress.add([record])

    def at(self) -> str:
        return (BEGAN + timedelta(seconds=self.now_s)).isoformat(timespec="milliseconds")

    def rounds(self) -> list[int]:
        """Trials of the config that has most, block by block."""
        trials = [one for one in self.records if isinstance(one, TrialRecord)]
        return [
            max(sum(one.point == point and one.block == block for one in trials) for point in self.plan.points)
            for block in sorted({one.block for one in trials})
        ]


def quick_after_the_first(block: int) -> float:
    """As of an engine that compiles at its first start and finds its kernels in a cache from then on."""
    return 40.0 if block == 0 else 5.0


def test_starts_that_became_quick_buy_blocks() -> None:
    slow = PaperRun(paper_plan(budget="10m"), lambda _: 40.0).run()
    quick = PaperRun(paper_plan(budget="10m"), quick_after_the_first).run()
    assert len(slow.rounds()) == 3
    assert len(quick.rounds()) >= 4
    assert quick.now_s <= 605


def test_time_that_buys_no_other_start_becomes_rounds() -> None:
    """The second block is planned with starts of 40 s; they take 5 s, and no third is asked for."""
    run = PaperRun(paper_plan("ab", budget="6m", starts=2, trials={"min": 1, "max": 100}), quick_after_the_first).run()
    planned = next(rounds for _, block, rounds in run.asked if block == 1)
    first, second = run.rounds()
    assert second > planned >= first
    assert 360 - 2 * 6.0 < run.now_s <= 361


def test_rounds_beyond_those_planned_need_no_start() -> None:
    """In shifts and visits the others are gone by then."""
    measure = {"budget": "6m", "starts": 2, "trials": {"min": 1, "max": 100}}
    fits_two = int(2.5 * NullEngine.overhead_bytes / 0.85)
    in_shifts = PaperRun(paper_plan("abc", **measure), quick_after_the_first, available_bytes=fits_two).run()
    visits = PaperRun(paper_plan("abc", schedule="visits", **measure), quick_after_the_first).run()
    numbers = {one.round for one in in_shifts.records if isinstance(one, TrialRecord) and one.block == 0}
    assert len(numbers) > in_shifts.rounds()[0]  # each shift has its own
    for run in (in_shifts, visits):
        wanted = [rounds for _, block, rounds in run.asked if block == 1]
        assert wanted == sorted(wanted, reverse=True)
        assert run.now_s < 330  # the time that quick starts left


def test_a_round_that_would_not_end_in_time_is_not_begun() -> None:
    run = PaperRun(
        paper_plan("abc", budget="5m", starts=2, trials={"min": 1, "max": 100}),
        lambda _: 5.0,
        lambda _, block: 2.0 if block == 0 else 9.0,
        best=150.0,
    ).run()
    planned = next(rounds for _, block, rounds in run.asked if block == 1)
    assert run.rounds()[1] < planned
    assert run.now_s <= 300


@pytest.mark.parametrize("block", [0, 1])
def test_one_that_failed_keeps_no_other_from_rounds(block: int) -> None:
    measure = {"budget": "6m", "starts": 2, "trials": {"min": 1, "max": 100}}
    run = PaperRun(paper_plan("abc", **measure), quick_after_the_first, fails=frozenset({("c", block)})).run()
    planned = next(rounds for _, number, rounds in run.asked if number == 1)
    assert run.rounds()[1] > planned


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_a_later_call_comes_to_the_same_rounds_whatever_it_reads_first(names: str) -> None:
    run = PaperRun(paper_plan(names, budget="8m"), quick_after_the_first).run()
    assert len(run.rounds()) > 2
    random = Random(7)
    for known, block, rounds in random.sample(run.asked, 30):
        records = run.records[:known]
        random.shuffle(records)
        assert pace_of(run.plan, records)[0].rounds(block) == rounds
    assert pace_of(run.plan, run.records)[1].next_group() is None


def test_the_last_look_is_when_no_other_block_fits() -> None:
    run = PaperRun(paper_plan("abcdefgh", budget="15m"), quick_after_the_first, best=150.0).run()
    trials = [one for one in run.records if isinstance(one, TrialRecord)]
    starts = [one for one in run.records if isinstance(one, InstanceRecord)]
    ends_s = block_ends(trials, starts)
    assert ends_s[max(ends_s)] <= 900
    looks = [look for look, _ in looks_taken(run.plan, trials, starts)]
    assert [look.blocks for look in looks] == list(range(3, len(ends_s) + 1))
    assert looks[-1].is_last
    assert sum(look.alpha for look in looks) == pytest.approx(0.05)
