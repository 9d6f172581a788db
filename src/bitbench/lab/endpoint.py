"""Trials on an endpoint that runs already: a sweep in interleaved rounds, or a search for the highest rate.

A study's visit starts an instance, warms it up and runs all trials of a workload in it. Here nothing is started, so
nothing has to be warmed up again, and the order can be the best one against drift: in each round every point of the
sweep once, shuffled anew. All trials belong to one instance; their interval says nothing about another start, and the
report says so.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bitbench.core.asked.search import SearchLimits
from bitbench.core.asked.workload import Workload
from bitbench.core.cell import Cell, Plan, Visit
from bitbench.core.ports import Endpoint, Instance, InstanceFailed, Launch, Observer
from bitbench.core.recorded.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.ground.errors import LoadError
from bitbench.lab.visit import Bench, VisitRunner, now
from bitbench.planning.expand import launch_size
from bitbench.planning.schedule import CLIENT_BOUND_REPEATS, Progress
from bitbench.planning.write_study import study_text
from bitbench.probes.memory import MemoryWatch
from bitbench.statistics.objectives import held
from bitbench.statistics.rate_search import next_rate, rate_trials
from bitbench.statistics.stopping import enough_instances, enough_trials
from bitbench.statistics.summarize import headline_value
from bitbench.store.folder import Writer

BLOCK = 0  # the endpoint is not started anew, so there is only one


@dataclass(frozen=True)
class Session:
    """The endpoint as one run meets it: an instance in the records."""

    instance: Instance
    endpoint: Endpoint
    instance_id: str
    log_file: Path


class EndpointRun:
    """What is recorded already is not run again."""

    def __init__(self, plan: Plan, bench: Bench, writer: Writer, observer: Observer) -> None:
        self._plan = plan
        self._bench = bench
        self._writer = writer
        self._observer = observer
        headline = plan.study.measure.headline
        self._progress = Progress(
            plan,
            headline=lambda trial: headline_value(trial, headline),
            enough_trials=enough_trials,
            enough_instances=enough_instances,
        )
        self._trials = writer.folder.trials()
        self._progress.add(self._trials)

    def sweep(self) -> None:
        """Every point as often as the study says, in rounds."""
        session = self._begin()
        while wanted := [cell for cell in self._plan.cells if self._progress.wants_trial(cell, BLOCK)]:
            Random(f"{self._plan.study.seed}/{len(self._trials)}").shuffle(wanted)
            for cell in wanted:
                self._trial(cell, session)

    def search(self, limits: SearchLimits) -> None:
        """Trials at the rates that `statistics.rate_search` asks for; each new rate becomes a workload of the study."""
        session = self._begin()
        self._update_lock(search=limits)
        late = 0
        while (rate := next_rate(rate_trials(self._plan.study, self._trials), limits)) is not None:
            record = self._trial(self._cell_at(rate), session)
            late = late + 1 if held(record, self._plan.study.objectives) is None else 0
            if late > CLIENT_BOUND_REPEATS:
                kept = [trial.rate for trial in rate_trials(self._plan.study, self._trials) if trial.holds]
                if not kept:
                    raise LoadError(f"this machine cannot send {rate:g} requests/s on time: {record.cause}")
                self._observer.warn(f"this client cannot send {rate:g} requests/s on time; no higher rate is tried")
                limits = limits.model_copy(update={"highest": max(kept)})
                self._update_lock(search=limits)

    def _begin(self) -> Session:
        contender = self._plan.contenders[0]
        setup = self._plan.study.engine(contender.engine)
        instance_id, log_file = self._writer.new_instance()
        context_tokens, concurrency = launch_size(self._plan, setup)
        launch = Launch(
            setup=setup,
            variant=self._plan.variant(contender.variant),
            python=None,
            log_file=log_file,
            context_tokens=context_tokens,
            concurrency=concurrency,
            seed=self._plan.study.seed,
        )
        started = time.monotonic()
        instance = self._bench.engines[setup.engine].start(launch)
        session = Session(instance, self._ready(instance), instance_id, log_file)
        self._writer.append_instance(
            InstanceRecord(
                id=instance_id,
                contender=contender,
                block=BLOCK,
                started_at=now(),
                ready_s=time.monotonic() - started,
                outcome=Outcome.OK,
                facts=instance.facts(),
                log_file=f"logs/{log_file.name}",
            )
        )
        objectives = self._plan.study.objectives
        counted = [one for one in self._trials if one.outcome is not Outcome.CLIENT_BOUND or held(one, objectives)]
        self._observer.study_started(self._plan, len(counted))
        return session

    def _ready(self, instance: Instance) -> Endpoint:
        try:
            return instance.wait_ready(self._plan.study.limits.start)
        except InstanceFailed as failed:
            raise LoadError(f"{failed.failure.cause}; the same command with --into goes on from here") from None

    def _trial(self, cell: Cell, session: Session) -> TrialRecord:
        visit = Visit(block=BLOCK, contender=cell.contender, workloads=(cell.workload,))
        runner = VisitRunner(
            visit, self._plan, self._bench, self._progress, self._observer, session.instance_id, session.log_file
        )
        with MemoryWatch(None, None, session.instance.stop) as watch:
            draft = runner.trial(cell, "measured", session.instance, session.endpoint, watch)
        record = self._writer.append_trial(draft.record, draft.requests)
        self._trials.append(record)
        self._progress.add([record])
        self._observer.trial_finished(record)
        if record.outcome is Outcome.CRASHED:
            self._ready(session.instance)  # gone for good, or did it only break this trial?
        return record

    def _cell_at(self, rate: float) -> Cell:
        """The cell of this rate; a new one is added to the plan and to the study on disk before it is tried."""
        study, contender = self._plan.study, self._plan.contenders[0]
        workload = workload_at(study.workloads[0], rate)
        cell = Cell(contender=contender, workload=workload.name)
        if cell not in self._plan.cells:
            grown = study.model_copy(update={"workloads": (*study.workloads, workload)})
            self._plan = self._plan.model_copy(update={"study": grown, "cells": (*self._plan.cells, cell)})
            self._writer.write_study(study_text(grown))
            self._update_lock(plan=self._plan)
        return cell

    def _update_lock(self, **facts: Plan | SearchLimits) -> None:
        lock = self._writer.folder.lock()
        assert lock is not None, "a run begins by writing it"
        self._writer.write_lock(lock.model_copy(update=facts))


def workload_at(like: Workload, rate: float) -> Workload:
    """The same requests at another rate."""
    return like.model_copy(update={"name": f"rate-{rate:g}", "arrival": like.arrival.model_copy(update={"rate": rate})})
