"""Makes the study that `bitbench load` runs.

It contacts the endpoint, decides the requests and the points, and limits how far a search goes.
"""

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
    list_offered_models,
    parse_endpoint_url,
    read_endpoint_api_key,
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
from bitbench.study.study_file import check_input
from bitbench.study.workload import Api, Arrival, ClosedLoop, Workload
from bitbench.util.errors import LoadError, UndecidedError, UnreachableError, UsageError
from bitbench.util.units import format_exact_seconds, parse_seconds, show_about, show_seconds

# Sent one after the other. The first may find a cold server and is left out of the latency.
REQUESTS = 4
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class FirstContact:
    """The times of an endpoint without load: medians and the fastest of a few single requests."""

    latency_s: float
    ttft_s: float
    requests: int
    # It lacks the time per token if each answer has one token.
    fastest_s: Mapping[Promised, float]


def find_first_model(url: str, api_key_env: str) -> str:
    """Return the first model that the server lists. Raise LoadError if the list is empty."""
    try:
        models = list_offered_models(
            Endpoint(url, "", read_endpoint_api_key(api_key_env)), needs_list=True
        )
    except EndpointUnusable as problem:
        raise LoadError(_add_advice(problem.failure, api_key_env)) from None
    if not models:
        raise LoadError(f"{url} lists no models; name one with --model")
    return models[0]


def first_contact(
    arguments: EndpointArguments, workload: Workload, load: LoadClient, *, requests: int = REQUESTS
) -> FirstContact:
    """Send a few requests of this workload's shape, one at a time, and return their times.

    The prompts are new, since a server may have cached the prompts of another contact. Files of the
    workload are relative to the working directory, since the study folder does not exist yet. Raise
    LoadError with the problem and a remedy.
    """
    try:
        endpoint = EndpointInstance(arguments).wait_ready(TIMEOUT_S)
    except InstanceFailed as failed:
        raise LoadError(_add_advice(failed.failure, arguments.api_key_env)) from None
    alone = workload.model_copy(
        update={"concurrency": 1, "arrival": ClosedLoop(), "requests": requests, "duration": None}
    )
    limits = Timeouts(request=TIMEOUT_S, stall=TIMEOUT_S)
    result = load.run(load_job(endpoint, alone, seed=(secrets.randbits(64), 0), limits=limits))
    failure = load_verdict(result.sums, alone, result.health)
    if failure is not None and failure.outcome not in NOT_THE_ENGINES:
        raise LoadError(_explain(result.requests, failure.cause, arguments))
    rows = result.requests.slice(1)
    later = RequestRows(rows)
    sums = RequestSums.of(rows)
    fastest_s: dict[Promised, float] = {}
    for name in PROMISED:
        times = later.time(name)
        if np.isfinite(times).any():
            fastest_s[name] = float(np.nanmin(times))
    return FirstContact(
        latency_s=sums.statistic("latency", "p50") or 0.0,
        ttft_s=sums.statistic("ttft", "p50") or 0.0,
        requests=requests - 1,
        fastest_s=fastest_s,
    )


def _refuse_unreachable(objectives: Sequence[Objective], contact: FirstContact) -> None:
    """Raise UnreachableError for a limit that even the fastest request without load missed.

    Load only adds to the time, so a search would fail. Raise UndecidedError for a limit on a time
    that these answers do not show.
    """
    for objective in objectives:
        fastest = contact.fastest_s.get(objective.metric)
        limit = f"{objective.name}={format_exact_seconds(objective.limit)}"
        if fastest is None:
            raise UndecidedError(
                f"{limit} cannot be decided: the {objective.metric} is unknown, "
                f"since {TPOT_UNKNOWN}; nothing was searched"
            )
        if fastest > objective.limit:
            raise UnreachableError(
                f"{limit} cannot be met at any rate: without load the fastest of "
                f"{contact.requests} requests had a {objective.metric} of "
                f"{show_seconds(fastest)}; nothing was searched"
            )


def _add_advice(failure: Failure, api_key_env: str) -> str:
    """Return the cause of a failure with a remedy."""
    if failure.outcome is Outcome.CRASHED:
        return f"{failure.cause}; is the server running, and is this its port?"
    if failure.cause.endswith((KEY_REFUSED, KEY_WANTED, KEY_UNSENDABLE)):
        return (
            f"{failure.cause}; set the environment variable {api_key_env}, "
            "or name another with --api-key-env"
        )
    return failure.cause


def _explain(requests: pa.Table, cause: str, arguments: EndpointArguments) -> str:
    """Return one sentence about the first request that failed, with a remedy."""
    rows: list[dict[str, Json]] = requests.to_pylist()
    failed = [row for row in rows if row["status"] != "ok"]
    if not failed:  # complete, but not of the requested length
        return (
            f"{cause.rstrip('.')}; if the server does not support ignore_eos, use --no-ignore-eos"
        )
    status = failed[0]["http_status"]
    error = str(failed[0]["error"] or "no explanation").rstrip(".")
    if "without usage" in error:
        return (
            f"{error}; the server must send it when the request has "
            "`stream_options: {include_usage: true}`"
        )
    if status in (None, 200):
        return f"the first request failed: {error}"
    key_advice = (
        f"is the right key in the environment variable {arguments.api_key_env}? "
        "--api-key-env names another"
    )
    advice = {
        401: key_advice,
        403: key_advice,
        404: "--model names the model, --api chat or completions the kind of endpoint",
        400: "--no-ignore-eos, fewer --input-tokens, or --api chat with --text may help",
    }
    sentence = f"{arguments.url} says {status}: {error}"
    return f"{sentence}; {advice[status]}" if status in advice else sentence


API_KEY_ENV = "OPENAI_API_KEY"
DEFAULT_CONCURRENCIES = (1, 2, 4, 8)
DEFAULT_TRIALS = 3
DEFAULT_SEARCH_TRIALS = 12
DEFAULT_DURATION_S = 30.0
DEFAULT_PRECISION = 0.05  # of the rate that a search returns
# Requests of a full trial. A mean or a median of fewer depends on single bursts.
LEAST_SEARCH_REQUESTS = 200
LONGEST_CHEAP_TRIAL_S = 300.0  # for longer trials a search offers the p95
# In a closed loop. A p99 of fewer than a few dozen requests is their maximum.
REQUESTS_PER_STREAM = 16
SHORTEST_SEARCH_TRIAL_S = 10.0  # in a shorter one a single delay of the machine is the p99
# A search begins with the rate of one client that waits for each answer. Its rates stay within
# these factors of that rate.
BELOW_START = 16.0
ABOVE_START = 4096.0
# Clients that a server may serve at once, to estimate how long a search takes.
GUESSED_CLIENTS = 8
SEEDS = 2**31
SPACINGS = (Arrival.POISSON, Arrival.CONSTANT)


@dataclass(frozen=True)
class LoadOptions:
    """The options of a load. Objectives without rates or concurrencies mean a search."""

    concurrency: tuple[int, ...] | None = None
    rate: tuple[float, ...] | None = None
    objectives: tuple[Objective, ...] = ()
    input_tokens: int = 128
    output_tokens: int = 64
    text: Path | None = None
    api: str = Api.COMPLETIONS
    arrival: str | None = None  # of rates, poisson by default
    duration: str | float | None = None
    requests: int | None = None
    trials: int | None = None
    precision: float | None = None
    max_rate: float | None = None
    output_forced: bool = True
    seed: int | None = None  # None means a new one, or the seed of a folder that is resumed

    @property
    def is_search(self) -> bool:
        return bool(self.objectives) and self.concurrency is None and self.rate is None


# Returns the next workload from the trials so far, or None at the end.
NextPoint = Callable[[Study, Sequence[TrialRecord]], Workload | None]


@dataclass(frozen=True)
class PreparedLoad:
    """An endpoint that has answered, and the study that will be run on it."""

    study: Study
    search: SearchLimits | None
    contact: FirstContact
    folder: Path
    next_point: NextPoint | None = None  # set if each point depends on the results so far


def prepare_load(
    url: str,
    options: LoadOptions,
    client: LoadClient,
    *,
    into: Path | None = None,
    model: str | None = None,
    api_key_env: str = API_KEY_ENV,
) -> PreparedLoad:
    """Check the options, contact the endpoint, and make the study.

    Its prompts are new unless the options have a seed. Raise UsageError for wrong options before
    anything is sent. After a few requests, raise LoadError if the endpoint does not answer as
    requested, and UnreachableError if a search could not succeed.
    """
    base = check_input(lambda: parse_endpoint_url(url), about=url)
    folder = into or Path(
        f"load-{_format_address(base)}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    )
    options = add_load_study_seed(options, folder)
    points = make_load_study_workloads(options)
    check_input_files(points, Path())
    arguments = make_load_study_arguments(
        url=base,
        model=model or find_first_model(base, api_key_env),
        api_key_env=api_key_env,
        ignore_eos=options.output_forced,
    )
    contact = first_contact(arguments, points[0], client)
    if options.is_search:
        _refuse_unreachable(options.objectives, contact)
    workloads = make_load_study_workloads(options, folder, contact.latency_s)
    search: SearchLimits | None = None
    if options.is_search:
        search = make_load_study_search_limits(options, contact.latency_s)
    return PreparedLoad(make_load_study(options, arguments, workloads), search, contact, folder)


def add_load_study_seed(options: LoadOptions, folder: Path) -> LoadOptions:
    """Return the options with a seed: the given seed, the seed of a resumed folder, or a new seed.

    A new run gets new prompts, since a server may have cached the prompts of earlier runs.
    """
    if options.seed is not None:
        return options
    lock = StudyFolder(folder).lock()
    seed = secrets.randbelow(SEEDS) if lock is None else lock.plan.study.seed
    return replace(options, seed=seed)


def make_load_study_arguments(**values: Argument | None) -> EndpointArguments:
    """Return the arguments of an endpoint from the values that are not None.

    Raise UsageError if a value is invalid.
    """
    present = {name: value for name, value in values.items() if value is not None}
    return check_input(lambda: EndpointArguments.model_validate(present))


def make_load_study_workloads(
    options: LoadOptions, folder: Path | None = None, latency_s: float | None = None
) -> tuple[Workload, ...]:
    """Return the points of a sweep, or the first point of a search.

    A search needs the unloaded latency. With a folder, paths are relative to it, and otherwise as
    they were given. Raise UsageError for options that cannot be combined.
    """
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
        limits = make_load_study_search_limits(options, latency_s)
        first = _make_open_loop(options, folder, limits.start, DEFAULT_DURATION_S)
        return (_make_first_of_search(first, limits),)
    if options.rate is not None:
        rates = sorted(set(options.rate))
        return tuple(_make_open_loop(options, folder, rate, DEFAULT_DURATION_S) for rate in rates)
    levels = sorted(set(options.concurrency or DEFAULT_CONCURRENCIES))
    return tuple(_make_closed_loop(options, folder, level) for level in levels)


def make_load_study_search_limits(options: LoadOptions, latency_s: float | None) -> SearchLimits:
    """Return the limits of a search, which starts with one client that waits for each answer."""
    one_client = float(f"{1.0 / latency_s:.2g}") if latency_s else 1.0
    start = one_client
    if options.max_rate is not None:
        if not 0 < options.max_rate < inf:
            raise UsageError("--max-rate must be a number of requests per second above 0")
        start = min(one_client, options.max_rate)
    needed = [NEEDED[objective.statistic] for objective in options.objectives]
    fixed_s = None
    if options.duration is not None:
        fixed_s = check_input(lambda: parse_seconds(options.duration), about="--duration")
    precision = DEFAULT_PRECISION if options.precision is None else options.precision
    return SearchLimits(
        start=start,
        lowest=one_client / BELOW_START,
        highest=options.max_rate or one_client * ABOVE_START,
        precision=precision,
        trials=options.trials or DEFAULT_SEARCH_TRIALS,
        needed=max(LEAST_SEARCH_REQUESTS, *needed),
        shortest_s=max(SHORTEST_SEARCH_TRIAL_S, TRIAL_LATENCIES * (latency_s or 0.0)),
        fixed_requests=options.requests,
        fixed_s=fixed_s,
    )


@dataclass(frozen=True)
class SearchCost:
    """The maximum cost of a search, if its result is near an assumed rate."""

    trials: int
    requests: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.requests:,} requests in {show_about(self.seconds)}"


def estimate_search_cost(limits: SearchLimits, rate: float, *, done: int = 0) -> SearchCost:
    """Return the maximum cost of the rest of a search, if its result is near `rate`.

    It includes the trial that verifies the result.
    """
    left = max(limits.trials - done, 0)
    requests = left * limits.count_trial_requests(rate, RateTrialKind.FULL)
    requests += limits.count_trial_requests(rate, RateTrialKind.VERIFYING)
    return SearchCost(left + 1, requests, requests / rate)


def describe_search_cost(limits: SearchLimits) -> str:
    """Return a sentence with the cost of a search, when only the rate of one client is known."""
    rates = [limits.start]
    if limits.start * GUESSED_CLIENTS <= limits.highest:
        rates.append(limits.start * GUESSED_CLIENTS)
    costs = [
        f"{estimate_search_cost(limits, rate)} if the answer is near {rate:g} requests/s"
        for rate in rates
    ]
    return f"the search takes up to {limits.trials + 1} trials: {', '.join(costs)}"


def offer_p95(study: Study, limits: SearchLimits, rate: float) -> str | None:
    """Return a sentence with a cheaper command if a p99 needs trials of over five minutes."""
    trial_s = limits.needed / rate
    slow = [objective for objective in study.objectives if objective.statistic == "p99"]
    is_fixed = limits.fixed_requests is not None or limits.fixed_s is not None
    if not slow or is_fixed or trial_s <= LONGEST_CHEAP_TRIAL_S:
        return None
    objectives: list[str] = []
    for objective in study.objectives:
        name = objective.name.replace("p99", "p95")
        objectives.append(f"{name}={format_exact_seconds(objective.limit)}")
    return (
        f"a p99 needs {NEEDED['p99']:,} requests in each trial, which take {show_about(trial_s)} "
        f"at {rate:g} requests/s. A p95 needs {NEEDED['p95']}: bitbench load "
        f"{study.engines[0].args['url']} --slo {','.join(objectives)}"
    )


def _make_first_of_search(workload: Workload, limits: SearchLimits) -> Workload:
    """Return a workload with the name and the length of the first trial of a search."""
    count = limits.count_trial_requests(limits.start, RateTrialKind.SHORT)
    name = f"{RateTrialKind.SHORT}-{limits.start:g}"
    return workload.model_copy(update={"name": name, "requests": count, "duration": None})


def make_load_study(
    options: LoadOptions, arguments: EndpointArguments, workloads: tuple[Workload, ...]
) -> Study:
    """Return the study of a load on an endpoint. Raise UsageError for invalid values."""
    args: dict[str, Argument] = arguments.model_dump(exclude_defaults=True)
    trials = options.trials or DEFAULT_TRIALS
    if options.is_search:
        trials = 1
    return check_input(
        lambda: Study(
            name=f"load-{_format_address(arguments.url)}".replace(":", "-"),
            description=f"{arguments.model} at {arguments.url}, not started by bitbench.",
            engines=(EngineSetup(name=arguments.model, engine="endpoint", args=args),),
            workloads=workloads,
            objectives=options.objectives,
            measure=Measure(starts=Count(min=1, max=1), trials=Count(min=trials, max=trials)),
            seed=options.seed or 0,
        )
    )


def _format_address(url: str) -> str:
    """Return a name for folders and studies, such as `127.0.0.1-8000`."""
    parts = urlsplit(url)
    return f"{parts.hostname}-{parts.port}" if parts.port else str(parts.hostname)


def _make_open_loop(
    options: LoadOptions, folder: Path | None, rate: float, default_s: float
) -> Workload:
    """Return a point at a rate, which lasts `default_s` unless the options give a length."""
    spacing = options.arrival or Arrival.POISSON
    if spacing not in SPACINGS:
        raise UsageError(f"unknown --arrival {spacing}; use {' or '.join(SPACINGS)}")
    length: dict[str, Json] = {"duration": options.duration or default_s}
    if options.requests is not None:
        length = {"requests": options.requests}
    arrival = {"kind": spacing, "rate": rate}
    return _make_workload(options, folder, name=f"rate-{rate:g}", arrival=arrival, **length)


def _make_closed_loop(options: LoadOptions, folder: Path | None, concurrency: int) -> Workload:
    """Return a point with this many streams."""
    if options.arrival is not None:
        raise UsageError(
            "--arrival sets the spacing of requests at a rate; add --rate, or --slo for a search"
        )
    if options.duration is not None:
        raise UsageError(
            "--duration is for rates; a sweep over concurrencies takes --requests per trial"
        )
    count = options.requests or REQUESTS_PER_STREAM * max(concurrency, 2)
    return _make_workload(
        options,
        folder,
        name=f"c-{concurrency}",
        concurrency=concurrency,
        arrival="closed_loop",
        requests=count,
    )


def _make_workload(options: LoadOptions, folder: Path | None, **fields: Json) -> Workload:
    """Return a workload of the requests in the options, with further fields."""
    if options.api not in tuple(Api):
        raise UsageError(f"unknown --api {options.api}; use {' or '.join(Api)}")
    shape: dict[str, Json] = {
        "input_tokens": options.input_tokens,
        "output_tokens": options.output_tokens,
        "output_forced": options.output_forced,
        "api": options.api,
        **fields,
    }
    if options.text is not None:
        file = os.path.relpath(options.text, folder) if folder else str(options.text)
        shape["text"] = {"file": file}
    elif options.api == Api.CHAT:
        raise UsageError("--api chat takes messages, not token ids; give --text FILE with prompts")
    return check_input(lambda: Workload.model_validate(shape))
