"""One trial in an instance that is ready: what a run has at hand for it, its load job, the verdict about what came
back, and its draft."""

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from bitbench.analysis.objectives import judge_objectives
from bitbench.analysis.trial import cached_share, metrics_of_trial
from bitbench.loadgen.verdict import CLOCK_STEP_S, load_verdict, moved_metrics
from bitbench.machine.host import OtherWork
from bitbench.machine.watches import MemoryWatch, gpu_watch_disturbance, watch_gpus
from bitbench.planning.plan import planned_engine_loads, planned_engine_setup
from bitbench.ports import (
    Endpoint,
    Engine,
    Instance,
    Launch,
    Load,
    LoadClient,
    LoadJob,
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
    """None where the server is known to have none, or does not answer: that is never the failure of a trial."""
    return fetch_samples(endpoint.url, endpoint.api_key) if endpoint.metrics else None


def engine_metrics(
    endpoint: Endpoint, before: Samples | None, after: Samples | None
) -> EngineMetrics | None:
    """How much counters grew, and what gauges show in the end. None where either reading is missing."""
    if before is None or after is None:
        return None
    raw: dict[str, float] = {}
    figures: dict[str, float | None] = {}
    for figure, name in endpoint.metrics.items():
        if after.kinds.get(name) == "histogram":
            grown = {
                part: _growth(before, after, part) for part in (f"{name}_sum", f"{name}_count")
            }
            total, count = grown.values()
            figures[figure] = total / count if total is not None and count else None
        else:
            is_counter = after.kinds.get(name) == "counter"
            grown = {name: _growth(before, after, name) if is_counter else after.values.get(name)}
            figures[figure] = grown[name]
        raw |= {part: value for part, value in grown.items() if value is not None}
    return EngineMetrics.model_validate({**figures, "raw": raw}) if raw else None


def _growth(before: Samples, after: Samples, name: str) -> float | None:
    """None where it is not counted, or was counted from zero again meanwhile."""
    if (now := after.values.get(name)) is None:
        return None
    grown = now - before.values.get(name, 0.0)
    return grown if grown >= 0 else None


# For an engine that does not look at its tokens; any model has at least so many.
DEFAULT_VOCABULARY = 32_000


@dataclass(frozen=True)
class RunContext:
    """What a run has at hand; starts every instance."""

    plan: Plan
    engines: Mapping[str, Engine]
    python_of: Callable[[str], Path]
    load: LoadClient
    observer: Observer
    folder: Path = Path()  # of the study file: what file names in it are relative to
    rows_folder: Path | None = None  # as `LoadJob.rows_folder`
    quality: Mapping[str, QualityKit] = field(default_factory=dict)  # by model
    capability: Capability | None = None  # the least among the GPUs here
    words_of: Callable[[str], tuple[int, ...]] = (
        lambda _: ()
    )  # token ids of a model's ordinary words
    # Engines compute on GPUs: these are watched, and first requests may compile or tune kernels. *Not yet run on a GPU*
    on_device: bool = False

    def engine_of(self, config: Config) -> Engine:
        return self.engines[self.plan.study.engine(config.engine).engine]

    def vocabulary_of(self, config: Config) -> Vocabulary:
        """The model's, so that all of its variants get the same prompts."""
        variant = self.plan.variant(config.variant)
        if variant.model == NO_MODEL:
            return Vocabulary(DEFAULT_VOCABULARY)
        facts = variant.facts
        return Vocabulary(
            facts.vocabulary_size or DEFAULT_VOCABULARY,
            facts.special_token_ids,
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
        """Start an instance without waiting. `occasion` is a part of its seed; `loads` are by default those of the
        study."""
        plan, engine = self.plan, self.engine_of(config)
        setup = plan.study.engine(config.engine)
        environment = setup.environment(engine.environment)
        return engine.start(
            Launch(
                setup=planned_engine_setup(setup, engine),
                variant=plan.variant(config.variant),
                python=self.python_of(environment) if environment else None,
                log_file=log_file,
                loads=loads or planned_engine_loads(plan, setup),
                seed=zlib.crc32(f"{plan.study.seed}/{occasion}/{config.name}".encode()),
                dtype=plan.chosen_dtypes.get(config),
                top_tokens=plan.study.quality.top_tokens if plan.study.quality else 0,
                trace_folder=trace_folder,
                capability=self.capability,
            )
        )


TrialKind = Literal["warmup", "measured"]

TOUCH = Workload(name="touch", concurrency=1, input_tokens=8, output_tokens=2)
# A connection breaks a moment before the exit of the process behind it can be seen.
DEATH_NOTICE_S = 3.0


@dataclass(frozen=True)
class TrialDraft:
    """A trial before the store has given it an id, with its request rows."""

    record: TrialRecord
    rows: RequestParts | None = None


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
        deadline = time.monotonic() + (
            DEATH_NOTICE_S if failure.outcome is Outcome.CRASHED else 0.0
        )
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
    known: Sequence[TrialMetrics] = (),
) -> TrialDraft:
    """Blocks until it has ended. Its prompts are the same for all configs, and never come twice in an instance.
    `visit`: how often a server that goes on running was measured before, which may remember prompts of a trial that was
    interrupted. `known`: of its point, as in `loadgen.verdict.moved_metrics`."""
    study = run.plan.study
    point = Point(config=ready.config, workload=workload.name)
    asked = workload.warm_up if kind == "warmup" else workload
    run.observer.trial_started(point, index, warmup=kind == "warmup")
    job = load_job(
        ready.endpoint,
        asked,
        seed=_trial_seed(
            study,
            workload,
            kind,
            block=ready.block,
            index=index,
            warm_up_round=warm_up_round,
            visit=visit,
        ),
        limits=study.limits,
        vocabulary=ready.vocabulary,
        folder=run.folder,
        objectives=study.objectives,
        rows_folder=run.rows_folder,
    )
    new = partial(new_trial_record, point, block=ready.block, index=index, instance_id=ready.id)
    before = read_engine_metrics(ready.endpoint)
    pid = ready.instance.pid
    others = OtherWork(pid) if pid is not None and run.engine_of(ready.config).needs_model else None
    with others or nullcontext(), watch_gpus(pid if run.on_device else None) as gpus:
        result = run.load.run(job, run.observer.trial_running)
    counted = engine_metrics(ready.endpoint, before, read_engine_metrics(ready.endpoint))
    sums = result.sums
    energy_j = gpus.use.energy_j if gpus.use else None
    disturbed = others.failure if others and gpus.use is None else gpu_watch_disturbance(gpus.use)
    verdict = load_verdict(sums, asked, result.health, study.measure.metric, known)
    failure = ready.explain(verdict or disturbed, kind)
    record = new(
        kind="measured" if failure else kind, failure=failure
    )  # a warm-up that fails is a result
    found = {
        "started_at": result.started_at,
        "duration_s": result.duration_s,
        "client": result.health,
        "memory": ready.watch.read(),
        "gpus": gpus.use,
        "engine_metrics": counted,
        "cached_share": cached_share(counted, sums),
        **_trial_draft_figures(
            sums, energy_j, has_metrics=_has_metrics(record.outcome, sums, result.health)
        ),
    }
    if failure is None and kind == "measured":
        found["uncertain"] = tuple(moved_metrics(sums, asked, result.health, known))
    return TrialDraft(record.model_copy(update=found), result.rows)


def touch_before_trial(ready: ReadyInstance, run: RunContext) -> None:
    """One short request that does not count: what was frozen gets its caches and clocks back. If it fails, the trial
    after it will say why."""
    study = run.plan.study
    seed = (study.seed, zlib.crc32(TOUCH.name.encode()), ready.block)
    run.load.run(
        load_job(ready.endpoint, TOUCH, seed=seed, limits=study.limits, vocabulary=ready.vocabulary)
    )


def _trial_seed(
    study: Study,
    workload: Workload,
    kind: TrialKind,
    *,
    block: int,
    index: int,
    warm_up_round: int = 0,
    visit: int = 0,
) -> tuple[int, ...]:
    """Of its requests: the same for all configs, and for no other trial of a config."""
    own = (
        study.seed,
        zlib.crc32(workload.name.encode()),
        block,
        index,
        1 + warm_up_round if kind == "warmup" else 0,
    )
    return (*own, visit) if visit else own


def _has_metrics(outcome: Outcome, sums: RequestSums, health: ClientHealth | None) -> bool:
    """Whether the metrics of a trial are recorded. Those of a rejected one are, so that a report can say what its
    rejection changed, unless a request failed or the clock was set."""
    if outcome is Outcome.OK:
        return True
    if (
        outcome not in (Outcome.CLIENT_BOUND, Outcome.DISTURBED)
        or health is None
        or not sums.requests
    ):
        return False
    return abs(health.clock_step_s) <= CLOCK_STEP_S and not sums.failed


def _trial_draft_figures(
    sums: RequestSums, energy_j: float | None, *, has_metrics: bool
) -> dict[str, object]:
    """Return what the record of a trial says about its rows."""
    return {
        "metrics": metrics_of_trial(sums, energy_j) if has_metrics else TrialMetrics(),
        "objectives": judge_objectives(sums),
        "requests": sums.requests,
        "failed_requests": sums.failed,
        "is_sketched": sums.is_sketched,
    }


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
        objectives=objectives,
        rows_folder=rows_folder.absolute() if rows_folder else None,
    )


def new_trial_record(
    point: Point,
    *,
    kind: TrialKind,
    block: int,
    index: int,
    instance_id: str,
    failure: Failure | None,
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
        **(dict(failure) if failure else {"outcome": Outcome.OK}),
    )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
