"""A group: configs take turns in a new order each round, the others are frozen, and one that dies leaves."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path

import pytest

from bitbench.ports import Endpoint, Launch, LoadJob, LoadResult
from bitbench.records.trial import Failure, InstanceFacts, InstanceRecord, Outcome, TrialRecord
from bitbench.running.group import run_group
from bitbench.running.progress import CLIENT_BOUND_REPEATS, list_repeatable_rejections
from bitbench.running.trial import TOUCH, RunContext, TrialDraft
from bitbench.study.plan import Plan
from bitbench.study.study import EngineSetup
from tests.support.paper_study import PaperStudy
from tests.support.synthetic import load_result, request_rows
from tests.unit.test_schedule import plan_of, study_of, turn


@dataclass
class Tape:
    """What was done to whom, in order."""

    events: list[tuple[str, str]] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)

    def note(self, what: str, who: str) -> None:
        self.events.append((what, who))

    def running(self) -> Iterator[set[str]]:
        """Who was not frozen, at each trial."""
        awake: set[str] = set()
        for what, who in self.events:
            if what in ("ready", "thaw"):
                awake.add(who)
            elif what in ("freeze", "stop"):
                awake.discard(who)
            elif what == "trial":
                yield set(awake)


@dataclass
class Resident:
    name: str
    tape: Tape
    pid: int = field(default_factory=os.getpid)

    def wait_ready(self, timeout_s: float) -> Endpoint:
        self.tape.note("ready", self.name)
        return Endpoint(f"http://127.0.0.1:1/{self.name}", self.name, "key")

    def facts(self) -> InstanceFacts:
        return InstanceFacts()

    def failure(self) -> Failure | None:
        return (
            Failure(outcome=Outcome.CRASHED, cause="it died")
            if self.name in self.tape.dead
            else None
        )

    def freeze(self) -> None:
        self.tape.note("freeze", self.name)

    def thaw(self) -> None:
        self.tape.note("thaw", self.name)

    def stop(self) -> None:
        self.tape.note("stop", self.name)


@dataclass
class Engine:
    tape: Tape
    name = "null"
    environment = None
    needs_model = False
    scoring = None

    def start(self, launch: Launch) -> Resident:
        return Resident(launch.setup.name, self.tape)

    def can_freeze(self, setup: EngineSetup) -> bool:
        return True


@dataclass
class Load:
    """Answers at once; requests to `deadly` break from its third trial on."""

    tape: Tape
    deadly: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    jobs: list[LoadJob] = field(default_factory=list)
    slow: int = 0  # so many of its first trials take ten times as long

    def run(self, job: LoadJob, on_progress: object = None) -> LoadResult:
        self.jobs.append(job)
        name = job.endpoint.model
        self.tape.note("touch" if job.workload == TOUCH else "trial", name)
        self.counts[name] += job.workload != TOUCH
        breaks = name == self.deadly and self.counts[name] > 3
        if breaks:
            self.tape.dead.add(name)
        factor = 10 if self.counts[name] <= self.slow else 1
        row = {
            "planned_s": 0.0,
            "chunk_s": [0.1 * factor, 0.2 * factor],
            "asked_input_tokens": 1,
            "input_tokens": 1,
        }
        rows = request_rows({**row, "status": "broken", "error": "gone"} if breaks else row)
        return load_result(rows)


class NoLoad:
    def run(self, job: LoadJob) -> LoadResult:
        pytest.fail("nothing was left to be measured")


class Silent:
    def __getattr__(self, name: str) -> object:
        return lambda *_, **__: None


def run(
    plan: Plan,
    tape: Tape,
    study: PaperStudy,
    tmp_path: Path,
    deadly: str = "",
    *,
    load: Load | None = None,
    tunes: bool | None = None,
) -> list[TrialRecord]:
    """`load`: of engines that tune kernels for their first requests, unless `tunes` says otherwise."""
    group = study.next_group()
    assert group is not None
    client, tunes = load or Load(tape, deadly), load is not None if tunes is None else tunes
    context = RunContext(
        plan, {"null": Engine(tape)}, lambda _: tmp_path, client, Silent(), on_device=tunes
    )  # type: ignore[dict-item,arg-type]
    ids = (f"i{number:04d}" for number in range(1, 100))
    trials = []
    for draft in run_group(group, context, study.progress, lambda: (next(ids), tmp_path / "log")):
        if isinstance(draft, TrialDraft):
            assert draft.rows is not None
            study.measure(draft.record)
            trials.append(draft.record)
        else:
            assert isinstance(draft, InstanceRecord)
    return trials


def test_what_tunes_kernels_is_warmed_up_until_it_is_steady(tmp_path: Path) -> None:
    plan, tape = plan_of(engines=1, workloads=1), Tape()
    load = Load(tape, slow=1)
    trials = run(plan, tape, study_of(plan, together=True, trials=2), tmp_path, load=load)
    assert [trial.kind for trial in trials] == [
        "warmup",
        "warmup",
        "warmup",
        "measured",
        "measured",
    ]
    assert [trial.index for trial in trials] == [0, 0, 0, 0, 1]
    assert len({job.seed for job in load.jobs if job.workload != TOUCH}) == len(
        trials
    )  # no prompt comes twice


def test_configs_take_turns_and_the_others_rest(tmp_path: Path) -> None:
    plan, tape = plan_of(engines=3, workloads=2), Tape()
    trials = run(plan, tape, study_of(plan, together=True, trials=3), tmp_path)
    measured = [trial for trial in trials if trial.kind == "measured" and trial.turn == 0]
    turns = Counter((trial.round, trial.point) for trial in measured)
    assert set(turns.values()) == {1}
    assert len(turns) == 3 * 6
    assert all(len(awake) == 1 for awake in tape.running())
    by_round = [[trial.point for trial in measured if trial.round == number] for number in range(3)]
    assert len({tuple(points) for points in by_round}) > 1  # in an order of its own
    assert all(trial.residents == 2 for trial in measured)
    touches = sum(what == "touch" for what, _ in tape.events)
    assert touches == len(measured)


def test_the_first_turn_of_a_config_has_two_trials_and_no_thaw_between_them(tmp_path: Path) -> None:
    plan, tape = plan_of(engines=3, workloads=2), Tape()
    trials = run(plan, tape, study_of(plan, together=True, trials=3), tmp_path)
    seconds = [trial for trial in trials if trial.turn]
    assert {trial.point.config for trial in seconds} == set(plan.configs)
    assert len(seconds) == 3
    assert {(trial.round, trial.turn, trial.index) for trial in seconds} == {(0, 1, 1)}
    assert (
        len({trial.point.workload for trial in seconds}) == 1
    )  # the first of the block, for all of them
    for second in seconds:
        first = trials[trials.index(second) - 1]
        assert (first.point, first.round, first.turn, first.index) == (second.point, 0, 0, 0)
    in_a_row = list(zip(tape.events, tape.events[1:], strict=False))
    assert sum(event == next_event == ("trial", event[1]) for event, next_event in in_a_row) >= 3


def test_an_interrupted_block_has_its_second_trials_once(tmp_path: Path) -> None:
    plan = plan_of(engines=2, workloads=1)
    whole = run(plan, Tape(), study_of(plan, together=True, trials=2), tmp_path)
    measured = [trial for trial in whole if trial.kind == "measured"]
    for killed_after in range(len(measured) + 1):
        left = study_of(plan, together=True, trials=2)
        left.add(measured[:killed_after])
        group = left.next_group()
        again = run(plan, Tape(), left, tmp_path) if group is not None and group.block == 0 else []
        both = [*measured[:killed_after], *(trial for trial in again if trial.kind == "measured")]
        assert Counter(trial.point.config.engine for trial in both if trial.turn) == {
            "e0": 1,
            "e1": 1,
        }
        counts = Counter(trial.point.config.engine for trial in both if not trial.turn)
        assert counts["e1"] == 2
        assert counts["e0"] in (2, 3)  # the baseline is beside the other's last trial once more


@dataclass
class Late(Load):
    """Sends each request 11.8 ms late; its first tokens take these times, one for each trial."""

    ttft_s: Iterator[float] = field(default_factory=lambda: repeat(0.1))

    def run(self, job: LoadJob, on_progress: object = None) -> LoadResult:
        result = super().run(job, on_progress)
        first_s = 0.1 if job.workload == TOUCH else next(self.ttft_s)
        row = {"planned_s": 0.0, "sent_s": 0.0118, "chunk_s": [first_s, first_s + 0.1]}
        return replace(
            load_result(request_rows({**row, "asked_input_tokens": 1, "input_tokens": 1})),
            health=result.health,
        )


@pytest.mark.parametrize(("warm_up_s", "trial_s"), [(0.685, 0.470), (0.470, 0.685)])
def test_a_late_client_is_judged_by_the_point_and_not_by_the_trial(
    tmp_path: Path, warm_up_s: float, trial_s: float
) -> None:
    plan, tape = plan_of(engines=1, workloads=1), Tape()
    measure = plan.study.measure.model_copy(update={"metric": "ttft"})
    plan = plan.model_copy(update={"study": plan.study.model_copy(update={"measure": measure})})
    times = chain([warm_up_s], repeat(trial_s))
    trials = run(
        plan, tape, study_of(plan, trials=2), tmp_path, load=Late(tape, ttft_s=times), tunes=False
    )
    first, *later = [trial for trial in trials if trial.kind == "measured"]
    assert (first.outcome is Outcome.OK) == (warm_up_s > trial_s)
    assert first.metrics.ttft_s == pytest.approx(trial_s)  # kept, also where it was rejected
    assert (later[-1].outcome is Outcome.OK) == (
        trial_s > warm_up_s
    )  # all but one are of the other speed by then


def test_one_that_dies_leaves_the_others_to_go_on(tmp_path: Path) -> None:
    plan, tape = plan_of(engines=3, workloads=1), Tape()
    trials = run(plan, tape, study_of(plan, together=True, trials=4), tmp_path, deadly="e1")
    measured = [trial for trial in trials if trial.kind == "measured" and trial.turn == 0]
    counts = Counter((trial.point.config.engine, trial.outcome) for trial in measured)
    assert counts[("e1", Outcome.OK)] == 1  # and a second one in the same turn
    assert counts[("e1", Outcome.CRASHED)] == 1
    assert counts[("e0", Outcome.OK)] == counts[("e2", Outcome.OK)] == 4


def test_one_alone_is_neither_frozen_nor_touched(tmp_path: Path) -> None:
    plan, tape = plan_of(engines=2, workloads=1), Tape()
    trials = run(plan, tape, study_of(plan, trials=2), tmp_path)
    assert {trial.round for trial in trials} == {None}
    assert {trial.residents for trial in trials} == {0}
    assert not any(what in ("freeze", "touch") for what, _ in tape.events)


def test_an_interrupted_block_keeps_the_numbers_of_its_rounds(tmp_path: Path) -> None:
    plan = plan_of(engines=2, workloads=1)
    study = study_of(plan, together=True, trials=1)
    run(plan, Tape(), study, tmp_path)
    longer = study_of(plan, together=True, trials=3)
    longer.add(trial for point in plan.points for trial in study.progress.get_trials(point, 0))
    again = run(plan, Tape(), longer, tmp_path)
    assert [trial.round for trial in again if trial.kind == "measured" and trial.turn == 0] == [
        1,
        1,
        2,
        2,
    ]


def test_a_baseline_that_a_later_call_measures_alone_meets_nobody_of_its_block(
    tmp_path: Path,
) -> None:
    plan = plan_of(engines=2, workloads=1)
    baseline, other = plan.points
    late = [
        turn(baseline, 0).model_copy(
            update={"id": f"late{number}", "outcome": Outcome.CLIENT_BOUND}
        )
        for number in range(CLIENT_BOUND_REPEATS + 1)
    ]
    before = [*late, turn(other, 0), turn(other, 1)]
    study = study_of(plan, blocks=1, together=True, repeatable=list_repeatable_rejections(before))
    study.add(before)
    again = run(plan, Tape(), study, tmp_path)
    assert [trial.round for trial in again if trial.kind == "measured"] == [2, 3]


def test_each_chunk_takes_its_turns_beside_a_start_of_the_baseline(tmp_path: Path) -> None:
    plan = plan_of(engines=5, workloads=1)
    study = study_of(plan, most=3, trials=3)
    trials, tapes = [], [Tape(), Tape()]
    for tape in tapes:
        trials += run(plan, tape, study, tmp_path)
    measured = [trial for trial in trials if trial.kind == "measured" and trial.turn == 0]
    starts = Counter(who for tape in tapes for what, who in tape.events if what == "ready")
    assert starts == {"e0": 2, "e1": 1, "e2": 1, "e3": 1, "e4": 1}
    by_round: dict[int | None, set[str]] = {}
    for trial in measured:
        by_round.setdefault(trial.round, set()).add(trial.point.config.engine)
    assert sorted(by_round) == list(range(6))  # three of each chunk, none of them twice
    assert all("e0" in engines and len(engines) == 3 for engines in by_round.values())
    assert Counter(trial.point.config.engine for trial in measured) == {
        "e0": 6,
        "e1": 3,
        "e2": 3,
        "e3": 3,
        "e4": 3,
    }
    assert all(trial.residents == 2 for trial in measured)
    assert all(len(awake) == 1 for tape in tapes for awake in tape.running())
    following = study.next_group()
    assert following is not None
    assert following.block == 1


def test_a_chunk_goes_on_without_a_baseline_that_dies(tmp_path: Path) -> None:
    plan, tape = plan_of(engines=5, workloads=1), Tape()
    study = study_of(plan, most=3, trials=3)
    trials = run(plan, tape, study, tmp_path, deadly="e0")
    counts = Counter(
        trial.point.config.engine for trial in trials if trial.counts and not trial.turn
    )
    assert sorted(counts.values())[-2:] == [3, 3]
    group = study.next_group()
    assert group is not None
    assert group.block == 0
    assert plan.configs[0] not in [member.config for member in group.members]
