"""The study that `bitbench load` runs: what is asked of an endpoint, at which points, and how far a search goes."""

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from bitbench.analysis.objectives import TRIAL_LATENCIES
from bitbench.engines.endpoint import EndpointArguments, base_url
from bitbench.loadgen.inputs import check_files
from bitbench.measure.endpoint_check import FirstContact, first_contact, first_model, refuse_unreachable
from bitbench.ports import LoadClient
from bitbench.records.folder import StudyFolder
from bitbench.records.trial import TrialRecord
from bitbench.study.arrival import Arrival, mean_rate
from bitbench.study.base import Json
from bitbench.study.checked import checked
from bitbench.study.objective import Objective
from bitbench.study.prompts import Api
from bitbench.study.search import SearchLimits
from bitbench.study.study import Argument, Count, EngineSetup, Measure, Study
from bitbench.study.workload import Workload
from bitbench.util.errors import UsageError

API_KEY_ENV = "OPENAI_API_KEY"
DEFAULT_CONCURRENCIES = (1, 2, 4, 8)
DEFAULT_TRIALS = 3
DEFAULT_SEARCH_TRIALS = 12
DEFAULT_DURATION_S = 30.0
DEFAULT_PRECISION = 0.03  # of the rate that a search finds
REQUESTS_PER_STREAM = 16  # of a closed loop: a p99 over less than a few dozen requests is their maximum
SHORTEST_SEARCH_TRIAL_S = 10.0  # in shorter ones a single hiccup of the machine is the p99
# A search begins with the rate of one client that waits for each answer, and may go this far from there.
BELOW_START, ABOVE_START = 16.0, 4096.0
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


NextPoint = Callable[[Study, Sequence[TrialRecord]], Workload | None]  # from what was tried; None: it is enough


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
    vocabulary: int | None = None,
) -> PreparedLoad:
    """Check the options, meet the endpoint, and make the study, with prompts that no run before it had unless a seed
    asks for them. Raises UsageError before anything is sent where the
    options are wrong; after a few requests LoadError where the endpoint does not answer as asked, and UnreachableError
    where a search could not find any rate."""
    base = checked(lambda: base_url(url), about=url)
    folder = into or Path(f"load-{_place(base)}-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
    options = with_seed(options, folder)
    points = workloads_of(options)
    check_files(points, Path())
    arguments = endpoint_arguments(
        url=base,
        model=model or first_model(base, api_key_env),
        api_key_env=api_key_env,
        vocabulary=vocabulary,
        ignore_eos=options.output_forced,
    )
    contact = first_contact(arguments, points[0], client)
    if options.is_search:
        refuse_unreachable(options.objectives, contact)
    workloads = workloads_of(options, folder, contact.latency_s)
    search = search_limits(options, mean_rate(workloads[0].arrival) or 1.0) if options.is_search else None
    return PreparedLoad(study_of(options, arguments, workloads), search, contact, folder)


def with_seed(options: LoadOptions, folder: Path) -> LoadOptions:
    """The seed that was asked for, else that of a folder which is resumed, else a new one: a server that remembers
    prompts must not know those of a run."""
    if options.seed is not None:
        return options
    lock = StudyFolder(folder).lock()
    return replace(options, seed=secrets.randbelow(SEEDS) if lock is None else lock.plan.study.seed)


def endpoint_arguments(**given: Argument | None) -> EndpointArguments:
    known = {name: value for name, value in given.items() if value is not None}
    return checked(lambda: EndpointArguments.model_validate(known))


def workloads_of(
    options: LoadOptions, folder: Path | None = None, latency_s: float | None = None
) -> tuple[Workload, ...]:
    """The points of a sweep, or the first one of a search (for which the unloaded latency must be known). With a
    folder, a file is named relative to it; without, as it was given."""
    if options.concurrency is not None and options.rate is not None:
        raise UsageError("--concurrency and --rate cannot be combined; give one of them")
    if options.duration is not None and options.requests is not None:
        raise UsageError("--duration and --requests both set the length of a trial; give one of them")
    if options.max_rate is not None and not options.is_search:
        raise UsageError("--max-rate limits a search; give --slo, without --rate and --concurrency")
    if options.precision is not None and not options.is_search:
        raise UsageError("--precision ends a search; give --slo, without --rate and --concurrency")
    if options.is_search:
        start = 1.0 / latency_s if latency_s else 1.0
        length_s = max(SHORTEST_SEARCH_TRIAL_S, TRIAL_LATENCIES * (latency_s or 0.0))
        return (_open_loop(options, folder, float(f"{start:.2g}"), round(length_s)),)
    if options.rate is not None:
        return tuple(_open_loop(options, folder, rate, DEFAULT_DURATION_S) for rate in sorted(set(options.rate)))
    levels = sorted(set(options.concurrency or DEFAULT_CONCURRENCIES))
    return tuple(_closed_loop(options, folder, level) for level in levels)


def search_limits(options: LoadOptions, start: float) -> SearchLimits:
    return SearchLimits(
        start=start if options.max_rate is None else min(start, options.max_rate),
        lowest=start / BELOW_START,
        highest=options.max_rate or start * ABOVE_START,
        precision=DEFAULT_PRECISION if options.precision is None else options.precision,
        trials=options.trials or DEFAULT_SEARCH_TRIALS,
    )


def study_of(options: LoadOptions, arguments: EndpointArguments, workloads: tuple[Workload, ...]) -> Study:
    args: dict[str, Argument] = arguments.model_dump(exclude_defaults=True)
    return checked(
        lambda: Study(
            name=f"load-{_place(arguments.url)}".replace(":", "-"),
            description=f"{arguments.model} at {arguments.url}, not started by bitbench.",
            engines=(EngineSetup(name=arguments.model, engine="endpoint", args=args),),
            workloads=workloads,
            objectives=options.objectives,
            measure=Measure(
                starts=Count(min=1, max=1),
                trials=_exactly(1 if options.is_search else options.trials or DEFAULT_TRIALS),
            ),
            seed=options.seed or 0,
        )
    )


def _place(url: str) -> str:
    """`127.0.0.1-8000`: for names of folders and studies."""
    parts = urlsplit(url)
    return f"{parts.hostname}-{parts.port}" if parts.port else str(parts.hostname)


def _exactly(count: int) -> Count:
    return Count(min=count, max=count)


def _open_loop(options: LoadOptions, folder: Path | None, rate: float, default_s: float) -> Workload:
    spacing = options.arrival or Arrival.POISSON
    if spacing not in SPACINGS:
        raise UsageError(f"unknown --arrival {spacing}; use {' or '.join(SPACINGS)}")
    length: dict[str, Json] = {"duration": options.duration or default_s}
    if options.requests is not None:
        length = {"requests": options.requests}
    return _workload(options, folder, name=f"rate-{rate:g}", arrival={"kind": spacing, "rate": rate}, **length)


def _closed_loop(options: LoadOptions, folder: Path | None, concurrency: int) -> Workload:
    if options.arrival is not None:
        raise UsageError("--arrival sets the spacing of requests at a rate; add --rate, or --slo for a search")
    if options.duration is not None:
        raise UsageError("--duration is for rates; a sweep over concurrencies takes --requests per trial")
    count = options.requests or REQUESTS_PER_STREAM * max(concurrency, 2)
    return _workload(
        options, folder, name=f"c-{concurrency}", concurrency=concurrency, arrival="closed_loop", requests=count
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
        shape["text"] = {"file": os.path.relpath(options.text, folder) if folder else str(options.text)}
    elif options.api == Api.CHAT:
        raise UsageError("--api chat takes messages, not token ids; give --text FILE with prompts")
    return checked(lambda: Workload.model_validate(shape))
