"""Trials on an endpoint that runs already: a sweep in interleaved rounds, a search for the highest rate, or the
short ladder of `bitbench quick`."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random

from bitbench.analysis.objectives import objectives_hold
from bitbench.analysis.rate_search import NextRate, next_rate, rate_trials
from bitbench.endpoint.load_study import (
    API_KEY_ENV,
    LoadOptions,
    NextPoint,
    PreparedLoad,
    estimate_search_cost,
    first_contact,
    first_contact_model,
    load_study_arguments,
    load_study_workloads,
    make_load_study,
    offer_p95,
    seeded_load_study_options,
)
from bitbench.engines.endpoint import (
    EndpointUnusable,
    endpoint_api_key,
    endpoint_url,
    offered_models,
)
from bitbench.machine.watches import MemoryWatch
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import plan_study_source
from bitbench.planning.variants import VariantStore
from bitbench.ports import Endpoint, Instance, InstanceFailed, LoadClient, Observer
from bitbench.records.folder import StudyFolder, Writer
from bitbench.records.kept_tables import write_kept_tables
from bitbench.records.lock import Lock
from bitbench.records.trial import (
    NOT_THE_ENGINES,
    InstanceRecord,
    Outcome,
    TrialMetrics,
    TrialRecord,
)
from bitbench.running.group import is_steady, wants_warm_up_round
from bitbench.running.progress import (
    CLIENT_BOUND_REPEATS,
    BlockTask,
    Progress,
    repeatable_rejections,
)
from bitbench.running.runner import StudyRun
from bitbench.running.trial import ReadyInstance, RunContext, TrialDraft, TrialKind, now, run_trial
from bitbench.study.objective import RateTrialKind, SearchLimits
from bitbench.study.plan import Plan, Point
from bitbench.study.study import Count, Study
from bitbench.study.study_file import StudySource, checked, study_file_text
from bitbench.study.workload import Workload
from bitbench.util.errors import LoadError, NotReadyError, StoreError, UndecidedError
from bitbench.util.files import SafeFolder
from bitbench.util.machine_faults import require_native
from bitbench.util.units import show_seconds

BLOCK = 0  # the endpoint is not started anew, so there is only one
RESUMES = "; the same command with --into resumes"
FREE_IT = "free a core, or send from another machine (--on), then resume with --into"


CHOSEN_BY_SEARCH = {
    "name",
    "duration",
    "requests",
}  # of its workloads, beside the rate: from what the endpoint takes without load


def measure_endpoint_study(
    prepared: PreparedLoad, observer: Observer, client: LoadClient, at: Workplace
) -> StudyFolder:
    """Sweep an endpoint that runs already, or search for its highest rate; the same call again continues it."""
    study, search, folder = prepared.study, prepared.search, StudyFolder(prepared.folder)
    lock = folder.lock()
    if lock is not None:
        _refuse_other_load(lock, study, search, folder.path)
    if (
        search is not None and lock and lock.search
    ):  # its study has grown by the rates that were tried
        asked = {"trials": search.trials, "precision": search.precision, "highest": search.highest}
        search = lock.search.model_copy(update=asked)
        study = study.model_copy(update={"workloads": lock.plan.study.workloads})
    source = StudySource.of(study, folder.path)
    with folder.writing() as writer:
        store = VariantStore(at.home, source.folder)
        plan = plan_study_source(source, store, at)
        if plan.refusals:
            raise LoadError(plan.refusals[0].reason)
        ready = StudyRun(at, plan, source, store, folder, observer)
        ready.begin(writer, search=search)
        run = EndpointRun(ready.context(client), writer)
        if prepared.next_point is not None:
            run.climb(prepared.next_point)
        elif search is None:
            run.sweep()
        else:
            run.search(search)
    write_kept_tables(folder)
    return folder


def _refuse_other_load(lock: Lock, study: Study, search: SearchLimits | None, folder: Path) -> None:
    """A folder of a sweep is not continued by a search, nor one of a search by a sweep or with other requests."""
    if lock.plan.study.engines != study.engines:
        return  # another endpoint or no endpoint at all, which is refused as another study
    elsewhere = "repeat the command that began it, or give another folder with --into"
    if (lock.search is None) is not (search is None):
        began, asked = ("a search", "a sweep") if search is None else ("a sweep", "a search")
        raise StoreError(
            f"{folder} contains {began} of an endpoint, and this is {asked}; {elsewhere}"
        )
    if search is None:
        return
    requests = (lock.plan.study.workloads[0], study.workloads[0])
    before, after = ({**dict(request), "arrival": request.arrival.kind} for request in requests)
    differing = sorted(
        name for name in after if name not in CHOSEN_BY_SEARCH and before[name] != after[name]
    )
    if differing:
        raise StoreError(
            f"{folder} contains a search with other requests ({', '.join(differing)}); {elsewhere}"
        )


class EndpointRun:
    """What is recorded already is not run again.

    A study's visit starts an instance, warms it up and runs all trials of a workload in it. Here nothing is started, so
    the order can be the best one against drift: in each round every point of the sweep once, shuffled anew. What the
    server is warm for is unknown: before its first trial a point in closed loop has rounds of warm-up until it is
    steady. All trials belong to one instance; their interval says nothing about another start, and the report says so.
    """

    def __init__(self, run: RunContext, writer: Writer) -> None:
        self._run, self._writer = run, writer
        recorded = writer.folder.trials()
        self._trials = [trial for trial in recorded if trial.kind == "measured"]
        self._warm_ups = Counter(trial.point for trial in recorded if trial.kind == "warmup")
        self._visit = len(
            writer.folder.instances()
        )  # what earlier runs sent last may not be recorded
        # By this run, with the metrics of its last round: the server may have been started again since the last.
        self._warm: dict[Point, tuple[TrialMetrics, ...]] = {}
        self._progress = Progress(run.plan, repeatable_rejections(self._trials))
        self._progress.begin(
            BlockTask(BLOCK, run.plan.study.measure.trials.min, frozenset(run.plan.points))
        )
        self._progress.add(self._trials)

    @property
    def _plan(self) -> Plan:
        return self._run.plan

    def sweep(self) -> None:
        """Every point as often as the study says, in rounds."""
        ready = self._begin()
        workloads, wants = self._plan.study.workloads, self._progress.wants_trial
        while wanted := [workload for workload in workloads if wants(self._point(workload), BLOCK)]:
            Random(f"{self._plan.study.seed}/{len(self._trials)}").shuffle(wanted)
            for workload in wanted:
                self._trial(workload, ready)

    def climb(self, next_point: NextPoint) -> None:
        """Trials at the points that `next_point` asks for; each new one becomes a workload of the study."""
        ready = self._begin()
        while (workload := next_point(self._plan.study, self._trials)) is not None:
            try:
                self._trial(self._added(workload), ready)
            except LoadError as gone:
                cause, outcomes = (
                    str(gone).removesuffix(RESUMES),
                    [trial.outcome for trial in self._trials],
                )
                if outcomes[-1:] != [Outcome.CRASHED] or Outcome.OK not in outcomes:
                    raise LoadError(cause) from None
                self._run.observer.warn(
                    cause
                )  # it died under this load, which is a part of the answer
                return

    def search(self, limits: SearchLimits) -> None:
        """Trials at the rates that `analysis.rate_search` asks for; each new rate becomes a workload of the study."""
        ready = self._begin()
        self._update_lock(search=limits)
        late, is_told = 0, False
        cost_is_told = False
        while (
            wanted := next_rate(rate_trials(self._plan.study, self._trials), limits)
        ) is not None:
            rate = wanted.rate
            if wanted.kind is RateTrialKind.FULL and not cost_is_told:
                self._tell_cost(limits, rate)
                cost_is_told = True
            workload = endpoint_workload_at(self._plan.study.workloads[0], wanted, limits)
            record = self._trial(self._added(workload), ready)
            if (
                record.outcome is Outcome.OK
                and record.objectives is not None
                and record.objectives.holds is None
            ):
                raise UndecidedError(f"the search cannot go on: {record.objectives.why_not}")
            late = late + 1 if objectives_hold(record, self._plan.study.objectives) is None else 0
            if late > CLIENT_BOUND_REPEATS:
                kept = [
                    trial.rate
                    for trial in rate_trials(self._plan.study, self._trials)
                    if trial.holds
                ]
                if not kept:
                    raise LoadError(
                        f"this machine cannot send {rate:g} requests/s on time: {record.cause}"
                    )
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

    def _tell_cost(self, limits: SearchLimits, rate: float) -> None:
        """Say what the rest of a search takes, now that the rate is known roughly."""
        done = len(rate_trials(self._plan.study, self._trials))
        cost = estimate_search_cost(limits, rate, done=done)
        self._run.observer.note(
            f"the rate is near {rate:g} requests/s; up to {cost.trials} more trials: {cost}"
        )
        offer = offer_p95(self._plan.study, limits, rate)
        if offer is not None:
            self._run.observer.warn(offer)

    def _begin(self) -> ReadyInstance:
        """The endpoint as this run meets it: an instance in the records."""
        config = self._plan.configs[0]
        instance_id, log_file = self._writer.new_instance()
        started = time.monotonic()
        instance = self._run.start(config, log_file, occasion=str(BLOCK))
        endpoint, vocabulary = self._wait(instance), self._run.vocabulary_of(config)
        watch = MemoryWatch(
            None, None, instance.stop
        )  # it is not our process: there is nothing to see
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
        counted = [
            trial
            for trial in self._trials
            if trial.outcome not in NOT_THE_ENGINES or objectives_hold(trial, objectives)
        ]
        self._run.observer.study_started(self._plan, len(counted))
        return ready

    def _wait(self, instance: Instance) -> Endpoint:
        try:
            return instance.wait_ready(self._plan.study.limits.start)
        except InstanceFailed as failed:
            raise LoadError(f"{failed.failure.cause}{RESUMES}") from None

    def _point(self, workload: Workload) -> Point:
        return Point(config=self._plan.configs[0], workload=workload.name)

    def _trial(self, workload: Workload, ready: ReadyInstance) -> TrialRecord:
        draft = self._warm_up(workload, ready) or self._draft(workload, ready, "measured")
        record = self._writer.append_trial(draft.record, draft.rows)
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
        self._warm[point] = ()
        while wants_warm_up_round(workload, rounds, until_steady=True):
            draft = self._draft(workload, ready, "warmup")
            if draft.record.kind != "warmup":
                return draft
            self._warm_ups[point] += 1
            rounds.append(self._writer.append_trial(draft.record, draft.rows))
        self._warm[point] = (rounds[-1].metrics,)
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
        known = [*self._warm.get(point, ()), *self._progress.metrics_of(point, BLOCK)]
        warm_ups = self._warm_ups[point]
        return run_trial(
            ready,
            workload,
            kind,
            index,
            self._run,
            warm_up_round=warm_ups,
            visit=self._visit,
            known=known,
        )

    def _added(self, workload: Workload) -> Workload:
        """A new one is added to the plan and to the study on disk before it is tried."""
        study, point = self._plan.study, self._point(workload)
        if point not in self._plan.points:
            grown = study.model_copy(update={"workloads": (*study.workloads, workload)})
            plan = self._plan.model_copy(
                update={"study": grown, "points": (*self._plan.points, point)}
            )
            self._run = replace(self._run, plan=plan)
            self._writer.write_study(study_file_text(grown))
            self._update_lock(plan=plan)
        return workload

    def _update_lock(self, **facts: Plan | SearchLimits) -> None:
        lock = self._writer.folder.lock()
        assert lock is not None, "a run begins by writing it"
        self._writer.write_lock(lock.model_copy(update=facts))


def endpoint_workload_at(like: Workload, wanted: NextRate, limits: SearchLimits) -> Workload:
    """Return the same kind of requests at another rate, as many as the search wants there."""
    return like.model_copy(
        update={
            "name": f"{wanted.kind}-{wanted.rate:g}",
            "arrival": like.arrival.model_copy(update={"rate": wanted.rate}),
            "requests": limits.trial_requests(wanted.rate, wanted.kind),
            "duration": None,
        }
    )


# As vLLM, llama.cpp, Ollama, LM Studio and SGLang have them unless told otherwise.
PORTS = (8000, 8080, 11434, 1234, 30000)
HOST = "127.0.0.1"
ANSWER_LIMIT_S = 1.0  # for the list of models of a server on this machine
KEY_VARIABLE = (
    "BITBENCH_QUICK_KEY"  # the user has not named the server, so the usual key is not sent to it
)
CONTACT_REQUESTS = 2  # the first may find a cold server
ANSWER_TOKENS = 32
CLIMB_S = 75.0  # for all trials: with the first contact and the summary, the answer comes within two minutes
POINT_S = 4.0  # of a trial, about
MOST_STREAMS = 64
MOST_ROUNDS = 16  # requests of a stream in a trial
TRIALS = 3
GROWTH = 1.1  # twice the streams that bring less than this: throughput has stopped growing
_PROMPTS = tuple(
    f"Explain in about {count} words what a {topic} is, how it works and what people use it for."
    for count in (50, 100, 150, 200)
    for topic in (
        "compiler",
        "bicycle",
        "telescope",
        "bridge",
        "violin",
        "harbour",
        "battery",
        "greenhouse",
    )
)


@dataclass(frozen=True)
class FoundServer:
    url: str
    models: tuple[str, ...]
    key_variable: str = KEY_VARIABLE


def find_servers() -> tuple[FoundServer, ...]:
    """OpenAI-compatible ones on this machine that list a model; loopback only. Raises PlatformError where they could
    not be measured, NotReadyError where there is none."""
    require_native()
    found = []
    for port in PORTS:
        url = f"http://{HOST}:{port}"
        try:
            models = offered_models(
                Endpoint(url, "", endpoint_api_key(KEY_VARIABLE)), ANSWER_LIMIT_S
            )
        except EndpointUnusable:
            continue
        if models:
            found.append(FoundServer(url, models))
    if not found:
        raise NotReadyError(
            f"nothing to measure: no OpenAI-compatible server answers on {HOST} (ports {', '.join(map(str, PORTS))}); "
            "name one (bitbench quick http://HOST:PORT), or what to compare: bitbench quick smollm2-135m gguf-q4_0"
        )
    return tuple(found)


def named_server(url: str) -> FoundServer:
    """The one that a person named, who means its key to be sent there. Raises UsageError or LoadError."""
    require_native()
    base = checked(lambda: endpoint_url(url), about=url)
    return FoundServer(base, (first_contact_model(base, API_KEY_ENV),), API_KEY_ENV)


def prepare_running_server(server: FoundServer, client: LoadClient, folder: Path) -> PreparedLoad:
    """Token ids of an exact length where the server takes them, as vLLM, SGLang and llama.cpp do; else chats, whose
    answers end where the model ends them. Prompts are new each time: a server may remember those of the last. Raises
    LoadError where it answers neither."""
    exact = seeded_load_study_options(LoadOptions(output_tokens=ANSWER_TOKENS), folder)
    try:
        return _prepare(server, exact, client, folder)
    except LoadError:
        prompts = SafeFolder(folder).write("prompts.txt", "\n\n".join(_PROMPTS) + "\n")
        chats = replace(exact, api="chat", text=prompts, output_forced=False)
        return _prepare(server, chats, client, folder)


def new_endpoint_folder() -> Path:
    return Path(f"quick-{datetime.now().astimezone():%Y%m%d-%H%M%S}")


def _prepare(
    server: FoundServer, options: LoadOptions, client: LoadClient, folder: Path
) -> PreparedLoad:
    arguments = load_study_arguments(
        url=server.url,
        model=server.models[0],
        api_key_env=server.key_variable,
        ignore_eos=options.output_forced,
    )
    alone = replace(options, concurrency=(1,))
    contact = first_contact(
        arguments, load_study_workloads(alone)[0], client, requests=CONTACT_REQUESTS
    )
    first = endpoint_workload_with_streams(
        load_study_workloads(alone, folder)[0], 1, contact.latency_s
    )
    study = make_load_study(options, arguments, (first,))
    measure = study.measure.model_copy(update={"trials": Count(min=1, max=TRIALS)})
    ladder = Ladder(CLIMB_S)
    return PreparedLoad(
        study.model_copy(update={"measure": measure}), None, contact, folder, ladder.next_point
    )


def endpoint_workload_with_streams(like: Workload, streams: int, latency_s: float) -> Workload:
    """The same requests in so many streams, as many of them as take about `POINT_S`."""
    rounds = min(max(int(POINT_S / max(latency_s, 1e-6)), 2), MOST_ROUNDS)
    return like.model_copy(
        update={"name": f"c-{streams}", "concurrency": streams, "requests": streams * rounds}
    )


class Ladder:
    """Twice the streams each time, while throughput grows; then all points again, in rounds, while time is left."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_s = clock() + limit_s

    def next_point(self, study: Study, trials: Sequence[TrialRecord]) -> Workload | None:
        """A `NextPoint`: none that would end too late, but for the first."""
        points = {workload.name: LadderPoint(workload, trials) for workload in study.workloads}
        *lower, top = points.values()
        if not top.tried:
            return top.workload
        left_s = self._ends_s - self._clock()
        if len(top.counted) <= 1:
            if not top.counted and len(top.tried) < TRIALS:  # the machine's fault: once more
                return top.workload if top.trial_s < left_s else None
            if top.grows(lower) and top.workload.concurrency < MOST_STREAMS:
                higher = endpoint_workload_with_streams(
                    top.workload, 2 * top.workload.concurrency, top.latency_s
                )
                if 2 * top.latency_s * (higher.requests or 0) / higher.concurrency < left_s:
                    return higher
        served = [point for point in points.values() if point.throughput is not None]
        fewest = min((len(point.tried) for point in served), default=TRIALS)
        again = [point for point in served if len(point.tried) == fewest and point.trial_s < left_s]
        if fewest >= TRIALS or not again:
            return None
        return Random(f"{study.seed}/{len(trials)}").choice(again).workload


class LadderPoint:
    """What was tried with so many streams."""

    def __init__(self, workload: Workload, trials: Sequence[TrialRecord]) -> None:
        self.workload = workload
        self.tried = [trial for trial in trials if trial.point.workload == workload.name]
        self.counted = [trial for trial in self.tried if trial.outcome not in NOT_THE_ENGINES]

    @property
    def trial_s(self) -> float:
        return max((trial.duration_s or 0.0 for trial in self.tried), default=0.0)

    @property
    def latency_s(self) -> float:
        """Of a request: a trial has so many rounds of them, one on each stream."""
        return self.trial_s * self.workload.concurrency / (self.workload.requests or 1)

    @property
    def throughput(self) -> float | None:
        """The mean of what was served; None where nothing was."""
        served = [
            trial.metrics.output_throughput or 0.0
            for trial in self.counted
            if trial.outcome is Outcome.OK
        ]
        return sum(served) / len(served) if served else None

    def grows(self, lower: Sequence["LadderPoint"]) -> bool:
        best = max((point.throughput or 0.0 for point in lower), default=0.0)
        return self.throughput is not None and self.throughput >= GROWTH * best
