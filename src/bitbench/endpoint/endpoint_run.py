"""Trials on an endpoint that already runs.

They are a sweep in interleaved rounds, a search for the highest rate, or the short ladder of
`bitbench quick`.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random

from bitbench.analysis.objectives import check_objectives
from bitbench.analysis.rate_search import NextRate, find_next_rate, list_rate_trials
from bitbench.endpoint.load_study import (
    API_KEY_ENV,
    LoadOptions,
    NextPoint,
    PreparedLoad,
    add_load_study_seed,
    estimate_search_cost,
    find_first_model,
    first_contact,
    make_load_study,
    make_load_study_arguments,
    make_load_study_workloads,
    offer_p95,
)
from bitbench.engines.endpoint import (
    EndpointUnusable,
    list_offered_models,
    parse_endpoint_url,
    read_endpoint_api_key,
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
from bitbench.running.group import is_steady, should_run_warm_up_round
from bitbench.running.progress import (
    CLIENT_BOUND_REPEATS,
    BlockTask,
    Progress,
    list_repeatable_rejections,
)
from bitbench.running.runner import StudyRun
from bitbench.running.trial import ReadyInstance, RunContext, TrialDraft, TrialKind, now, run_trial
from bitbench.study.objective import RateTrialKind, SearchLimits
from bitbench.study.plan import Plan, Point
from bitbench.study.study import Count, Study
from bitbench.study.study_file import StudySource, check_input, format_study
from bitbench.study.workload import Workload
from bitbench.util.errors import (
    LoadError,
    NotReadyError,
    StoreError,
    UndecidedError,
    UsageError,
)
from bitbench.util.files import SafeFolder
from bitbench.util.machine_faults import require_native
from bitbench.util.units import show_seconds

BLOCK = 0  # the endpoint is never restarted, so there is only one block
RESUMES = "; the same command with --into resumes"
FREE_IT = "free a core, or send from another machine (--on), then resume with --into"


# Fields of its workloads that a search chooses, along with the rate, from the unloaded latency.
CHOSEN_BY_SEARCH = {"name", "duration", "requests"}


def measure_endpoint_study(
    prepared: PreparedLoad, observer: Observer, client: LoadClient, workplace: Workplace
) -> StudyFolder:
    """Sweep an endpoint that already runs, or search for its highest rate.

    The same call again resumes. Raise StoreError if the folder has another study, and LoadError if
    the endpoint or the client fails.
    """
    study = prepared.study
    search = prepared.search
    folder = StudyFolder(prepared.folder)
    lock = folder.lock()
    if lock is not None:
        _refuse_other_load(lock, study, search, folder.path)
    if search is not None and lock and lock.search:
        # The study of an earlier call has grown by the rates that it tried.
        goals = {
            "trials": search.trials,
            "precision": search.precision,
            "highest": search.highest,
        }
        search = lock.search.model_copy(update=goals)
        study = study.model_copy(update={"workloads": lock.plan.study.workloads})
    source = StudySource.of(study, folder.path)
    with folder.open_writer() as writer:
        store = VariantStore(workplace.home, source.folder)
        plan = plan_study_source(source, store, workplace)
        if plan.refusals:
            raise LoadError(plan.refusals[0].reason)
        study_run = StudyRun(workplace, plan, source, store, folder, observer)
        study_run.begin(writer, search=search)
        run = EndpointRun(study_run.context(client), writer)
        if prepared.next_point is not None:
            run.climb(prepared.next_point)
        elif search is None:
            run.sweep()
        else:
            run.search(search)
    write_kept_tables(folder)
    return folder


def _refuse_other_load(lock: Lock, study: Study, search: SearchLimits | None, folder: Path) -> None:
    """Raise StoreError if the folder has another kind of load on this endpoint.

    A search cannot continue a sweep, or a sweep a search. A search can continue another search only
    if both send the same requests.
    """
    if lock.plan.study.engines != study.engines:
        return  # another endpoint or none: a later check refuses it as another study
    advice = "repeat the command that began it, or give another folder with --into"
    if (lock.search is None) is not (search is None):
        existing = "a sweep" if lock.search is None else "a search"
        requested = "a sweep" if search is None else "a search"
        raise StoreError(
            f"{folder} contains {existing} of an endpoint, and this is {requested}; {advice}"
        )
    if search is None:
        return
    fields_before = _request_fields(lock.plan.study.workloads[0])
    differing: list[str] = []
    for name, value in _request_fields(study.workloads[0]).items():
        if name not in CHOSEN_BY_SEARCH and fields_before[name] != value:
            differing.append(name)
    if differing:
        raise StoreError(
            f"{folder} contains a search with other requests ({', '.join(sorted(differing))}); "
            f"{advice}"
        )


def _request_fields(workload: Workload) -> dict[str, object]:
    """Return the fields of a workload without its rate."""
    return {**dict(workload), "arrival": workload.arrival.kind}


class EndpointRun:
    """A run of trials on an endpoint, which skips what is recorded already.

    Other studies start an instance, warm it up and run all trials of a workload in it. Here nothing
    is started, so the trials run in the order that is best against drift: each round has every
    point of the sweep once, in a new random order. It is unknown which requests the server has
    served before. So a point in closed loop is warmed up until it is steady, before its first
    trial. All trials are from one instance. Their interval does not cover another launch, and the
    report says so.
    """

    def __init__(self, run: RunContext, writer: Writer) -> None:
        """Count the trials that earlier runs have recorded in the writer's folder."""
        self._run = run
        self._writer = writer
        recorded = writer.folder.trials()
        self._trials = [trial for trial in recorded if trial.kind == "measured"]
        self._warm_ups = Counter(trial.point for trial in recorded if trial.kind == "warmup")
        # The number of earlier runs. It is part of the prompts' seed: an interrupted run may have
        # sent prompts that it did not record.
        self._visit = len(writer.folder.instances())
        # The points that this run has warmed up, with the metrics of the last round. Earlier runs
        # do not count: the server may have been restarted since.
        self._warm: dict[Point, tuple[TrialMetrics, ...]] = {}
        self._progress = Progress(run.plan, list_repeatable_rejections(self._trials))
        # All trials are in one block, so every point is due in it from the beginning.
        rounds = run.plan.study.measure.trials.min
        self._progress.begin(BlockTask(BLOCK, rounds, frozenset(run.plan.points)))
        self._progress.add(self._trials)

    @property
    def _plan(self) -> Plan:
        return self._run.plan

    def sweep(self) -> None:
        """Measure every point as often as the study says, in rounds."""
        ready = self._begin()
        while workloads := self._list_wanting_trials():
            Random(f"{self._plan.study.seed}/{len(self._trials)}").shuffle(workloads)
            for workload in workloads:
                self._trial(workload, ready)

    def _list_wanting_trials(self) -> list[Workload]:
        """Return the workloads that need another trial."""
        wanting: list[Workload] = []
        for workload in self._plan.study.workloads:
            if self._progress.is_trial_due(self._point(workload), BLOCK):
                wanting.append(workload)
        return wanting

    def climb(self, next_point: NextPoint) -> None:
        """Measure the points that `next_point` returns, each as a new workload of the study.

        If the server dies after a successful trial, warn and end, since that is a result too.
        Raise LoadError if it dies earlier.
        """
        ready = self._begin()
        while (workload := next_point(self._plan.study, self._trials)) is not None:
            try:
                self._trial(self._added(workload), ready)
            except LoadError as gone:
                cause = str(gone).removesuffix(RESUMES)
                outcomes = [trial.outcome for trial in self._trials]
                if outcomes[-1:] != [Outcome.CRASHED] or Outcome.OK not in outcomes:
                    raise LoadError(cause) from None
                self._run.observer.warn(cause)
                return

    def search(self, limits: SearchLimits) -> None:
        """Measure at the rates that `analysis.rate_search` returns, each as a new workload.

        Raise UndecidedError if an objective cannot be decided, and LoadError if this client is too
        slow for any rate.
        """
        ready = self._begin()
        self._update_lock(search=limits)
        late_in_row = 0
        is_capped = False
        cost_is_told = False
        while (
            step := find_next_rate(list_rate_trials(self._plan.study, self._trials), limits)
        ) is not None:
            if step.kind is RateTrialKind.FULL and not cost_is_told:
                self._tell_cost(limits, step.rate)
                cost_is_told = True
            workload = make_workload_at_rate(self._plan.study.workloads[0], step, limits)
            record = self._trial(self._added(workload), ready)
            objectives = record.objectives
            is_ok = record.outcome is Outcome.OK
            if is_ok and objectives is not None and objectives.holds is None:
                raise UndecidedError(f"the search cannot go on: {objectives.why_not}")
            is_late = check_objectives(record, self._plan.study.objectives) is None
            late_in_row = late_in_row + 1 if is_late else 0
            if late_in_row <= CLIENT_BOUND_REPEATS:
                continue
            tried = list_rate_trials(self._plan.study, self._trials)
            held_rates = [trial.rate for trial in tried if trial.holds]
            if not held_rates:
                raise LoadError(
                    f"this machine cannot send {step.rate:g} requests/s on time: {record.cause}"
                )
            if is_capped:
                self._run.observer.warn(
                    "the search stopped: this machine is too busy to send requests on time; "
                    f"{FREE_IT}"
                )
                return
            self._run.observer.warn(
                f"this client cannot send {step.rate:g} requests/s on time; "
                "higher rates are skipped"
            )
            late_in_row = 0
            is_capped = True
            limits = limits.model_copy(update={"highest": max(held_rates)})
            self._update_lock(search=limits)

    def _tell_cost(self, limits: SearchLimits, rate: float) -> None:
        """Tell the observer how long the rest of a search takes if the result is near `rate`."""
        done = len(list_rate_trials(self._plan.study, self._trials))
        cost = estimate_search_cost(limits, rate, done=done)
        self._run.observer.note(
            f"the rate is near {rate:g} requests/s; up to {cost.trials} more trials: {cost}"
        )
        offer = offer_p95(self._plan.study, limits, rate)
        if offer is not None:
            self._run.observer.warn(offer)

    def _begin(self) -> ReadyInstance:
        """Record the endpoint as an instance, and return it when it answers."""
        config = self._plan.configs[0]
        instance_id, log_file = self._writer.new_instance()
        started = time.monotonic()
        instance = self._run.start(config, log_file, occasion=str(BLOCK))
        endpoint = self._wait(instance)
        vocabulary = self._run.get_vocabulary(config)
        # The endpoint is not our process, so its memory is unknown.
        watch = MemoryWatch(None, None, instance.stop)
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
        counted = 0
        for trial in self._trials:
            is_rejected = trial.outcome in NOT_THE_ENGINES
            counted += not is_rejected or bool(check_objectives(trial, objectives))
        self._run.observer.study_started(self._plan, counted)
        return ready

    def _wait(self, instance: Instance) -> Endpoint:
        """Wait until the endpoint answers. Raise LoadError if it does not."""
        try:
            return instance.wait_ready(self._plan.study.limits.start)
        except InstanceFailed as failed:
            raise LoadError(f"{failed.failure.cause}{RESUMES}") from None

    def _point(self, workload: Workload) -> Point:
        return Point(config=self._plan.configs[0], workload=workload.name)

    def _trial(self, workload: Workload, ready: ReadyInstance) -> TrialRecord:
        """Run a trial of a workload and record it.

        Raise LoadError if the server is gone after that.
        """
        draft = self._warm_up(workload, ready) or self._draft(workload, ready, "measured")
        record = self._writer.append_trial(draft.record, draft.rows)
        self._trials.append(record)
        self._progress.add([record])
        self._run.observer.trial_finished(record)
        if record.outcome is Outcome.CRASHED:
            self._wait(ready.instance)  # raises if the server is gone for good
        return record

    def _warm_up(self, workload: Workload, ready: ReadyInstance) -> TrialDraft | None:
        """Warm up a point before its first trial in this run.

        Return None, or a warm-up that failed. That failure is then the result of the point.
        """
        point = self._point(workload)
        rounds: list[TrialRecord] = []
        if point in self._warm or workload.warm_up is workload:
            return None
        self._warm[point] = ()
        while should_run_warm_up_round(workload, rounds, until_steady=True):
            draft = self._draft(workload, ready, "warmup")
            if draft.record.kind != "warmup":
                return draft
            self._warm_ups[point] += 1
            rounds.append(self._writer.append_trial(draft.record, draft.rows))
        self._warm[point] = (rounds[-1].metrics,)
        if not is_steady(rounds):
            times = " and ".join(show_seconds(round_.metrics.latency_s) for round_ in rounds[-2:])
            self._run.observer.warn(
                f"{workload.name} is not steady after {len(rounds)} rounds of warm-up "
                f"(latency {times} in the last two); its first trial may be slower than the others"
            )
        return None

    def _draft(self, workload: Workload, ready: ReadyInstance, kind: TrialKind) -> TrialDraft:
        point = self._point(workload)
        index = len(self._progress.get_trials(point, BLOCK))
        earlier = [*self._warm.get(point, ()), *self._progress.list_metrics(point, BLOCK)]
        return run_trial(
            ready,
            workload,
            kind,
            index,
            self._run,
            warm_up_round=self._warm_ups[point],
            visit=self._visit,
            earlier=earlier,
        )

    def _added(self, workload: Workload) -> Workload:
        """Add a new workload to the plan and to the study on disk, and return the workload."""
        study = self._plan.study
        point = self._point(workload)
        if point not in self._plan.points:
            grown = study.model_copy(update={"workloads": (*study.workloads, workload)})
            plan = self._plan.model_copy(
                update={"study": grown, "points": (*self._plan.points, point)}
            )
            self._run = replace(self._run, plan=plan)
            self._writer.write_study(format_study(grown))
            self._update_lock(plan=plan)
        return workload

    def _update_lock(self, **facts: Plan | SearchLimits) -> None:
        lock = self._writer.folder.lock()
        assert lock is not None, "a run begins by writing it"
        self._writer.write_lock(lock.model_copy(update=facts))


def make_workload_at_rate(template: Workload, step: NextRate, limits: SearchLimits) -> Workload:
    """Return a workload with the same kind of requests at the next rate of a search."""
    return template.model_copy(
        update={
            "name": f"{step.kind}-{step.rate:g}",
            "arrival": template.arrival.model_copy(update={"rate": step.rate}),
            "requests": limits.count_trial_requests(step.rate, step.kind),
            "duration": None,
        }
    )


# The default ports of vLLM, llama.cpp, Ollama, LM Studio and SGLang.
PORTS = (8000, 8080, 11434, 1234, 30000)
HOST = "127.0.0.1"
ANSWER_LIMIT_S = 1.0  # for the list of models of a server on this machine
# The usual key is not sent to a server that the user did not name.
KEY_VARIABLE = "BITBENCH_QUICK_KEY"
CONTACT_REQUESTS = 2  # the first may find a cold server
ANSWER_TOKENS = 32
# For all trials. With the first contact and the summary, the answer comes within two minutes.
CLIMB_S = 75.0
POINT_S = 4.0  # approximate duration of a trial
MOST_STREAMS = 64
MOST_ROUNDS = 16  # requests of a stream in a trial
TRIALS = 3
GROWTH = 1.1  # throughput has stopped growing if twice the streams bring less than this
_TOPICS = (
    "compiler",
    "bicycle",
    "telescope",
    "bridge",
    "violin",
    "harbour",
    "battery",
    "greenhouse",
)
_PROMPTS = tuple(
    f"Explain in about {words} words what a {topic} is, how it works and what people use it for."
    for words in (50, 100, 150, 200)
    for topic in _TOPICS
)


# A hub's GGUF file has a slash before the colon.
_URL = re.compile(r".+://.*|[^/]+:\d+(/v1)?/?")


def is_server_url(name: str) -> bool:
    """Return True for the URL of a server, and False for the name of a model."""
    return _URL.fullmatch(name) is not None


@dataclass(frozen=True)
class FoundServer:
    """A server that lists models, and the variable with the key for it."""

    url: str
    models: tuple[str, ...]
    key_variable: str = KEY_VARIABLE


def _find_servers() -> tuple[FoundServer, ...]:
    """Return the OpenAI-compatible servers on this machine that list a model.

    Only loopback is tried. Raise PlatformError if this machine cannot measure, and NotReadyError if
    no server answers.
    """
    require_native()
    servers: list[FoundServer] = []
    for port in PORTS:
        url = f"http://{HOST}:{port}"
        try:
            key = read_endpoint_api_key(KEY_VARIABLE)
            models = list_offered_models(Endpoint(url, "", key), ANSWER_LIMIT_S)
        except EndpointUnusable:
            continue
        if models:
            servers.append(FoundServer(url, models))
    if not servers:
        ports = ", ".join(map(str, PORTS))
        raise NotReadyError(
            f"nothing to measure: no OpenAI-compatible server answers on {HOST} (ports {ports}); "
            "name one (bitbench quick http://HOST:PORT), or what to compare: "
            "bitbench quick smollm2-135m gguf-q4_0"
        )
    return tuple(servers)


def choose_servers(urls: Sequence[str]) -> tuple[FoundServer, ...]:
    """Return the server at the URL, or without a URL all servers on this machine.

    Raise UsageError for several URLs, and what `_find_named_server` and `_find_servers` raise.
    """
    if len(urls) > 1:
        raise UsageError(
            "one server at a time; "
            "to compare two, write a study with two endpoints (docs/endpoints.md)"
        )
    if urls:
        return (_find_named_server(urls[0]),)
    return _find_servers()


def _find_named_server(url: str) -> FoundServer:
    """Return the server that the user named, to which the usual key is sent.

    Raise UsageError for a bad URL, and LoadError if the server lists no model.
    """
    require_native()
    base = check_input(lambda: parse_endpoint_url(url), about=url)
    return FoundServer(base, (find_first_model(base, API_KEY_ENV),), API_KEY_ENV)


def prepare_running_server(server: FoundServer, client: LoadClient, folder: Path) -> PreparedLoad:
    """Contact a server, and return the study of its ladder.

    Its prompts are token ids of an exact length if the server takes them, as vLLM, SGLang and
    llama.cpp do. Otherwise they are chats whose answers the model ends. Prompts are
    new each time: a server may remember the prompts of the last run. Raise LoadError if the server
    answers neither.
    """
    exact = add_load_study_seed(LoadOptions(output_tokens=ANSWER_TOKENS), folder)
    try:
        return _prepare(server, exact, client, folder)
    except LoadError:
        prompts = SafeFolder(folder).write("prompts.txt", "\n\n".join(_PROMPTS) + "\n")
        chats = replace(exact, api="chat", text=prompts, output_forced=False)
        return _prepare(server, chats, client, folder)


def choose_endpoint_folder() -> Path:
    """Return a folder name with the current time."""
    return Path(f"quick-{datetime.now().astimezone():%Y%m%d-%H%M%S}")


def _prepare(
    server: FoundServer, options: LoadOptions, client: LoadClient, folder: Path
) -> PreparedLoad:
    arguments = make_load_study_arguments(
        url=server.url,
        model=server.models[0],
        api_key_env=server.key_variable,
        ignore_eos=options.output_forced,
    )
    alone = replace(options, concurrency=(1,))
    probe = make_load_study_workloads(alone)[0]
    contact = first_contact(arguments, probe, client, requests=CONTACT_REQUESTS)
    template = make_load_study_workloads(alone, folder)[0]
    first = make_workload_with_streams(template, 1, contact.latency_s)
    study = make_load_study(options, arguments, (first,))
    measure = study.measure.model_copy(update={"trials": Count(min=1, max=TRIALS)})
    study = study.model_copy(update={"measure": measure})
    return PreparedLoad(study, None, contact, folder, Ladder(CLIMB_S).next_point)


def make_workload_with_streams(template: Workload, streams: int, latency_s: float) -> Workload:
    """Return a workload with the same requests in this many streams, for about `POINT_S`."""
    rounds = min(max(int(POINT_S / max(latency_s, 1e-6)), 2), MOST_ROUNDS)
    return template.model_copy(
        update={"name": f"c-{streams}", "concurrency": streams, "requests": streams * rounds}
    )


class Ladder:
    """A ladder of points, each with twice the streams, while throughput grows.

    After that it repeats all points in rounds, while time is left.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_s = clock() + limit_s

    def next_point(self, study: Study, trials: Sequence[TrialRecord]) -> Workload | None:
        """Return the next workload, or None. Only the first may end after the limit."""
        points = [LadderPoint(workload, trials) for workload in study.workloads]
        *lower, top = points
        if not top.tried:
            return top.workload
        left_s = self._ends_s - self._clock()
        if not top.counted and len(top.tried) < TRIALS:  # the machine disturbed it, so repeat it
            return top.workload if top.trial_s < left_s else None
        if len(top.counted) <= 1 and top.is_growing(lower):
            higher = top.find_higher(left_s)
            if higher is not None:
                return higher
        served = [point for point in points if point.throughput is not None]
        fewest = min((len(point.tried) for point in served), default=TRIALS)
        due = [point for point in served if len(point.tried) == fewest and point.trial_s < left_s]
        if fewest >= TRIALS or not due:
            return None
        return Random(f"{study.seed}/{len(trials)}").choice(due).workload


class LadderPoint:
    """The trials with one number of streams."""

    def __init__(self, workload: Workload, trials: Sequence[TrialRecord]) -> None:
        self.workload = workload
        self.tried = [trial for trial in trials if trial.point.workload == workload.name]
        self.counted = [trial for trial in self.tried if trial.outcome not in NOT_THE_ENGINES]

    @property
    def trial_s(self) -> float:
        """The duration of its longest trial."""
        return max((trial.duration_s or 0.0 for trial in self.tried), default=0.0)

    @property
    def latency_s(self) -> float:
        """The latency of a request: a stream sends its requests one after the other."""
        return self.trial_s * self.workload.concurrency / (self.workload.requests or 1)

    @property
    def throughput(self) -> float | None:
        """The mean of its successful trials, or None without any."""
        throughputs: list[float] = []
        for trial in self.counted:
            if trial.outcome is Outcome.OK:
                throughputs.append(trial.metrics.output_throughput or 0.0)
        return sum(throughputs) / len(throughputs) if throughputs else None

    def is_growing(self, lower: Sequence["LadderPoint"]) -> bool:
        """Return True if its throughput is clearly above the best of the lower points."""
        best = max((point.throughput or 0.0 for point in lower), default=0.0)
        return self.throughput is not None and self.throughput >= GROWTH * best

    def find_higher(self, left_s: float) -> Workload | None:
        """Return the workload with twice the streams, or None if it does not fit into this time."""
        if self.workload.concurrency >= MOST_STREAMS:
            return None
        higher = make_workload_with_streams(
            self.workload, 2 * self.workload.concurrency, self.latency_s
        )
        trial_s = 2 * self.latency_s * (higher.requests or 0) / higher.concurrency
        return higher if trial_s < left_s else None
