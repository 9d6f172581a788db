"""Trials on an endpoint that runs already: a sweep in interleaved rounds, or a search for the highest rate.

A study's visit starts an instance, warms it up and runs all trials of a workload in it. Here nothing is started, so the
order can be the best one against drift: in each round every point of the sweep once, shuffled anew. What the server is
warm for is unknown: before its first trial a point in closed loop has rounds of warm-up until it is steady. All trials
belong to one instance; their interval says nothing about another start, and the report says so.
"""

import time
from collections import Counter
from dataclasses import replace
from random import Random

from bitbench.analysis.objectives import held
from bitbench.analysis.rate_search import next_rate, rate_trials
from bitbench.measure.budget import OneBlock
from bitbench.measure.load_study import NextPoint
from bitbench.measure.machine.memory import MemoryWatch
from bitbench.measure.progress import CLIENT_BOUND_REPEATS, Progress, excused
from bitbench.measure.run_context import RunContext
from bitbench.measure.trial import ReadyInstance, TrialDraft, TrialKind, now, run_trial
from bitbench.measure.warm_up import is_steady, wants_round
from bitbench.ports import Endpoint, Instance, InstanceFailed
from bitbench.records.folder import Writer
from bitbench.records.trial import NOT_THE_ENGINES, InstanceRecord, Outcome, TrialRecord
from bitbench.study.plan import Plan, Point
from bitbench.study.search import SearchLimits
from bitbench.study.workload import Workload
from bitbench.study.write_study import study_text
from bitbench.util.errors import LoadError
from bitbench.util.units import show_seconds

BLOCK = 0  # the endpoint is not started anew, so there is only one
FREE_IT = "free a core, or send from another machine (--on), then resume with --into"


class EndpointRun:
    """What is recorded already is not run again."""

    def __init__(self, run: RunContext, writer: Writer) -> None:
        self._run, self._writer = run, writer
        recorded = writer.folder.trials()
        self._trials = [trial for trial in recorded if trial.kind == "measured"]
        self._warm_ups = Counter(trial.point for trial in recorded if trial.kind == "warmup")
        self._warm: set[Point] = set()  # by this run: the server may have been started again since the last
        pace = OneBlock(run.plan.study.measure.trials.min)
        self._progress = Progress(run.plan, pace, excused=excused(self._trials))
        self._progress.add(self._trials)

    @property
    def _plan(self) -> Plan:
        return self._run.plan

    def sweep(self) -> None:
        """Every point as often as the study says, in rounds."""
        ready = self._begin()
        while wanted := [workload for workload in self._plan.study.workloads if self._wants(workload)]:
            Random(f"{self._plan.study.seed}/{len(self._trials)}").shuffle(wanted)
            for workload in wanted:
                self._trial(workload, ready)

    def climb(self, next_point: NextPoint) -> None:
        """Trials at the points that `next_point` asks for; each new one becomes a workload of the study."""
        ready = self._begin()
        while (workload := next_point(self._plan.study, self._trials)) is not None:
            self._trial(self._added(workload), ready)

    def search(self, limits: SearchLimits) -> None:
        """Trials at the rates that `analysis.rate_search` asks for; each new rate becomes a workload of the study."""
        ready = self._begin()
        self._update_lock(search=limits)
        late, is_told = 0, False
        while (rate := next_rate(rate_trials(self._plan.study, self._trials), limits)) is not None:
            record = self._trial(self._added(workload_at(self._plan.study.workloads[0], rate)), ready)
            late = late + 1 if held(record, self._plan.study.objectives) is None else 0
            if late > CLIENT_BOUND_REPEATS:
                kept = [trial.rate for trial in rate_trials(self._plan.study, self._trials) if trial.holds]
                if not kept:
                    raise LoadError(f"this machine cannot send {rate:g} requests/s on time: {record.cause}")
                if is_told:
                    self._run.observer.warn(
                        f"the search stopped: this machine is too busy to send requests on time; {FREE_IT}"
                    )
                    return
                self._run.observer.warn(
                    f"this client cannot send {rate:g} requests/s on time; higher rates are skipped"
                )
                late, is_told = 0, True
                limits = limits.model_copy(update={"highest": max(kept)})
                self._update_lock(search=limits)

    def _begin(self) -> ReadyInstance:
        """The endpoint as this run meets it: an instance in the records."""
        config = self._plan.configs[0]
        instance_id, log_file = self._writer.new_instance()
        started = time.monotonic()
        instance = self._run.start(config, log_file, occasion=str(BLOCK))
        endpoint, vocabulary = self._wait(instance), self._run.vocabulary_of(config)
        watch = MemoryWatch(None, None, instance.stop)  # it is not our process: there is nothing to see
        ready = ReadyInstance(instance_id, config, BLOCK, instance, endpoint, vocabulary, watch)
        self._writer.append_instance(
            InstanceRecord(
                id=instance_id,
                config=config,
                block=BLOCK,
                started_at=now(),
                ready_s=time.monotonic() - started,
                outcome=Outcome.OK,
                facts=instance.facts(),
                log_file=f"logs/{log_file.name}",
            )
        )
        objectives = self._plan.study.objectives
        counted = [trial for trial in self._trials if trial.outcome not in NOT_THE_ENGINES or held(trial, objectives)]
        self._run.observer.study_started(self._plan, len(counted))
        return ready

    def _wait(self, instance: Instance) -> Endpoint:
        try:
            return instance.wait_ready(self._plan.study.limits.start)
        except InstanceFailed as failed:
            raise LoadError(f"{failed.failure.cause}; the same command with --into resumes") from None

    def _wants(self, workload: Workload) -> bool:
        return self._progress.wants_trial(self._point(workload), BLOCK)

    def _point(self, workload: Workload) -> Point:
        return Point(config=self._plan.configs[0], workload=workload.name)

    def _trial(self, workload: Workload, ready: ReadyInstance) -> TrialRecord:
        draft = self._warm_up(workload, ready) or self._draft(workload, ready, "measured")
        record = self._writer.append_trial(draft.record, draft.requests)
        self._trials.append(record)
        self._progress.add([record])
        self._run.observer.trial_finished(record)
        if record.outcome is Outcome.CRASHED:
            self._wait(ready.instance)  # gone for good, or did it only break this trial?
        return record

    def _warm_up(self, workload: Workload, ready: ReadyInstance) -> TrialDraft | None:
        """Before the first trial of a point in this run. One that fails is given back: the result of its point."""
        point, rounds = self._point(workload), list[TrialRecord]()
        if point in self._warm or workload.warm_up is workload:
            return None
        self._warm.add(point)
        while wants_round(workload, rounds, until_steady=True):
            draft = self._draft(workload, ready, "warmup")
            if draft.record.kind != "warmup":
                return draft
            self._warm_ups[point] += 1
            rounds.append(self._writer.append_trial(draft.record, draft.requests))
        if not is_steady(rounds):
            times = " and ".join(show_seconds(round_.metrics.latency_s) for round_ in rounds[-2:])
            self._run.observer.warn(
                f"{workload.name} is not steady after {len(rounds)} rounds of warm-up (latency {times} in the last "
                "two); its first trial may be slower than the others"
            )
        return None

    def _draft(self, workload: Workload, ready: ReadyInstance, kind: TrialKind) -> TrialDraft:
        point = self._point(workload)
        index = len(self._progress.trials_of(point, BLOCK))
        return run_trial(ready, workload, kind, index, self._run, warm_up_round=self._warm_ups[point])

    def _added(self, workload: Workload) -> Workload:
        """A new one is added to the plan and to the study on disk before it is tried."""
        study, point = self._plan.study, self._point(workload)
        if point not in self._plan.points:
            grown = study.model_copy(update={"workloads": (*study.workloads, workload)})
            plan = self._plan.model_copy(update={"study": grown, "points": (*self._plan.points, point)})
            self._run = replace(self._run, plan=plan)
            self._writer.write_study(study_text(grown))
            self._update_lock(plan=plan)
        return workload

    def _update_lock(self, **facts: Plan | SearchLimits) -> None:
        lock = self._writer.folder.lock()
        assert lock is not None, "a run begins by writing it"
        self._writer.write_lock(lock.model_copy(update=facts))


def workload_at(like: Workload, rate: float) -> Workload:
    """The same requests at another rate."""
    return like.model_copy(update={"name": f"rate-{rate:g}", "arrival": like.arrival.model_copy(update={"rate": rate})})
