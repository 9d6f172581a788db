"""Time that is won goes into rounds: blocks on paper, with a clock, starts and trials that take what they are told."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from bitbench.analysis.elapsed import collect_block_ends
from bitbench.analysis.sequential import list_looks_with_trials
from bitbench.engines.null import NullEngine
from bitbench.records.trial import InstanceRecord, Outcome, TrialMetrics, TrialRecord
from bitbench.study.plan import Config, Group, Plan, Point
from bitbench.study.study import Measure
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.paper_study import PaperStudy
from tests.support.synthetic import make_instance, make_plan, make_trial

WORKLOAD = BUILT_IN_WORKLOADS["interactive"]
BEGAN = datetime(2026, 11, 2, 10, tzinfo=UTC)
Records = list[TrialRecord | InstanceRecord]


def paper_plan(names: str = "abcd", **measure: object) -> Plan:
    return make_plan(list(names), [WORKLOAD], Measure.model_validate(measure))


class Killed(Exception):
    """The process of a study is gone."""


@dataclass
class PaperRun:
    """As a study runs its groups. `start_s` by block; `trial_s` by config's name and block."""

    plan: Plan
    start_s: Callable[[int], float]
    trial_s: Callable[[str, int], float] = lambda _name, _block: 5.0
    fails: frozenset[tuple[str, int]] = (
        frozenset()
    )  # a config, and the block in which its trials crash
    best: float = 103.0  # tok/s of b; others have 100 or 101
    available_bytes: int = 2**34
    now_s: float = 0.0
    records: Records = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)  # block, rounds: before each trial
    most_records: int | None = None  # it is killed after so many

    def __post_init__(self) -> None:
        self.study = PaperStudy(self.plan, available_bytes=self.available_bytes)
        self.random = Random(1)

    def run(self) -> "PaperRun":
        try:
            while (group := self.study.next_group()) is not None:
                self.measure(group)
        except Killed:
            self.most_records = None
        return self

    def measure(self, group: Group) -> None:
        progress = self.study.progress
        for member in group.members:
            self.start(member.config, group.block)
        number = progress.count_begun_rounds(group.block)
        points = [Point(config=member.config, workload=WORKLOAD.name) for member in group.members]
        while wanted := [point for point in points if progress.is_trial_due(point, group.block)]:
            is_another = any(point.config != group.baseline for point in wanted)
            for point in points:
                self.asked.append((group.block, self.study.rounds(group.block)))
                is_beside = is_another and point.config == group.baseline
                if point in wanted or (
                    is_beside and progress.is_trial_possible(point, group.block)
                ):
                    self.trial(point, group.block, number if len(group.members) > 1 else None)
            number += 1

    def go_on(self) -> "PaperRun":
        """As a later call, which reads what was decided and the records."""
        records = sorted(self.records, key=lambda record: isinstance(record, InstanceRecord))
        tasks = self.study.tasks
        self.study = PaperStudy(self.plan, available_bytes=self.available_bytes, tasks=tasks)
        self.study.add(records)
        return self.run()

    def start(self, config: Config, block: int) -> None:
        ready_s = self.start_s(block)
        self.add(make_instance(config, block, started_at=self.at(), ready_s=ready_s), ready_s + 0.2)

    def trial(self, point: Point, block: int, number: int | None) -> None:
        name, index = point.config.engine, len(self.study.progress.get_trials(point, block))
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
        self.study.measure(record)
        if len(self.records) == self.most_records:
            raise Killed

    def at(self) -> str:
        return (BEGAN + timedelta(seconds=self.now_s)).isoformat(timespec="milliseconds")

    def rounds(self) -> list[int]:
        """Trials of the config that has most, block by block."""
        trials = [one for one in self.records if isinstance(one, TrialRecord)]
        return [
            max(
                sum(one.point == point and one.block == block for one in trials)
                for point in self.plan.points
            )
            for block in sorted({one.block for one in trials})
        ]


def split(records: Records) -> tuple[list[TrialRecord], list[InstanceRecord]]:
    trials = [one for one in records if isinstance(one, TrialRecord)]
    starts = [one for one in records if isinstance(one, InstanceRecord)]
    return trials, starts


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
    run = PaperRun(
        paper_plan("ab", budget="6m", starts=2, trials={"min": 1, "max": 100}),
        quick_after_the_first,
    ).run()
    planned = next(rounds for block, rounds in run.asked if block == 1)
    first, second = run.rounds()
    assert second > planned >= first
    assert 360 - 2 * 6.0 < run.now_s <= 361


def test_rounds_beyond_those_planned_need_no_start() -> None:
    """In chunks and visits the others are gone by then."""
    measure = {"budget": "6m", "starts": 2, "trials": {"min": 1, "max": 100}}
    fits_two = int(2.5 * NullEngine.overhead_bytes / 0.85)
    in_chunks = PaperRun(
        paper_plan("abc", **measure), quick_after_the_first, available_bytes=fits_two
    ).run()
    visits = PaperRun(paper_plan("abc", schedule="visits", **measure), quick_after_the_first).run()
    numbers = {
        one.round for one in in_chunks.records if isinstance(one, TrialRecord) and one.block == 0
    }
    baseline = in_chunks.plan.configs[0]
    others = [
        one
        for one in in_chunks.records
        if isinstance(one, TrialRecord) and one.point.config != baseline
    ]
    of_each = Counter(one.point for one in others if one.block == 0)
    assert sum(of_each.values()) == len(numbers)  # each chunk has its own
    for run in (in_chunks, visits):
        wanted = [rounds for block, rounds in run.asked if block == 1]
        assert wanted == sorted(wanted, reverse=True)
        assert run.now_s < 330  # the time that quick starts left


def test_a_round_that_would_not_end_in_time_is_not_begun() -> None:
    run = PaperRun(
        paper_plan("abc", budget="5m", starts=2, trials={"min": 1, "max": 100}),
        lambda _: 5.0,
        lambda _, block: 2.0 if block == 0 else 9.0,
        best=150.0,
    ).run()
    planned = next(rounds for block, rounds in run.asked if block == 1)
    assert run.rounds()[1] < planned
    assert run.now_s <= 300


@pytest.mark.parametrize("block", [0, 1])
def test_one_that_failed_keeps_no_other_from_rounds(block: int) -> None:
    measure = {"budget": "6m", "starts": 2, "trials": {"min": 1, "max": 100}}
    run = PaperRun(
        paper_plan("abc", **measure), quick_after_the_first, fails=frozenset({("c", block)})
    ).run()
    planned = next(rounds for number, rounds in run.asked if number == 1)
    assert run.rounds()[1] > planned


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_a_run_that_is_killed_after_any_record_goes_on_as_it_was_decided(names: str) -> None:
    """Killed twice, at random: what was complete stays so, and the budget is kept."""
    plan = paper_plan(names, budget="8m")
    whole = PaperRun(plan, lambda _: 5.0).run()
    for seed in range(6):
        random = Random(seed)
        run = PaperRun(plan, lambda _: 5.0)
        for _ in range(2):
            run.most_records = len(run.records) + random.randint(1, len(whole.records) // 2)
            run.go_on() if run.records else run.run()
            decided = list(run.study.tasks)
        run.go_on()
        assert [task.points for task in run.study.tasks[: len(decided)]] == [
            task.points for task in decided
        ]
        assert [task.rounds for task in run.study.tasks[: len(decided) - 1]] == [
            task.rounds for task in decided[:-1]
        ]
        assert len(run.rounds()) >= 3
        assert run.study.next_group() is None
        assert (
            max(collect_block_ends(*split(run.records)).values()) <= 8 * 60 + 20
        )  # a start of one config, repeated twice


def test_the_last_look_is_when_no_other_block_fits() -> None:
    run = PaperRun(paper_plan("abcdefgh", budget="15m"), quick_after_the_first, best=150.0).run()
    trials, starts = split(run.records)
    ends_s = collect_block_ends(trials, starts)
    assert ends_s[max(ends_s)] <= 900
    looks = [look for look, _ in list_looks_with_trials(run.plan, trials, starts)]
    assert [look.blocks for look in looks] == list(range(3, len(ends_s) + 1))
    assert looks[-1].is_last
    assert sum(look.alpha for look in looks) == pytest.approx(0.05)
