"""One trial in an instance that is ready: its load job, the verdict about what came back, and its draft."""

import time
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bitbench.analysis.objectives import judge_objectives
from bitbench.analysis.prefix_cache import cached_share
from bitbench.analysis.trial import measure
from bitbench.loadgen.verdict import judge
from bitbench.measure.machine.engine_metrics import engine_metrics, read_metrics
from bitbench.measure.machine.gpu_state import disturbance, watch_gpus
from bitbench.measure.machine.memory import MemoryWatch
from bitbench.measure.machine.rapl import meter_energy
from bitbench.measure.run_context import RunContext
from bitbench.ports import Endpoint, Instance, LoadJob, LoadLost, Vocabulary
from bitbench.records.trial import NOT_THE_ENGINES, Energy, Failure, Outcome, TrialMetrics, TrialRecord
from bitbench.study.plan import Config, Point, Purpose
from bitbench.study.study import Study, Timeouts
from bitbench.study.workload import Workload

if TYPE_CHECKING:
    import pyarrow as pa

TrialKind = Literal["warmup", "measured"]

TOUCH = Workload(name="touch", concurrency=1, input_tokens=8, output_tokens=2)
# A connection breaks a moment before the exit of the process behind it can be seen.
DEATH_NOTICE_S = 3.0


@dataclass(frozen=True)
class TrialDraft:
    """A trial before the store has given it an id, with its request rows."""

    record: TrialRecord
    requests: "pa.Table | None" = None


@dataclass(frozen=True)
class ReadyInstance:
    """An instance that answers, and what the records call it."""

    id: str
    config: Config
    block: int
    instance: Instance
    endpoint: Endpoint
    vocabulary: Vocabulary  # of the model that it runs
    watch: MemoryWatch
    purpose: Purpose = Purpose.SELECTION  # of the block

    def record(self, point: Point, kind: TrialKind, index: int, failure: Failure | None) -> TrialRecord:
        """Of a trial in it, without figures."""
        return new_record(
            point,
            kind=kind,
            block=self.block,
            index=index,
            instance_id=self.id,
            failure=failure,
            purpose=self.purpose,
        )

    def explain(self, failure: Failure | None, kind: TrialKind) -> Failure | None:
        """Why what was asked of this instance does not count, from what the client saw; None where it does.

        Also where all went well: somebody else may have answered in the place of an engine that died.
        """
        if failure is not None and failure.outcome not in NOT_THE_ENGINES:
            return self.cause_of_death(failure)
        if (death := self.watch.failure or self.instance.failure()) is not None:
            return death
        return None if kind == "warmup" else failure  # a warm-up has no figures that could be ours

    def cause_of_death(self, failure: Failure) -> Failure:
        """What the process says, where the client only saw its connection break."""
        if self.watch.failure is not None:
            return self.watch.failure
        deadline = time.monotonic() + (DEATH_NOTICE_S if failure.outcome is Outcome.CRASHED else 0.0)
        while (death := self.instance.failure()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return death or failure


def run_trial(
    ready: ReadyInstance, workload: Workload, kind: TrialKind, index: int, run: RunContext, *, warm_up_round: int = 0
) -> TrialDraft:
    """Blocks until it has ended. Its prompts are the same for all configs, and never come twice in an instance."""
    study = run.plan.study
    point = Point(config=ready.config, workload=workload.name)
    asked = workload.warm_up if kind == "warmup" else workload
    run.observer.trial_started(point, index, warmup=kind == "warmup")
    job = load_job(
        ready.endpoint,
        asked,
        seed=trial_seed(study, workload, kind, block=ready.block, index=index, warm_up_round=warm_up_round),
        limits=study.limits,
        vocabulary=ready.vocabulary,
        folder=run.folder,
    )
    before = read_metrics(ready.endpoint)
    with watch_gpus(ready.instance.pid) as gpus, meter_energy(ready.instance.pid) as meter:
        try:
            result = run.load.run(job, run.observer.trial_running)
        except LoadLost as lost:
            return TrialDraft(ready.record(point, "measured", index, Failure(outcome=Outcome.LOST, cause=str(lost))))
    counted = engine_metrics(ready.endpoint, before, read_metrics(ready.endpoint))
    requests = result.requests
    energy = Energy(gpus.use.energy_j if gpus.use else None, meter.energy_j)
    failure = ready.explain(judge(requests, asked, result.health) or disturbance(gpus.use), kind)
    record = ready.record(point, "measured" if failure else kind, index, failure)  # a warm-up that fails is a result
    found = {
        "started_at": result.started_at,
        "duration_s": result.duration_s,
        "client": result.health,
        "sketched": dict(result.sketched),
        "memory": ready.watch.read(),
        "gpus": gpus.use,
        "cpu_energy_j": meter.energy_j,
        "engine_metrics": counted,
        "cached_share": cached_share(counted, requests),
        **figures_of(requests, study, energy, counts=failure is None),
    }
    return TrialDraft(record.model_copy(update=found), requests)


def touch(ready: ReadyInstance, run: RunContext) -> None:
    """One short request that does not count: what was frozen gets its caches and clocks back. If it fails, the trial
    after it will say why."""
    study = run.plan.study
    seed = (study.seed, zlib.crc32(TOUCH.name.encode()), ready.block)
    run.load.run(load_job(ready.endpoint, TOUCH, seed=seed, limits=study.limits, vocabulary=ready.vocabulary))


def trial_seed(
    study: Study, workload: Workload, kind: TrialKind, *, block: int, index: int, warm_up_round: int = 0
) -> tuple[int, ...]:
    """Of its requests: the same for all configs, and for no other trial of a config."""
    return (study.seed, zlib.crc32(workload.name.encode()), block, index, 1 + warm_up_round if kind == "warmup" else 0)


def figures_of(requests: "pa.Table", study: Study, energy: Energy, *, counts: bool) -> dict[str, object]:
    """What the record of a trial says about its rows. `counts`: it has a result."""
    return {
        "metrics": measure(requests, study.objectives, energy) if counts else TrialMetrics(),
        "objectives": judge_objectives(requests, study.objectives),
        "requests": requests.num_rows,
        "failed_requests": sum(status != "ok" for status in requests["status"].to_pylist()),
    }


def load_job(
    endpoint: Endpoint,
    workload: Workload,
    *,
    seed: tuple[int, ...],
    limits: Timeouts,
    vocabulary: Vocabulary | None = None,
    folder: Path = Path(),
) -> LoadJob:
    """Random tokens are from the endpoint's own vocabulary, or else from this one."""
    known = endpoint.vocabulary or vocabulary
    assert known is not None, "an engine that runs no variant of ours says what tokens it takes"
    return LoadJob(
        endpoint=endpoint,
        workload=workload,
        vocabulary=known,
        seed=seed,
        request_timeout_s=limits.request,
        stall_timeout_s=limits.stall,
        folder=folder.absolute(),  # the load client works in another one
    )


def new_record(
    point: Point,
    *,
    kind: TrialKind,
    block: int,
    index: int,
    instance_id: str,
    failure: Failure | None,
    purpose: Purpose = Purpose.SELECTION,
) -> TrialRecord:
    """Without figures: all there is of a trial whose instance never came up."""
    return TrialRecord(
        id="",
        kind=kind,
        point=point,
        block=block,
        index=index,
        instance_id=instance_id,
        started_at=now(),
        duration_s=0.0,
        outcome=failure.outcome if failure else Outcome.OK,
        cause=failure.cause if failure else None,
        log_lines=failure.log_lines if failure else (),
        purpose=purpose,
    )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
