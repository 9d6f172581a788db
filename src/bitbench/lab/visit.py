"""One visit: start an instance, warm it up, run trials of its workloads until there are enough, stop it.

A visit touches no study folder. It yields drafts, and whoever drives it stores them and updates `progress` before
asking for the next one: here that is `lab`, on a cluster it would be the node that owns the folder.
"""

import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bitbench.core.cell import Cell, Plan, Visit
from bitbench.core.ports import (
    Endpoint,
    Engine,
    Instance,
    InstanceFailed,
    Launch,
    LoadClient,
    LoadJob,
    Observer,
    Vocabulary,
)
from bitbench.core.recorded.trial import Failure, InstanceRecord, Outcome, TrialMetrics, TrialRecord
from bitbench.core.recorded.variant import Variant
from bitbench.lab.quality import QualityDraft, QualityKit, measure_contender, new_draft, with_failure
from bitbench.load.secrets import without_key
from bitbench.load.verdict import judge
from bitbench.planning.expand import launch_size
from bitbench.planning.schedule import Progress
from bitbench.probes.device_memory import find_devices
from bitbench.probes.memory import MemoryWatch
from bitbench.statistics.objectives import judge_objectives
from bitbench.statistics.trial import measure

if TYPE_CHECKING:
    import pyarrow as pa

# For an engine that does not look at its tokens; any model has at least so many.
DEFAULT_VOCABULARY = 32_000
# A connection breaks a moment before the exit of the process behind it can be seen.
DEATH_NOTICE_S = 3.0
# After these the instance cannot be trusted with another workload.
ENDS_THE_VISIT = frozenset({Outcome.CRASHED, Outcome.TIMEOUT, Outcome.OOM})


@dataclass(frozen=True)
class TrialDraft:
    """A trial before the store has given it an id, with its request rows."""

    record: TrialRecord
    requests: "pa.Table | None" = None


Draft = InstanceRecord | TrialDraft | QualityDraft


@dataclass(frozen=True)
class Bench:
    """The tools on the table: engines, their interpreters, and the load generator."""

    engines: Mapping[str, Engine]
    python_of: Callable[[str], Path]
    load: LoadClient
    folder: Path = Path()  # of the study file: what file names in it are relative to
    quality: Mapping[str, QualityKit] = field(default_factory=dict)  # by model


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
        instance = self._engine.start(self._launch())
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
                    contender=self.visit.contender,
                    block=self.visit.block,
                    started_at=started_at,
                    ready_s=time.monotonic() - started,
                    outcome=Outcome.OK,
                    facts=instance.facts(),
                    memory=watch.read(),
                    log_file=f"logs/{self.log_file.name}",
                )
                for workload in self.visit.workloads:
                    outcome = yield from self._run_cell(workload, instance, endpoint, watch)
                    if outcome in ENDS_THE_VISIT:
                        return
                if self.progress.wants_quality(self.visit.contender):
                    yield self._quality(instance, endpoint, watch)
        finally:
            instance.stop()

    @property
    def _engine(self) -> Engine:
        return self.bench.engines[self.plan.study.engine(self.visit.contender.engine).engine]

    @property
    def _variant(self) -> Variant:
        return self.plan.variant(self.visit.contender.variant)

    def _launch(self) -> Launch:
        setup = self.plan.study.engine(self.visit.contender.engine)
        environment = self._engine.environment
        context_tokens, concurrency = launch_size(self.plan, setup)
        return Launch(
            setup=setup,
            variant=self._variant,
            python=self.bench.python_of(environment) if environment else None,
            log_file=self.log_file,
            context_tokens=context_tokens,
            concurrency=concurrency,
            seed=zlib.crc32(f"{self.plan.study.seed}/{self.visit.block}/{self.visit.contender.name}".encode()),
            top_tokens=self.plan.study.quality.top_tokens if self.plan.study.quality else 0,
        )

    def _never_ready(self, failure: Failure, started_at: str) -> Iterator[Draft]:
        """An instance that did not come up is the result of each of its cells."""
        yield InstanceRecord(
            id=self.instance_id,
            contender=self.visit.contender,
            block=self.visit.block,
            started_at=started_at,
            outcome=failure.outcome,
            cause=failure.cause,
            log_lines=failure.log_lines,
            log_file=f"logs/{self.log_file.name}",
        )
        for workload in self.visit.workloads:
            cell = Cell(contender=self.visit.contender, workload=workload)
            yield TrialDraft(
                self._record(cell, "measured", len(self.progress.trials_of(cell, self.visit.block)), failure)
            )
        if self.progress.wants_quality(self.visit.contender):
            draft = new_draft(self.visit.contender, self.instance_id, started_at)
            yield QualityDraft(with_failure(draft, failure, 0.0))

    def _run_cell(
        self, workload: str, instance: Instance, endpoint: Endpoint, watch: MemoryWatch
    ) -> Generator[Draft, None, Outcome]:
        """One warm-up, then trials until there are enough. Returns how the last one ended."""
        cell = Cell(contender=self.visit.contender, workload=workload)
        if not self.progress.wants_trial(cell, self.visit.block):
            return Outcome.OK  # the budget ran out while the instance started, or during its other workloads
        warm_up = self.trial(cell, "warmup", instance, endpoint, watch)
        yield warm_up
        outcome = warm_up.record.outcome
        while outcome in (Outcome.OK, Outcome.CLIENT_BOUND) and self.progress.wants_trial(cell, self.visit.block):
            trial = self.trial(cell, "measured", instance, endpoint, watch)
            yield trial
            outcome = trial.record.outcome
        return outcome

    def _quality(self, instance: Instance, endpoint: Endpoint, watch: MemoryWatch) -> QualityDraft:
        """The quality of what runs here, after its speed: then it can disturb nothing."""
        measured = measure_contender(
            endpoint,
            plan=self.plan,
            engine=self._engine,
            kit=self.bench.quality[self._variant.model],
            draft=new_draft(self.visit.contender, self.instance_id, now()),
            on_step=lambda step: self.observer.quality_running(self.visit, step),
        )
        record = measured.record
        if record.outcome is Outcome.OK:
            return measured
        failure = Failure(outcome=record.outcome, cause=record.cause or "")
        failure = watch.failure or _cause_of_death(instance, failure) or failure
        return QualityDraft(with_failure(record, failure, record.duration_s))

    def trial(
        self,
        cell: Cell,
        kind: Literal["warmup", "measured"],
        instance: Instance,
        endpoint: Endpoint,
        watch: MemoryWatch,
    ) -> TrialDraft:
        """One trial in an instance that is ready."""
        index = len(self.progress.trials_of(cell, self.visit.block))
        self.observer.trial_started(self.visit, cell.workload, index, warmup=kind == "warmup")
        result = self.bench.load.run(self._job(cell, kind, index, endpoint), self.observer.trial_running)
        requests = without_key(result.requests, endpoint.api_key)
        workload = self.plan.study.workload(cell.workload)
        failure = judge(requests, workload, result.health)
        if failure is not None and kind == "warmup" and failure.outcome is Outcome.CLIENT_BOUND:
            failure = None  # a warm-up has no figures that could be ours
        if failure is not None and failure.outcome is not Outcome.CLIENT_BOUND:
            failure = watch.failure or _cause_of_death(instance, failure) or failure
            kind = "measured"  # a warm-up that fails is the result of its cell
        record = self._record(cell, kind, index, failure).model_copy(
            update={
                "started_at": result.started_at,
                "duration_s": result.duration_s,
                "metrics": TrialMetrics() if failure else measure(requests, self.plan.study.objectives),
                "client": result.health,
                "objectives": judge_objectives(requests, self.plan.study.objectives),
                "requests": requests.num_rows,
                "failed_requests": sum(status != "ok" for status in requests["status"].to_pylist()),
                "memory": watch.read(),
            }
        )
        return TrialDraft(record, requests)

    def _job(self, cell: Cell, kind: str, index: int, endpoint: Endpoint) -> LoadJob:
        """The prompts of a trial are the same for all contenders, and never come twice in an instance."""
        study, facts = self.plan.study, self._variant.facts
        return LoadJob(
            endpoint=endpoint,
            workload=study.workload(cell.workload),
            vocabulary=endpoint.vocabulary
            or Vocabulary(facts.vocabulary_size or DEFAULT_VOCABULARY, facts.special_token_ids),
            seed=(study.seed, zlib.crc32(cell.workload.encode()), self.visit.block, index, int(kind == "warmup")),
            request_timeout_s=study.limits.request,
            stall_timeout_s=study.limits.stall,
            folder=self.bench.folder,
        )

    def _record(
        self, cell: Cell, kind: Literal["warmup", "measured"], index: int, failure: Failure | None
    ) -> TrialRecord:
        return TrialRecord(
            id="",
            kind=kind,
            cell=cell,
            block=self.visit.block,
            index=index,
            instance_id=self.instance_id,
            started_at=now(),
            duration_s=0.0,
            outcome=failure.outcome if failure else Outcome.OK,
            cause=failure.cause if failure else None,
            log_lines=failure.log_lines if failure else (),
        )


def _cause_of_death(instance: Instance, failure: Failure) -> Failure | None:
    """What the process says, where the client only saw its connection break."""
    deadline = time.monotonic() + (DEATH_NOTICE_S if failure.outcome is Outcome.CRASHED else 0.0)
    while (death := instance.failure()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return death


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
