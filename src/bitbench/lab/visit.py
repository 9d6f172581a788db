"""One visit: start an instance, warm it up, run trials of its workloads until there are enough, stop it.

A visit touches no study folder. It yields drafts, and whoever drives it stores them and updates `progress` before
asking for the next one: here that is `lab.study`, on a cluster it would be the node that owns the folder.
"""

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from bitbench.core.asked.workload import Workload
from bitbench.core.cell import Cell, Plan, Visit
from bitbench.core.ports import InstanceFailed, Observer
from bitbench.core.recorded.trial import Failure, InstanceRecord, Outcome
from bitbench.core.recorded.variant import Variant
from bitbench.lab.bench import Bench
from bitbench.lab.quality import QualityDraft, measure_contender, new_draft, with_failure
from bitbench.lab.trial import ReadyInstance, TrialDraft, TrialRunner, new_record, now
from bitbench.planning.schedule import Progress
from bitbench.probes.device_memory import find_devices
from bitbench.probes.memory import MemoryWatch

# After these the instance cannot be trusted with another workload.
ENDS_THE_VISIT = frozenset({Outcome.CRASHED, Outcome.TIMEOUT, Outcome.OOM})

Draft = InstanceRecord | TrialDraft | QualityDraft


@dataclass(frozen=True)
class VisitRunner:
    visit: Visit
    plan: Plan
    bench: Bench
    progress: Progress
    observer: Observer
    instance_id: str
    log_file: Path

    def run(self) -> Iterator[Draft]:
        started_at, started = now(), time.monotonic()
        contender, block = self.visit.contender, self.visit.block
        instance = self.bench.start(self.plan, contender, self.log_file, occasion=str(block))
        try:
            limit = self.plan.study.limits.memory
            with MemoryWatch(instance.pid, limit, instance.stop, find_devices()) as watch:
                try:
                    endpoint = instance.wait_ready(self.plan.study.limits.start)
                except InstanceFailed as failed:
                    yield from self._never_ready(watch.failure or failed.failure, started_at)
                    return
                yield InstanceRecord(
                    id=self.instance_id,
                    contender=contender,
                    block=block,
                    started_at=started_at,
                    ready_s=time.monotonic() - started,
                    outcome=Outcome.OK,
                    facts=instance.facts(),
                    memory=watch.read(),
                    log_file=f"logs/{self.log_file.name}",
                )
                ready = ReadyInstance(
                    self.instance_id, contender, block, instance, endpoint, self._variant.facts, watch
                )
                yield from self._measure(ready)
        finally:
            instance.stop()

    @property
    def _variant(self) -> Variant:
        return self.plan.variant(self.visit.contender.variant)

    def _never_ready(self, failure: Failure, started_at: str) -> Iterator[Draft]:
        """An instance that did not come up is the result of each of its cells."""
        contender, block = self.visit.contender, self.visit.block
        yield InstanceRecord(
            id=self.instance_id,
            contender=contender,
            block=block,
            started_at=started_at,
            outcome=failure.outcome,
            cause=failure.cause,
            log_lines=failure.log_lines,
            log_file=f"logs/{self.log_file.name}",
        )
        for workload in self.visit.workloads:
            cell = Cell(contender=contender, workload=workload.name)
            index = len(self.progress.trials_of(cell, block))
            yield TrialDraft(
                new_record(
                    cell, kind="measured", block=block, index=index, instance_id=self.instance_id, failure=failure
                )
            )
        if self.progress.wants_quality(contender):
            draft = new_draft(contender, self.instance_id, started_at)
            yield QualityDraft(with_failure(draft, failure, 0.0))

    def _measure(self, ready: ReadyInstance) -> Iterator[Draft]:
        """Speed, then quality: so that it can disturb nothing."""
        trials = TrialRunner(self.plan.study, self.bench.load, self.bench.folder, self.observer)
        for workload in self.visit.workloads:
            outcome = yield from self._run_cell(workload, ready, trials)
            if outcome in ENDS_THE_VISIT:
                return
        if self.progress.wants_quality(self.visit.contender):
            yield self._quality(ready)

    def _run_cell(
        self, workload: Workload, ready: ReadyInstance, trials: TrialRunner
    ) -> Generator[Draft, None, Outcome]:
        """One warm-up, then trials until there are enough. Returns how the last one ended."""
        cell, block = Cell(contender=ready.contender, workload=workload.name), ready.block
        if not self.progress.wants_trial(cell, block):
            return Outcome.OK  # the budget ran out while the instance started, or during its other workloads
        warm_up = trials.run(ready, workload, "warmup", len(self.progress.trials_of(cell, block)))
        yield warm_up
        outcome = warm_up.record.outcome
        while outcome in (Outcome.OK, Outcome.CLIENT_BOUND) and self.progress.wants_trial(cell, block):
            trial = trials.run(ready, workload, "measured", len(self.progress.trials_of(cell, block)))
            yield trial
            outcome = trial.record.outcome
        return outcome

    def _quality(self, ready: ReadyInstance) -> QualityDraft:
        measured = measure_contender(
            ready.endpoint,
            plan=self.plan,
            engine=self.bench.engine_of(self.plan, ready.contender),
            kit=self.bench.quality[self._variant.model],
            draft=new_draft(ready.contender, ready.id, now()),
            on_step=lambda step: self.observer.quality_running(ready.contender, step),
        )
        record = measured.record
        if record.outcome is Outcome.OK:
            return measured
        failure = ready.cause_of_death(Failure(outcome=record.outcome, cause=record.cause or ""))
        return QualityDraft(with_failure(record, failure, record.duration_s))
