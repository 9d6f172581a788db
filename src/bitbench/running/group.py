"""A group of a block: the configs that are started together and take turns.

They are started, warmed up until steady, and take turns until each has its trials: one is awake and
the others are frozen. This module writes nothing to the study folder. It yields drafts, and its
caller (`running.loop`) stores each draft and updates `progress` before it asks for the next.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from bitbench.machine.gpus import visible_gpus
from bitbench.machine.watches import MemoryWatch
from bitbench.ports import InstanceFailed
from bitbench.records.quality import Condition
from bitbench.records.trial import (
    NOT_THE_ENGINES,
    Failure,
    InstanceRecord,
    Outcome,
    TrialMetrics,
    TrialRecord,
)
from bitbench.running.progress import Progress
from bitbench.running.quality import (
    QualityDraft,
    fill_quality_draft,
    make_failed_quality_record,
    make_quality_record,
)
from bitbench.running.trial import (
    ReadyInstance,
    RunContext,
    TrialDraft,
    make_trial_record,
    now,
    run_trial,
    touch_before_trial,
)
from bitbench.study.plan import Config, Group, Member, Point
from bitbench.study.workload import Workload

AGREEMENT = 0.1  # of the shorter mean latency. Rounds of a warm engine differ by a few percent.
MOST_ROUNDS = 8
LIMIT_S = 60.0  # for all rounds of a workload together


def should_run_warm_up_round(
    workload: Workload, rounds: Sequence[TrialRecord], *, until_steady: bool
) -> bool:
    """Return True if this workload needs another round of warm-up.

    One round suffices if the round is the whole workload. It also suffices on CPUs
    (docs/measurement.md), but not if the first requests compile or tune kernels: SGLang on a GPU
    went from 1,187 to 11,266 tok/s over five runs (sglang#4858).
    """
    if not rounds:
        return True
    if not until_steady or workload.warm_up is workload or is_steady(rounds):
        return False
    total_s = sum(round_.duration_s or 0.0 for round_ in rounds)
    return len(rounds) < MOST_ROUNDS and total_s < LIMIT_S


def is_steady(rounds: Sequence[TrialRecord]) -> bool:
    """Return True if the mean latencies of the last two rounds agree."""
    if len(rounds) < 2:
        return False
    last_s = rounds[-1].metrics.latency_s
    previous_s = rounds[-2].metrics.latency_s
    if last_s is None or previous_s is None:
        return False
    return max(last_s, previous_s) <= (1 + AGREEMENT) * min(last_s, previous_s)


class Residents:
    """The instances in memory, of which only one is awake at a time.

    `can_freeze` says by config which instances can be frozen. An instance on its own is never
    frozen.
    """

    def __init__(self, can_freeze: Mapping[Config, bool]) -> None:
        self._can_freeze = can_freeze
        self._present: dict[str, ReadyInstance] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for ready in self._present.values():
            ready.instance.thaw()  # a frozen process cannot exit

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._present

    def should_freeze(self, config: Config) -> bool:
        """Return True if the instance of this config is frozen between its turns."""
        return len(self._can_freeze) > 1 and self._can_freeze[config]

    def join(self, ready: ReadyInstance) -> None:
        """Add an instance to those in memory."""
        self._present[ready.id] = ready

    def leave(self, ready: ReadyInstance) -> None:
        """Stop an instance that cannot be trusted any more. The others continue."""
        if self._present.pop(ready.id, None) is not None:
            ready.instance.stop()

    @contextmanager
    def turn(
        self, ready: ReadyInstance, touch: Callable[[ReadyInstance], None] | None = None
    ) -> Iterator[int]:
        """Thaw the instance, yield how many others are in memory, and freeze it again.

        `touch` warms it up after the thaw: its caches, its clocks and its first request.
        """
        others = len(self._present) - 1
        if len(self._can_freeze) == 1:
            yield others
            return
        ready.instance.thaw()
        if touch is not None:
            touch(ready)
        try:
            yield others
        finally:
            if self._can_freeze[ready.config]:
                ready.instance.freeze()


# After these outcomes the instance cannot be trusted with another trial.
ENDS_THE_INSTANCE = frozenset({Outcome.CRASHED, Outcome.TIMEOUT, Outcome.OOM})

Draft = InstanceRecord | TrialDraft | QualityDraft
Present = tuple[Member, ReadyInstance]
Turn = tuple[ReadyInstance, Workload]
NewInstance = Callable[[], tuple[str, Path]]  # an id and a log file


def run_group(
    group: Group, run: RunContext, progress: Progress, new_instance: NewInstance
) -> Generator[Draft, None, None]:
    """Start all members, warm them up, let them take turns, measure their quality, and end them."""
    with ExitStack() as stack:
        can_freeze: dict[Config, bool] = {}
        for member in group.members:
            setup = run.plan.study.engine(member.config.engine)
            can_freeze[member.config] = run.get_engine(member.config).can_freeze(setup)
        residents = stack.enter_context(Residents(can_freeze))
        servers = _Servers(group, run, progress, residents, new_instance)
        present = yield from servers.start(stack)
        yield from servers.take_turns(present)
        yield from servers.measure_quality(present)


@dataclass(frozen=True)
class _Servers:
    """The instances of a group, and the steps of their measurement."""

    group: Group
    run: RunContext
    progress: Progress
    residents: Residents
    new_instance: NewInstance
    # Metrics of the last warm-up round, by instance and workload.
    warm: dict[tuple[str, str], TrialMetrics] = field(default_factory=dict)

    def start(self, stack: ExitStack) -> Generator[Draft, None, list[Present]]:
        """Start and warm up all members. Return the ready ones. They end with the stack."""
        present: list[Present] = []
        for member in self.group.members:
            ready = yield from self._start(member, stack)
            if ready is not None:
                self.residents.join(ready)
                yield from self._warm_up(member, ready)
                present.append((member, ready))
        return present

    def take_turns(self, present: Sequence[Present]) -> Iterator[Draft]:
        """Run rounds until no point wants a trial. Each round has a new order of the turns.

        A config on its own has no rounds, unless its block has some already. Then it gets
        additional rounds without other configs.
        """
        number = self.progress.count_begun_rounds(self.group.block)
        in_rounds = len(self.group.members) > 1 or number > 0
        while turns := self._wanted(present):
            round_number = number if in_rounds else None
            for ready, workload in self._shuffle_by_seed(turns, number):
                yield from self._take_turn(ready, workload, round_number)
            number += 1

    def _take_turn(
        self, ready: ReadyInstance, workload: Workload, round_number: int | None
    ) -> Iterator[Draft]:
        """Yield one trial. Repeat it if the machine or the client spoiled it.

        In its first turn of a block a config has a second trial right after the first, without
        a freeze in between. `analysis.turns` compares the two.
        """
        while self._is_turn_possible(ready, workload):
            position = 0
            with self.residents.turn(
                ready, lambda awake: touch_before_trial(awake, self.run)
            ) as others:
                draft = self._trial(ready, workload)
                is_ok = draft.record.outcome is Outcome.OK
                if round_number is not None and is_ok and self._should_run_second(ready):
                    yield _add_turn(draft, others, round_number, position)
                    position = 1
                    draft = self._trial(ready, workload)
            draft = _add_turn(draft, others, round_number, position)
            self._leave_if_over(ready, draft)
            yield draft
            if position or draft.record.outcome not in NOT_THE_ENGINES:
                return

    def _should_run_second(self, ready: ReadyInstance) -> bool:
        """Return True if this turn needs a second trial.

        Blocks of a single round have none: it would take half of their time.
        """
        is_frozen = self.group.rounds > 1 and self.residents.should_freeze(ready.config)
        return is_frozen and self.progress.should_run_second(ready.config, ready.block)

    def _trial(self, ready: ReadyInstance, workload: Workload) -> TrialDraft:
        earlier = self.progress.list_metrics(_make_point(ready, workload), ready.block)
        warm = self.warm.get((ready.id, workload.name))
        if warm is not None:
            earlier.insert(0, warm)
        index = self._get_next_index(ready, workload)
        return run_trial(ready, workload, "measured", index, self.run, earlier=earlier)

    def measure_quality(self, present: Sequence[Present]) -> Iterator[Draft]:
        """Measure quality after speed, so that it cannot disturb any trial."""
        for member, ready in present:
            if ready.id not in self.residents:
                continue
            condition = self.progress.find_score_condition(member.config, ready.id)
            if condition is not None:
                with self.residents.turn(ready):
                    yield self._quality(ready, condition)

    def _start(
        self, member: Member, stack: ExitStack
    ) -> Generator[Draft, None, ReadyInstance | None]:
        """Start one member and return it when it is ready, or None if it fails.

        Members start one after the other, so that each time to ready has no other start in it.
        """
        instance_id, log_file = self.new_instance()
        started_at = now()
        started = time.monotonic()
        config = member.config
        instance = self.run.start(config, log_file, occasion=str(self.group.block))
        stack.callback(instance.stop)
        limits = self.run.plan.study.limits
        gpus = visible_gpus() if self.run.on_device else ()
        watch = stack.enter_context(MemoryWatch(instance.pid, limits.memory, instance.stop, gpus))
        record = InstanceRecord(
            id=instance_id,
            config=config,
            block=self.group.block,
            started_at=started_at,
            outcome=Outcome.OK,
            log_file=f"logs/{log_file.name}",
        )
        try:
            endpoint = instance.wait_ready(limits.start)
        except InstanceFailed as failed:
            yield from self._report_failed_start(member, record, watch.failure or failed.failure)
            instance.stop()
            return None
        ready_s = time.monotonic() - started
        yield record.model_copy(
            update={"ready_s": ready_s, "facts": instance.facts(), "memory": watch.read()}
        )
        vocabulary = self.run.get_vocabulary(config)
        return ReadyInstance(
            instance_id, config, self.group.block, instance, endpoint, vocabulary, watch
        )

    def _report_failed_start(
        self, member: Member, record: InstanceRecord, failure: Failure
    ) -> Iterator[Draft]:
        """Yield the failure of an instance that never became ready as the result of its points."""
        yield record.model_copy(update=dict(failure))
        for workload in member.workloads:
            point = Point(config=member.config, workload=workload.name)
            yield TrialDraft(
                make_trial_record(
                    point,
                    kind="measured",
                    block=record.block,
                    index=len(self.progress.get_trials(point, record.block)),
                    instance_id=record.id,
                    failure=failure,
                )
            )
        condition = self.progress.find_score_condition(member.config, record.id)
        # A second start counts for the noise floor only if it was made for quality alone.
        if condition is Condition.ALONE or (condition is not None and not member.workloads):
            draft = make_quality_record(
                member.config, record.id, record.started_at or now(), condition
            )
            yield QualityDraft(make_failed_quality_record(draft, failure, 0.0))

    def _warm_up(self, member: Member, ready: ReadyInstance) -> Iterator[Draft]:
        """Warm up each workload: once, or until it is steady if it may compile or tune something.

        A warm-up that fails is the result of its point.
        """
        until_steady = self.run.on_device or ready.instance.facts().was_running
        with self.residents.turn(ready):
            for workload in member.workloads:
                rounds: list[TrialRecord] = []
                while should_run_warm_up_round(workload, rounds, until_steady=until_steady):
                    index = self._get_next_index(ready, workload)
                    draft = run_trial(
                        ready, workload, "warmup", index, self.run, warm_up_round=len(rounds)
                    )
                    yield draft
                    if self._leave_if_over(ready, draft):
                        return
                    if draft.record.kind != "warmup":
                        break
                    rounds.append(draft.record)
                    self.warm[ready.id, workload.name] = draft.record.metrics

    def _wanted(self, present: Sequence[Present]) -> list[Turn]:
        """Return the turns of a round: all due turns, and the baseline on the same workloads."""
        baseline = self.group.baseline
        turns: list[Turn] = []
        for member, ready in present:
            if ready.id in self.residents:
                turns += [(ready, workload) for workload in member.workloads]
        due = [turn for turn in turns if self._is_turn_due(*turn)]
        compared = {workload.name for ready, workload in due if ready.config != baseline}
        for ready, workload in turns:
            is_compared = ready.config == baseline and workload.name in compared
            if (
                is_compared
                and not self._is_turn_due(ready, workload)
                and self._is_turn_possible(ready, workload)
            ):
                due.append((ready, workload))
        return due

    def _is_turn_due(self, ready: ReadyInstance, workload: Workload) -> bool:
        return self.progress.is_trial_due(_make_point(ready, workload), ready.block)

    def _is_turn_possible(self, ready: ReadyInstance, workload: Workload) -> bool:
        return ready.id in self.residents and self.progress.is_trial_possible(
            _make_point(ready, workload), ready.block
        )

    def _shuffle_by_seed(self, turns: list[Turn], number: int) -> Iterator[Turn]:
        """Yield the turns of a round in a new order.

        It goes workload by workload, so that the trials to compare are close together in time.
        """
        random = Random(f"{self.run.plan.study.seed}/{self.group.block}/{number}")
        by_workload: dict[str, list[Turn]] = {}
        for turn in turns:
            by_workload.setdefault(turn[1].name, []).append(turn)
        names = list(by_workload)
        random.shuffle(names)
        for name in names:
            random.shuffle(by_workload[name])
            yield from by_workload[name]

    def _get_next_index(self, ready: ReadyInstance, workload: Workload) -> int:
        """Return the index of the next trial in the block."""
        return len(self.progress.get_trials(_make_point(ready, workload), ready.block))

    def _leave_if_over(self, ready: ReadyInstance, draft: TrialDraft) -> bool:
        """Stop the instance if no further trial can run in it, and return whether it was stopped.

        A disturbed instance is stopped only if the disturbance ended its process.
        """
        outcome = draft.record.outcome
        is_over = outcome in ENDS_THE_INSTANCE or (
            outcome is Outcome.DISTURBED and ready.instance.failure() is not None
        )
        if is_over:
            self.residents.leave(ready)
        return is_over

    def _quality(self, ready: ReadyInstance, condition: Condition) -> QualityDraft:
        run = self.run
        measured = fill_quality_draft(
            ready.endpoint,
            plan=run.plan,
            engine=run.get_engine(ready.config),
            kit=run.quality[run.plan.variant(ready.config.variant).model],
            draft=make_quality_record(ready.config, ready.id, now(), condition),
            on_step=lambda step: run.observer.quality_running(ready.config, step),
        )
        record = measured.record
        reported: Failure | None = None
        if record.outcome is not Outcome.OK:
            reported = Failure(outcome=record.outcome, cause=record.cause or "")
        failure = ready.explain(reported, "measured")
        if failure is None:
            return measured
        return QualityDraft(make_failed_quality_record(record, failure, record.duration_s))


def _add_turn(
    draft: TrialDraft, others: int, round_number: int | None, position: int
) -> TrialDraft:
    """Return the draft with its round, its position in the turn and the number of residents."""
    circumstances = {"residents": others, "round": round_number, "turn": position}
    return TrialDraft(draft.record.model_copy(update=circumstances), draft.rows)


def _make_point(ready: ReadyInstance, workload: Workload) -> Point:
    return Point(config=ready.config, workload=workload.name)
