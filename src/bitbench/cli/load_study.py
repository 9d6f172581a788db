"""The study that `bitbench load` runs, made from its options."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from bitbench.core.asked.arrival import Arrival
from bitbench.core.asked.objective import Objective, Objectives
from bitbench.core.asked.prompts import Api
from bitbench.core.asked.search import SearchLimits
from bitbench.core.asked.study import Argument, Count, EngineSetup, Measure, Study
from bitbench.core.asked.workload import Workload
from bitbench.core.base import Json
from bitbench.engines.endpoint import EndpointArguments, base_url
from bitbench.ground.errors import LoadError
from bitbench.ground.units import parse_fraction
from bitbench.statistics.objectives import TRIAL_LATENCIES

DEFAULT_CONCURRENCIES = "1,2,4,8"
DEFAULT_TRIALS = 3
DEFAULT_SEARCH_TRIALS = 12
DEFAULT_DURATION_S = 30.0
REQUESTS_PER_STREAM = 16  # of a closed loop: a p99 over less than a few dozen requests is their maximum
SHORTEST_SEARCH_TRIAL_S = 10.0  # in shorter ones a single hiccup of the machine is the p99
# A search begins with the rate of one client that waits for each answer, and may go this far from there.
BELOW_START, ABOVE_START = 16.0, 4096.0

T = TypeVar("T")


@dataclass(frozen=True)
class LoadOptions:
    """As given on the command line."""

    concurrency: str | None
    rate: str | None
    slo: str | None
    input_tokens: int
    output_tokens: int
    text: Path | None
    api: str
    arrival: str
    duration: str | None
    requests: int | None
    trials: int | None
    precision: str
    max_rate: float | None
    output_forced: bool
    seed: int

    @property
    def is_search(self) -> bool:
        return self.slo is not None and self.concurrency is None and self.rate is None


def endpoint_arguments(**given: Argument | None) -> EndpointArguments:
    known = {name: value for name, value in given.items() if value is not None}
    return _checked("the endpoint", lambda: EndpointArguments.model_validate(known))


def checked_url(url: str) -> str:
    return _checked(url, lambda: base_url(url))


def place_of(url: str) -> str:
    """`127.0.0.1-8000`: for names of folders and studies."""
    parts = urlsplit(url)
    return f"{parts.hostname}-{parts.port}" if parts.port else str(parts.hostname)


def workloads_of(options: LoadOptions, folder: Path, latency_s: float | None = None) -> tuple[Workload, ...]:
    """The points of a sweep, or the first one of a search (for which the unloaded latency must be known)."""
    if options.concurrency is not None and options.rate is not None:
        raise LoadError("--concurrency and --rate exclude each other; give one of them")
    if options.is_search:
        start = 1.0 / latency_s if latency_s else 1.0
        length_s = max(SHORTEST_SEARCH_TRIAL_S, TRIAL_LATENCIES * (latency_s or 0.0))
        return (_open_loop(options, folder, float(f"{start:.2g}"), round(length_s)),)
    if options.rate is not None:
        return tuple(_open_loop(options, folder, rate, DEFAULT_DURATION_S) for rate in _numbers(options.rate, "--rate"))
    levels = _numbers(options.concurrency or DEFAULT_CONCURRENCIES, "--concurrency")
    return tuple(_closed_loop(options, folder, round(level)) for level in levels)


def search_limits(options: LoadOptions, start: float) -> SearchLimits:
    precision = _checked("--precision", lambda: parse_fraction(options.precision))
    return SearchLimits(
        start=start if options.max_rate is None else min(start, options.max_rate),
        lowest=start / BELOW_START,
        highest=options.max_rate or start * ABOVE_START,
        precision=precision,
        trials=options.trials or DEFAULT_SEARCH_TRIALS,
    )


def study_of(options: LoadOptions, arguments: EndpointArguments, workloads: tuple[Workload, ...]) -> Study:
    place = place_of(arguments.url)
    args: dict[str, Argument] = arguments.model_dump(exclude_defaults=True)
    return _checked(
        "the study",
        lambda: Study(
            name=f"load-{place}".replace(":", "-"),
            description=f"{arguments.model} at {arguments.url}, which was running already.",
            engines=(EngineSetup(name=arguments.model, engine="endpoint", args=args),),
            workloads=workloads,
            objectives=objectives_of(options.slo),
            measure=Measure(
                instances=Count(min=1, max=1),
                trials=_exactly(1 if options.is_search else options.trials or DEFAULT_TRIALS),
            ),
            seed=options.seed,
        ),
    )


def objectives_of(text: str | None) -> tuple[Objective, ...]:
    if text is None:
        return ()
    return _checked("--slo", lambda: TypeAdapter[tuple[Objective, ...]](Objectives).validate_python(text))


def _exactly(count: int) -> Count:
    return Count(min=count, max=count)


def _open_loop(options: LoadOptions, folder: Path, rate: float, default_s: float) -> Workload:
    if options.arrival not in (Arrival.POISSON, Arrival.CONSTANT):
        raise LoadError(f"--arrival {options.arrival} is not known; it is poisson or constant")
    length: dict[str, Json] = {"duration": options.duration or default_s}
    if options.requests is not None:
        length = {"requests": options.requests}
    return _workload(options, folder, name=f"rate-{rate:g}", arrival={"kind": options.arrival, "rate": rate}, **length)


def _closed_loop(options: LoadOptions, folder: Path, concurrency: int) -> Workload:
    if options.duration is not None:
        raise LoadError("--duration is for rates; a sweep over concurrencies takes --requests per trial")
    count = options.requests or REQUESTS_PER_STREAM * max(concurrency, 2)
    return _workload(
        options, folder, name=f"c-{concurrency}", concurrency=concurrency, arrival="closed_loop", requests=count
    )


def _workload(options: LoadOptions, folder: Path, **more: Json) -> Workload:
    if options.api not in tuple(Api):
        raise LoadError(f"--api {options.api} is not known; it is {' or '.join(Api)}")
    shape: dict[str, Json] = {
        "input_tokens": options.input_tokens,
        "output_tokens": options.output_tokens,
        "output_forced": options.output_forced,
        "api": options.api,
        **more,
    }
    if options.text is not None:
        shape["text"] = {"file": os.path.relpath(options.text, folder)}
    elif options.api == Api.CHAT:
        raise LoadError("--api chat takes messages, not token ids; give --text FILE with prompts")
    return _checked("the workload", lambda: Workload.model_validate(shape))


def _numbers(text: str, option: str) -> list[float]:
    def parse() -> list[float]:
        numbers = [float(part) for part in text.split(",") if part.strip()]
        if not numbers or min(numbers) <= 0:
            raise ValueError(f"expected numbers such as 1,2,4, got {text!r}")
        return sorted(set(numbers))

    return _checked(option, parse)


def _checked(what: str, make: Callable[[], T]) -> T:
    """The value, or a LoadError with the first thing that is wrong with it."""
    try:
        return make()
    except ValidationError as invalid:
        error = invalid.errors()[0]
        field = ".".join(str(part) for part in error["loc"])
        message = error["msg"].removeprefix("Value error, ")
        raise LoadError(f"{what}: {f'{field}: ' if field and what.startswith('the') else ''}{message}") from None
    except ValueError as error:
        raise LoadError(f"{what}: {error}") from None
