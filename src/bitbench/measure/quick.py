"""`bitbench quick` of a server: a short ladder of streams, until throughput stops growing or the time is up."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random

from bitbench.engines.endpoint import EndpointUnusable, base_url, key_from, offered_models
from bitbench.measure.endpoint_check import first_contact, first_model
from bitbench.measure.load_study import (
    API_KEY_ENV,
    LoadOptions,
    PreparedLoad,
    endpoint_arguments,
    study_of,
    with_seed,
    workloads_of,
)
from bitbench.ports import Endpoint, LoadClient
from bitbench.records.trial import NOT_THE_ENGINES, Outcome, TrialRecord
from bitbench.study.checked import checked
from bitbench.study.study import Count, Study
from bitbench.study.workload import Workload
from bitbench.util.errors import LoadError, NotReadyError
from bitbench.util.linux import require_linux
from bitbench.util.safe_files import SafeFolder

# As vLLM, llama.cpp, Ollama, LM Studio and SGLang have them unless told otherwise.
PORTS = (8000, 8080, 11434, 1234, 30000)
HOST = "127.0.0.1"
ANSWER_LIMIT_S = 1.0  # for the list of models of a server on this machine
KEY_VARIABLE = "BITBENCH_QUICK_KEY"  # the user has not named the server, so the usual key is not sent to it
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
    for topic in ("compiler", "bicycle", "telescope", "bridge", "violin", "harbour", "battery", "greenhouse")
)


@dataclass(frozen=True)
class FoundServer:
    url: str
    models: tuple[str, ...]
    key_variable: str = KEY_VARIABLE


def find_servers() -> tuple[FoundServer, ...]:
    """OpenAI-compatible ones on this machine that list a model; loopback only. Raises PlatformError where they could
    not be measured, NotReadyError where there is none."""
    require_linux()
    found = []
    for port in PORTS:
        url = f"http://{HOST}:{port}"
        try:
            models = offered_models(Endpoint(url, "", key_from(KEY_VARIABLE)), ANSWER_LIMIT_S)
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
    require_linux()
    base = checked(lambda: base_url(url), about=url)
    return FoundServer(base, (first_model(base, API_KEY_ENV),), API_KEY_ENV)


def prepare_server(server: FoundServer, client: LoadClient, folder: Path) -> PreparedLoad:
    """Token ids of an exact length where the server takes them, as vLLM, SGLang and llama.cpp do; else chats, whose
    answers end where the model ends them. Prompts are new each time: a server may remember those of the last. Raises
    LoadError where it answers neither."""
    exact = with_seed(LoadOptions(output_tokens=ANSWER_TOKENS), folder)
    try:
        return _prepare(server, exact, client, folder)
    except LoadError:
        prompts = SafeFolder(folder).write("prompts.txt", "\n\n".join(_PROMPTS) + "\n")
        chats = replace(exact, api="chat", text=prompts, output_forced=False)
        return _prepare(server, chats, client, folder)


def new_folder() -> Path:
    return Path(f"quick-{datetime.now().astimezone():%Y%m%d-%H%M%S}")


def _prepare(server: FoundServer, options: LoadOptions, client: LoadClient, folder: Path) -> PreparedLoad:
    arguments = endpoint_arguments(
        url=server.url, model=server.models[0], api_key_env=server.key_variable, ignore_eos=options.output_forced
    )
    alone = replace(options, concurrency=(1,))
    contact = first_contact(arguments, workloads_of(alone)[0], client, requests=CONTACT_REQUESTS)
    first = at_streams(workloads_of(alone, folder)[0], 1, contact.latency_s)
    study = study_of(options, arguments, (first,))
    measure = study.measure.model_copy(update={"trials": Count(min=1, max=TRIALS)})
    ladder = Ladder(CLIMB_S)
    return PreparedLoad(study.model_copy(update={"measure": measure}), None, contact, folder, ladder.next_point)


def at_streams(like: Workload, streams: int, latency_s: float) -> Workload:
    """The same requests in so many streams, as many of them as take about `POINT_S`."""
    rounds = min(max(int(POINT_S / max(latency_s, 1e-6)), 2), MOST_ROUNDS)
    return like.model_copy(update={"name": f"c-{streams}", "concurrency": streams, "requests": streams * rounds})


def streams_of(trial: TrialRecord) -> int:
    """By the name that `at_streams` gave its point."""
    return int(trial.point.workload.removeprefix("c-"))


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
        if len(top.tried) == 1 or not top.counted:
            if not top.counted and len(top.tried) < TRIALS:  # the machine's fault: once more
                return top.workload if top.trial_s < left_s else None
            if top.grows(lower) and top.workload.concurrency < MOST_STREAMS:
                higher = at_streams(top.workload, 2 * top.workload.concurrency, top.latency_s)
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
        served = [trial.metrics.output_throughput or 0.0 for trial in self.counted if trial.outcome is Outcome.OK]
        return sum(served) / len(served) if served else None

    def grows(self, lower: Sequence["LadderPoint"]) -> bool:
        best = max((point.throughput or 0.0 for point in lower), default=0.0)
        return self.throughput is not None and self.throughput >= GROWTH * best
