"""One trial in an instance that is ready: the load job, the watches around it, and its verdict."""

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from bitbench.analysis.objectives import judge_objectives
from bitbench.analysis.trial import cached_share, compute_trial_metrics
from bitbench.loadgen.verdict import CLOCK_STEP_S, list_moved_metrics, load_verdict
from bitbench.machine.host import OtherWork
from bitbench.machine.watches import MemoryWatch, find_gpu_disturbance, watch_gpus
from bitbench.planning.plan import complete_engine_setup, list_engine_loads
from bitbench.ports import (
    Endpoint,
    Engine,
    Instance,
    Launch,
    Load,
    LoadClient,
    LoadJob,
    LoadResult,
    Observer,
    Vocabulary,
)
from bitbench.records.request_rows import RequestParts
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import (
    NOT_THE_ENGINES,
    ClientHealth,
    EngineMetrics,
    Failure,
    GpuUse,
    Outcome,
    TrialMetrics,
    TrialRecord,
)
from bitbench.running.quality import QualityKit
from bitbench.study.hardware import Capability
from bitbench.study.objective import Objective
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Study, Timeouts
from bitbench.study.variant import NO_MODEL
from bitbench.study.workload import Workload
from bitbench.util.http.connection import Samples, fetch_samples


def read_engine_metrics(endpoint: Endpoint) -> Samples | None:
    """Return the server's own metrics, or None if it has none or does not answer.

    A missing answer never fails a trial.
    """
    return fetch_samples(endpoint.url, endpoint.api_key) if endpoint.metrics else None


def engine_metrics(
    endpoint: Endpoint, before: Samples | None, after: Samples | None
) -> EngineMetrics | None:
    """Return how much the counters grew and the last values of the gauges.

    The result is None if a reading is missing or has none of the endpoint's metrics.
    """
    if before is None or after is None:
        return None
    raw: dict[str, float | None] = {}
    metrics: dict[str, float | None] = {}
    for metric, name in endpoint.metrics.items():
        kind = after.kinds.get(name)
        if kind == "histogram":
            total = _compute_growth(before, after, f"{name}_sum")
            count = _compute_growth(before, after, f"{name}_count")
            raw |= {f"{name}_sum": total, f"{name}_count": count}
            metrics[metric] = total / count if total is not None and count else None
        else:
            is_counter = kind == "counter"
            raw[name] = (
                _compute_growth(before, after, name) if is_counter else after.values.get(name)
            )
            metrics[metric] = raw[name]
    present = {name: value for name, value in raw.items() if value is not None}
    return EngineMetrics.model_validate({**metrics, "raw": present}) if present else None


def _compute_growth(before: Samples, after: Samples, name: str) -> float | None:
    """Return how much a counter grew, or None if it is missing or was reset."""
    value = after.values.get(name)
    if value is None:
        return None
    growth = value - before.values.get(name, 0.0)
    return growth if growth >= 0 else None


# Vocabulary size for an engine that ignores token values. Every model has at least this many.
DEFAULT_VOCABULARY = 32_000


@dataclass(frozen=True)
class RunContext:
    """Everything that the trials of a run share. It also starts the instances."""

    plan: Plan
    engines: Mapping[str, Engine]
    python_of: Callable[[str], Path]
    load: LoadClient
    observer: Observer
    folder: Path = Path()  # folder of the study file, to which its paths are relative
    rows_folder: Path | None = None  # as `LoadJob.rows_folder`
    quality: Mapping[str, QualityKit] = field(default_factory=dict)  # by model
    capability: Capability | None = None  # the lowest among the GPUs here
    # Token ids of a model's ordinary words, by model.
    words_of: Callable[[str], tuple[int, ...]] = lambda _: ()
    # Engines compute on GPUs: watch the GPUs, and expect the first requests to compile or tune
    # kernels. *Not yet run on a GPU*
    on_device: bool = False

    def get_engine(self, config: Config) -> Engine:
        return self.engines[self.plan.study.engine(config.engine).engine]

    def get_vocabulary(self, config: Config) -> Vocabulary:
        """Return the vocabulary of the model, so that all of its variants get the same prompts."""
        variant = self.plan.variant(config.variant)
        if variant.model == NO_MODEL:
            return Vocabulary(DEFAULT_VOCABULARY)
        return Vocabulary(
            variant.facts.vocabulary_size or DEFAULT_VOCABULARY,
            variant.facts.special_token_ids,
            self.words_of(variant.model),
        )

    def start(
        self,
        config: Config,
        log_file: Path,
        *,
        occasion: str,
        loads: tuple[Load, ...] | None = None,
        trace_folder: Path | None = None,
    ) -> Instance:
        """Start an instance without waiting for it.

        `occasion` is a part of its seed. `loads` default to the loads of the study.
        """
        plan = self.plan
        engine = self.get_engine(config)
        setup = plan.study.engine(config.engine)
        environment = setup.environment(engine.environment)
        python: Path | None = None
        if environment:
            python = self.python_of(environment)
        quality = plan.study.quality
        top_tokens = quality.top_tokens if quality else 0
        return engine.start(
            Launch(
                setup=complete_engine_setup(setup, engine),
                variant=plan.variant(config.variant),
                python=python,
                log_file=log_file,
                loads=loads or list_engine_loads(plan, setup),
                seed=zlib.crc32(f"{plan.study.seed}/{occasion}/{config.name}".encode()),
                dtype=plan.chosen_dtypes.get(config),
                top_tokens=top_tokens,
                trace_folder=trace_folder,
                capability=self.capability,
            )
        )


TrialKind = Literal["warmup", "measured"]

TOUCH = Workload(name="touch", concurrency=1, input_tokens=8, output_tokens=2)
# A connection breaks a moment before the exit of the process behind it becomes visible.
DEATH_NOTICE_S = 3.0


@dataclass(frozen=True)
class TrialDraft:
    """A trial before the store has given it an id, with its request rows."""

    record: TrialRecord
    rows: RequestParts | None = None


@dataclass(frozen=True)
class ReadyInstance:
    """An instance that answers, with its id and its config."""

    id: str
    config: Config
    block: int
    instance: Instance
    endpoint: Endpoint
    vocabulary: Vocabulary  # of the model that it runs
    watch: MemoryWatch

    def explain(self, failure: Failure | None, kind: TrialKind) -> Failure | None:
        """Return why a result of this instance does not count, or None if it counts.

        `failure` is what the client saw. The instance is checked even if the client saw none:
        another server may have answered on the port of an engine that died.
        """
        if failure is not None and failure.outcome not in NOT_THE_ENGINES:
            return self.find_cause_of_death(failure)
        death = self.watch.failure or self.instance.failure()
        if death is not None:
            return death
        return None if kind == "warmup" else failure  # a warm-up has no metrics to distort

    def find_cause_of_death(self, failure: Failure) -> Failure:
        """Return the failure of the process, or else `failure`, which is what the client saw."""
        if self.watch.failure is not None:
            return self.watch.failure
        notice_s = DEATH_NOTICE_S if failure.outcome is Outcome.CRASHED else 0.0
        deadline = time.monotonic() + notice_s
        while (death := self.instance.failure()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return death or failure


def run_trial(
    ready: ReadyInstance,
    workload: Workload,
    kind: TrialKind,
    index: int,
    run: RunContext,
    *,
    warm_up_round: int = 0,
    visit: int = 0,
    earlier: Sequence[TrialMetrics] = (),
) -> TrialDraft:
    """Run one trial in an instance that is ready, and return its record and request rows.

    All configs get the same prompts, and an instance never gets a prompt twice. `visit` counts the
    earlier runs on a server that keeps running: it may remember prompts of an interrupted trial.
    `earlier` has the other metrics of this point, as in `loadgen.verdict.list_moved_metrics`.
    """
    study = run.plan.study
    point = Point(config=ready.config, workload=workload.name)
    sent_workload = workload.warm_up if kind == "warmup" else workload
    run.observer.trial_started(point, index, warmup=kind == "warmup")
    seed = _derive_trial_seed(
        study,
        workload,
        kind,
        block=ready.block,
        index=index,
        warm_up_round=warm_up_round,
        visit=visit,
    )
    job = load_job(
        ready.endpoint,
        sent_workload,
        seed=seed,
        limits=study.limits,
        vocabulary=ready.vocabulary,
        folder=run.folder,
        objectives=study.objectives,
        rows_folder=run.rows_folder,
    )
    observed = _run_watched_job(job, ready, run)
    sums = observed.load.sums
    health = observed.load.health
    verdict = load_verdict(sums, sent_workload, health, study.measure.metric, earlier)
    failure = ready.explain(verdict or observed.disturbance, kind)
    if failure is not None:
        kind = "measured"  # a warm-up that fails is a result
    record = make_trial_record(
        point,
        kind=kind,
        block=ready.block,
        index=index,
        instance_id=ready.id,
        failure=failure,
    )
    observations = _list_observations(observed, ready, record.outcome)
    if failure is None and kind == "measured":
        moved = list_moved_metrics(sums, sent_workload, health, earlier)
        observations["uncertain"] = tuple(moved)
    return TrialDraft(record.model_copy(update=observations), observed.load.rows)


@dataclass(frozen=True)
class _ObservedLoad:
    """The result of a load job, and what the watches around it saw."""

    load: LoadResult
    engine_metrics: EngineMetrics | None
    gpus: GpuUse | None
    disturbance: Failure | None


def _run_watched_job(job: LoadJob, ready: ReadyInstance, run: RunContext) -> _ObservedLoad:
    """Run a load job while other work, the GPUs and the engine's own metrics are watched."""
    before = read_engine_metrics(ready.endpoint)
    pid = ready.instance.pid
    other_work: OtherWork | None = None
    if pid is not None and run.get_engine(ready.config).needs_model:
        other_work = OtherWork(pid)
    gpu_root_pid = pid if run.on_device else None
    with other_work or nullcontext(), watch_gpus(gpu_root_pid) as gpus:
        result = run.load.run(job, run.observer.trial_running)
    counted = engine_metrics(ready.endpoint, before, read_engine_metrics(ready.endpoint))
    disturbance = find_gpu_disturbance(gpus.use)
    if other_work is not None and gpus.use is None:
        disturbance = other_work.failure
    return _ObservedLoad(result, counted, gpus.use, disturbance)


def _list_observations(
    observed: _ObservedLoad, ready: ReadyInstance, outcome: Outcome
) -> dict[str, object]:
    """Return the fields of a trial's record that come from its load job and the watches."""
    load = observed.load
    sums = load.sums
    metrics = TrialMetrics()
    if _has_metrics(outcome, sums, load.health):
        energy_j = observed.gpus.energy_j if observed.gpus else None
        metrics = compute_trial_metrics(sums, energy_j)
    return {
        "started_at": load.started_at,
        "duration_s": load.duration_s,
        "client": load.health,
        "memory": ready.watch.read(),
        "gpus": observed.gpus,
        "engine_metrics": observed.engine_metrics,
        "cached_share": cached_share(observed.engine_metrics, sums),
        "metrics": metrics,
        "objectives": judge_objectives(sums),
        "requests": sums.requests,
        "failed_requests": sums.failed,
        "is_sketched": sums.is_sketched,
    }


def _has_metrics(outcome: Outcome, sums: RequestSums, health: ClientHealth | None) -> bool:
    """Return True if the metrics of a trial are recorded.

    A rejected trial keeps its metrics, so that a report can say what the rejection changed. It
    loses them if a request failed or the clock was set.
    """
    if outcome is Outcome.OK:
        return True
    if outcome not in (Outcome.CLIENT_BOUND, Outcome.DISTURBED):
        return False
    if health is None or not sums.requests:
        return False
    return abs(health.clock_step_s) <= CLOCK_STEP_S and not sums.failed


def touch_before_trial(ready: ReadyInstance, run: RunContext) -> None:
    """Send one short request that does not count, to warm up the caches and clocks after a thaw.

    If it fails, the trial after it reports why.
    """
    study = run.plan.study
    seed = (study.seed, zlib.crc32(TOUCH.name.encode()), ready.block)
    run.load.run(
        load_job(ready.endpoint, TOUCH, seed=seed, limits=study.limits, vocabulary=ready.vocabulary)
    )


def _derive_trial_seed(
    study: Study,
    workload: Workload,
    kind: TrialKind,
    *,
    block: int,
    index: int,
    warm_up_round: int,
    visit: int,
) -> tuple[int, ...]:
    """Return the seed of a trial's requests: the same for all configs, and unique within one."""
    round_number = 1 + warm_up_round if kind == "warmup" else 0
    seed = (study.seed, zlib.crc32(workload.name.encode()), block, index, round_number)
    return (*seed, visit) if visit else seed


def load_job(
    endpoint: Endpoint,
    workload: Workload,
    *,
    seed: tuple[int, ...],
    limits: Timeouts,
    vocabulary: Vocabulary | None = None,
    folder: Path = Path(),
    objectives: tuple[Objective, ...] = (),
    rows_folder: Path | None = None,
) -> LoadJob:
    """Return the job that sends a workload to an endpoint.

    Random tokens come from the endpoint's vocabulary if it has one, or else from `vocabulary`.
    """
    vocabulary = endpoint.vocabulary or vocabulary
    assert vocabulary is not None, (
        "an engine that runs no variant of ours says what tokens it takes"
    )
    return LoadJob(
        endpoint=endpoint,
        workload=workload,
        vocabulary=vocabulary,
        seed=seed,
        request_timeout_s=limits.request,
        stall_timeout_s=limits.stall,
        folder=folder.absolute(),  # the load client has another working directory
        objectives=objectives,
        rows_folder=rows_folder and rows_folder.absolute(),
    )


def make_trial_record(
    point: Point,
    *,
    kind: TrialKind,
    block: int,
    index: int,
    instance_id: str,
    failure: Failure | None,
) -> TrialRecord:
    """Return a record without metrics. It stays like this if the instance never became ready."""
    result: dict[str, Any] = {"outcome": Outcome.OK}
    if failure is not None:
        result = dict(failure)
    return TrialRecord(
        id="",
        kind=kind,
        point=point,
        block=block,
        index=index,
        instance_id=instance_id,
        started_at=now(),
        duration_s=0.0,
        **result,
    )


def now() -> str:
    """Return the current time as ISO 8601 in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
