"""The study that `bitbench load` runs: the first contact with an endpoint, what is asked of it at which points, and
how far a search goes."""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from bitbench.analysis.objectives import TPOT_UNKNOWN, TRIAL_LATENCIES
from bitbench.engines.endpoint import (
    KEY_REFUSED,
    KEY_UNSENDABLE,
    KEY_WANTED,
    EndpointArguments,
    EndpointInstance,
    EndpointUnusable,
    endpoint_api_key,
    endpoint_url,
    offered_models,
)
from bitbench.loadgen.inputs import check_input_files
from bitbench.loadgen.verdict import load_verdict
from bitbench.ports import Endpoint, InstanceFailed, LoadClient
from bitbench.records.folder import StudyFolder
from bitbench.records.request_rows import RequestRows
from bitbench.records.request_sums import RequestSums
from bitbench.records.trial import NOT_THE_ENGINES, Failure, Outcome, TrialRecord
from bitbench.running.trial import load_job
from bitbench.study.base import Json
from bitbench.study.metrics import NEEDED, PROMISED, Promised
from bitbench.study.objective import Objective, RateTrialKind, SearchLimits
from bitbench.study.study import Argument, Count, EngineSetup, Measure, Study, Timeouts
from bitbench.study.study_file import checked
from bitbench.study.workload import Api, Arrival, ClosedLoop, Workload
from bitbench.util.errors import LoadError, UndecidedError, UnreachableError, UsageError
from bitbench.util.units import parse_seconds, show_about, show_seconds, written_seconds

REQUESTS = 4  # one after the other; the first may find a cold server and is left out of the latency
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class FirstContact:
    """Without load: medians over a few requests, one at a time, and the fastest of them."""

    latency_s: float
    ttft_s: float
    requests: int
    fastest_s: Mapping[Promised, float]  # without a time per token where each answer has one token


def first_contact_model(url: str, api_key_env: str) -> str:
    """The first that the server lists. Raises LoadError where there is none."""
    try:
        offered = offered_models(Endpoint(url, "", endpoint_api_key(api_key_env)), needs_list=True)
    except EndpointUnusable as problem:
        raise LoadError(_advise(problem.failure, api_key_env)) from None
    if not offered:
        raise LoadError(f"{url} lists no models; name one with --model")
    return offered[0]


def first_contact(
    arguments: EndpointArguments, workload: Workload, load: LoadClient, *, requests: int = REQUESTS
) -> FirstContact:
    """A few requests of this workload's shape, one at a time, with prompts that no other contact had: a server may
    remember them. Raises LoadError: what is wrong and what to do.

    A file that the workload names is looked for from the working directory: no study folder exists yet.
    """
    try:
        endpoint = EndpointInstance(arguments).wait_ready(TIMEOUT_S)
    except InstanceFailed as failed:
        raise LoadError(_advise(failed.failure, arguments.api_key_env)) from None
    alone = workload.model_copy(
        update={"concurrency": 1, "arrival": ClosedLoop(), "requests": requests, "duration": None}
    )
    limits = Timeouts(request=TIMEOUT_S, stall=TIMEOUT_S)
    result = load.run(load_job(endpoint, alone, seed=(secrets.randbits(64), 0), limits=limits))
    failure = load_verdict(result.sums, alone, result.health)
    if failure is not None and failure.outcome not in NOT_THE_ENGINES:
        raise LoadError(_explain(result.requests, failure.cause, arguments))
    rows = result.requests.slice(1)
    later, sums = RequestRows(rows), RequestSums.of(rows)
    times = {name: later.time(name) for name in PROMISED}
    return FirstContact(
        latency_s=sums.statistic("latency", "p50") or 0.0,
        ttft_s=sums.statistic("ttft", "p50") or 0.0,
        requests=requests - 1,
        fastest_s={
            name: float(np.nanmin(found))
            for name, found in times.items()
            if np.isfinite(found).any()
        },
    )


def _refuse_unreachable(objectives: Sequence[Objective], contact: FirstContact) -> None:
    """Raises UnreachableError for a limit that even the fastest request without load did not meet: load only adds to
    it, so that a search could but fail. Raises UndecidedError for one on a time that these answers do not show."""
    for objective in objectives:
        fastest = contact.fastest_s.get(objective.metric)
        if fastest is None:
            raise UndecidedError(
                f"{objective.name}={written_seconds(objective.limit)} cannot be decided: the {objective.metric} is "
                f"unknown, since {TPOT_UNKNOWN}; nothing was searched"
            )
        if fastest > objective.limit:
            raise UnreachableError(
                f"{objective.name}={written_seconds(objective.limit)} cannot be met at any rate: without load the "
                f"fastest of {contact.requests} requests had a {objective.metric} of {show_seconds(fastest)}; nothing "
                f"was searched"
            )


def _advise(failure: Failure, api_key_env: str) -> str:
    if failure.outcome is Outcome.CRASHED:
        return f"{failure.cause}; is the server running, and is this its port?"
    if failure.cause.endswith((KEY_REFUSED, KEY_WANTED, KEY_UNSENDABLE)):
        return f"{failure.cause}; set the environment variable {api_key_env}, or name another with --api-key-env"
    return failure.cause


def _explain(requests: pa.Table, cause: str, arguments: EndpointArguments) -> str:
    """The first request that failed, in one sentence with what to do."""
    rows: list[dict[str, Json]] = requests.to_pylist()
    row = next((row for row in rows if row["status"] != "ok"), None)
    if row is None:  # complete, but not as long as asked
        return (
            f"{cause.rstrip('.')}; if the server does not support ignore_eos, use --no-ignore-eos"
        )
    status, said = row["http_status"], str(row["error"] or "no explanation").rstrip(".")
    if "without usage" in said:
        return f"{said}; the server must send it when the request has `stream_options: {{include_usage: true}}`"
    if status in (None, 200):
        return f"the first request failed: {said}"
    advice = {
        401: f"is the right key in the environment variable {arguments.api_key_env}? --api-key-env names another",
        403: f"is the right key in the environment variable {arguments.api_key_env}? --api-key-env names another",
        404: "--model names the model, --api chat or completions the kind of endpoint",
        400: "--no-ignore-eos, fewer --input-tokens, or --api chat with --text may help",
    }
    return f"{arguments.url} says {status}: {said}" + (
        f"; {advice[status]}" if status in advice else ""
    )


API_KEY_ENV = "OPENAI_API_KEY"
DEFAULT_CONCURRENCIES = (1, 2, 4, 8)
DEFAULT_TRIALS = 3
DEFAULT_SEARCH_TRIALS = 12
DEFAULT_DURATION_S = 30.0
DEFAULT_PRECISION = 0.05  # of the rate that a search finds
LEAST_SEARCH_REQUESTS = 200  # of a full trial: a mean or a median of fewer depends on single bursts
LONGEST_CHEAP_TRIAL_S = 300.0  # from here on a search offers the p95
REQUESTS_PER_STREAM = (
    16  # of a closed loop: a p99 over less than a few dozen requests is their maximum
)
SHORTEST_SEARCH_TRIAL_S = 10.0  # in shorter ones a single hiccup of the machine is the p99
# A search begins with the rate of one client that waits for each answer, and may go this far from there.
BELOW_START, ABOVE_START = 16.0, 4096.0
GUESSED_CLIENTS = 8  # that a server may serve at once: for the time that a search takes
SEEDS = 2**31
SPACINGS = (Arrival.POISSON, Arrival.CONSTANT)


@dataclass(frozen=True)
class LoadOptions:
    """What is sent, at which points, how often. Objectives without points ask for a search."""

    concurrency: tuple[int, ...] | None = None
    rate: tuple[float, ...] | None = None
    objectives: tuple[Objective, ...] = ()
    input_tokens: int = 128
    output_tokens: int = 64
    text: Path | None = None
    api: str = Api.COMPLETIONS
    arrival: str | None = None  # of rates; poisson where it is not given
    duration: str | float | None = None
    requests: int | None = None
    trials: int | None = None
    precision: float | None = None
    max_rate: float | None = None
    output_forced: bool = True
    seed: int | None = None  # None: a new one, or that of the folder which is resumed

    @property
    def is_search(self) -> bool:
        return bool(self.objectives) and self.concurrency is None and self.rate is None


NextPoint = Callable[
    [Study, Sequence[TrialRecord]], Workload | None
]  # from what was tried; None: it is enough


@dataclass(frozen=True)
class PreparedLoad:
    """An endpoint that has answered, and the study that will be run on it."""

    study: Study
    search: SearchLimits | None
    contact: FirstContact
    folder: Path
    next_point: NextPoint | None = None  # where points follow from results; else all of the study


def prepare_load(
    url: str,
    options: LoadOptions,
    client: LoadClient,
    *,
    into: Path | None = None,
    model: str | None = None,
    api_key_env: str = API_KEY_ENV,
) -> PreparedLoad:
    """Check the options, meet the endpoint, and make the study, with prompts that no run before it had unless a seed
    asks for them. Raises UsageError before anything is sent where the
    options are wrong; after a few requests LoadError where the endpoint does not answer as asked, and UnreachableError
    where a search could not find any rate."""
    base = checked(lambda: endpoint_url(url), about=url)
    folder = into or Path(f"load-{_place(base)}-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
    options = seeded_load_study_options(options, folder)
    points = load_study_workloads(options)
    check_input_files(points, Path())
    arguments = load_study_arguments(
        url=base,
        model=model or first_contact_model(base, api_key_env),
        api_key_env=api_key_env,
        ignore_eos=options.output_forced,
    )
    contact = first_contact(arguments, points[0], client)
    if options.is_search:
        _refuse_unreachable(options.objectives, contact)
    workloads = load_study_workloads(options, folder, contact.latency_s)
    search = load_study_search_limits(options, contact.latency_s) if options.is_search else None
    return PreparedLoad(make_load_study(options, arguments, workloads), search, contact, folder)


def seeded_load_study_options(options: LoadOptions, folder: Path) -> LoadOptions:
    """The seed that was asked for, else that of a folder which is resumed, else a new one: a server that remembers
    prompts must not know those of a run."""
    if options.seed is not None:
        return options
    lock = StudyFolder(folder).lock()
    return replace(options, seed=secrets.randbelow(SEEDS) if lock is None else lock.plan.study.seed)


def load_study_arguments(**given: Argument | None) -> EndpointArguments:
    known = {name: value for name, value in given.items() if value is not None}
    return checked(lambda: EndpointArguments.model_validate(known))


def load_study_workloads(
    options: LoadOptions, folder: Path | None = None, latency_s: float | None = None
) -> tuple[Workload, ...]:
    """The points of a sweep, or the first one of a search (for which the unloaded latency must be known). With a
    folder, a file is named relative to it; without, as it was given."""
    if options.concurrency is not None and options.rate is not None:
        raise UsageError("--concurrency and --rate cannot be combined; give one of them")
    if options.duration is not None and options.requests is not None:
        raise UsageError(
            "--duration and --requests both set the length of a trial; give one of them"
        )
    if options.max_rate is not None and not options.is_search:
        raise UsageError("--max-rate limits a search; give --slo, without --rate and --concurrency")
    if options.precision is not None and not options.is_search:
        raise UsageError("--precision ends a search; give --slo, without --rate and --concurrency")
    if options.is_search:
        limits = load_study_search_limits(options, latency_s)
        first = _open_loop(options, folder, limits.start, DEFAULT_DURATION_S)
        return (_as_first_of_search(first, limits),)
    if options.rate is not None:
        return tuple(
            _open_loop(options, folder, rate, DEFAULT_DURATION_S)
            for rate in sorted(set(options.rate))
        )
    levels = sorted(set(options.concurrency or DEFAULT_CONCURRENCIES))
    return tuple(_closed_loop(options, folder, level) for level in levels)


def load_study_search_limits(options: LoadOptions, latency_s: float | None) -> SearchLimits:
    """Return how far a search goes from the rate of one client that waits for each answer."""
    one_client = float(f"{1.0 / latency_s:.2g}") if latency_s else 1.0
    if options.max_rate is not None and not 0 < options.max_rate < inf:
        raise UsageError("--max-rate must be a number of requests per second above 0")
    needed = [NEEDED[objective.statistic] for objective in options.objectives]
    fixed_s = None
    if options.duration is not None:
        fixed_s = checked(lambda: parse_seconds(options.duration), about="--duration")
    return SearchLimits(
        start=one_client if options.max_rate is None else min(one_client, options.max_rate),
        lowest=one_client / BELOW_START,
        highest=options.max_rate or one_client * ABOVE_START,
        precision=DEFAULT_PRECISION if options.precision is None else options.precision,
        trials=options.trials or DEFAULT_SEARCH_TRIALS,
        needed=max(LEAST_SEARCH_REQUESTS, *needed),
        shortest_s=max(SHORTEST_SEARCH_TRIAL_S, TRIAL_LATENCIES * (latency_s or 0.0)),
        fixed_requests=options.requests,
        fixed_s=fixed_s,
    )


@dataclass(frozen=True)
class SearchCost:
    """What a search takes at most, if the server can serve about this rate."""

    trials: int
    requests: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.requests:,} requests in {show_about(self.seconds)}"


def estimate_search_cost(limits: SearchLimits, rate: float, *, done: int = 0) -> SearchCost:
    """Return the cost of the trials that are left, with one that verifies the answer."""
    left = max(limits.trials - done, 0)
    requests = left * limits.trial_requests(rate, RateTrialKind.FULL)
    requests += limits.trial_requests(rate, RateTrialKind.VERIFYING)
    return SearchCost(left + 1, requests, requests / rate)


def describe_search_cost(limits: SearchLimits) -> str:
    """Return what a search takes, before anything is known of the server but one client's rate."""
    rates = [limits.start]
    if limits.start * GUESSED_CLIENTS <= limits.highest:
        rates.append(limits.start * GUESSED_CLIENTS)
    costs = [
        f"{estimate_search_cost(limits, rate)} if the answer is near {rate:g} requests/s"
        for rate in rates
    ]
    return f"the search takes up to {limits.trials + 1} trials: {', '.join(costs)}"


def offer_p95(study: Study, limits: SearchLimits, rate: float) -> str | None:
    """Return a sentence with a cheaper command if a p99 needs trials of more than five minutes at this rate."""
    trial_s = limits.needed / rate
    slow = [objective for objective in study.objectives if objective.statistic == "p99"]
    is_fixed = limits.fixed_requests is not None or limits.fixed_s is not None
    if not slow or is_fixed or trial_s <= LONGEST_CHEAP_TRIAL_S:
        return None
    cheaper = ",".join(
        f"{objective.name.replace('p99', 'p95')}={written_seconds(objective.limit)}"
        for objective in study.objectives
    )
    return (
        f"a p99 needs {NEEDED['p99']:,} requests in each trial, which take {show_about(trial_s)} at {rate:g} "
        f"requests/s. A p95 needs {NEEDED['p95']}: bitbench load {study.engines[0].args['url']} --slo {cheaper}"
    )


def _as_first_of_search(workload: Workload, limits: SearchLimits) -> Workload:
    count = limits.trial_requests(limits.start, RateTrialKind.SHORT)
    name = f"{RateTrialKind.SHORT}-{limits.start:g}"
    return workload.model_copy(update={"name": name, "requests": count, "duration": None})


def make_load_study(
    options: LoadOptions, arguments: EndpointArguments, workloads: tuple[Workload, ...]
) -> Study:
    args: dict[str, Argument] = arguments.model_dump(exclude_defaults=True)
    trials = 1 if options.is_search else options.trials or DEFAULT_TRIALS
    return checked(
        lambda: Study(
            name=f"load-{_place(arguments.url)}".replace(":", "-"),
            description=f"{arguments.model} at {arguments.url}, not started by bitbench.",
            engines=(EngineSetup(name=arguments.model, engine="endpoint", args=args),),
            workloads=workloads,
            objectives=options.objectives,
            measure=Measure(starts=Count(min=1, max=1), trials=Count(min=trials, max=trials)),
            seed=options.seed or 0,
        )
    )


def _place(url: str) -> str:
    """`127.0.0.1-8000`: for names of folders and studies."""
    parts = urlsplit(url)
    return f"{parts.hostname}-{parts.port}" if parts.port else str(parts.hostname)


def _open_loop(
    options: LoadOptions, folder: Path | None, rate: float, default_s: float
) -> Workload:
    spacing = options.arrival or Arrival.POISSON
    if spacing not in SPACINGS:
        raise UsageError(f"unknown --arrival {spacing}; use {' or '.join(SPACINGS)}")
    length: dict[str, Json] = {"duration": options.duration or default_s}
    if options.requests is not None:
        length = {"requests": options.requests}
    return _workload(
        options, folder, name=f"rate-{rate:g}", arrival={"kind": spacing, "rate": rate}, **length
    )


def _closed_loop(options: LoadOptions, folder: Path | None, concurrency: int) -> Workload:
    if options.arrival is not None:
        raise UsageError(
            "--arrival sets the spacing of requests at a rate; add --rate, or --slo for a search"
        )
    if options.duration is not None:
        raise UsageError(
            "--duration is for rates; a sweep over concurrencies takes --requests per trial"
        )
    count = options.requests or REQUESTS_PER_STREAM * max(concurrency, 2)
    return _workload(
        options,
        folder,
        name=f"c-{concurrency}",
        concurrency=concurrency,
        arrival="closed_loop",
        requests=count,
    )


def _workload(options: LoadOptions, folder: Path | None, **more: Json) -> Workload:
    if options.api not in tuple(Api):
        raise UsageError(f"unknown --api {options.api}; use {' or '.join(Api)}")
    shape: dict[str, Json] = {
        "input_tokens": options.input_tokens,
        "output_tokens": options.output_tokens,
        "output_forced": options.output_forced,
        "api": options.api,
        **more,
    }
    if options.text is not None:
        shape["text"] = {
            "file": os.path.relpath(options.text, folder) if folder else str(options.text)
        }
    elif options.api == Api.CHAT:
        raise UsageError("--api chat takes messages, not token ids; give --text FILE with prompts")
    return checked(lambda: Workload.model_validate(shape))
