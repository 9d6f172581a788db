"""The Python interface: planning, running and measuring a study, and opening its results.

Each function does what the command of its name does. `compare`, `recommend` and the functions for
variants have their own files.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import PositiveFloat, PositiveInt, TypeAdapter

from bitbench.api.inputs import (
    PathInput,
    ResultsInput,
    StudyInput,
    open_study_folder,
    parse_items,
    parse_study_input,
)
from bitbench.api.results import Results
from bitbench.endpoint.endpoint_run import measure_endpoint_study
from bitbench.endpoint.load_study import API_KEY_ENV, LoadOptions, prepare_load
from bitbench.machine.workplace import Workplace, get_default_home
from bitbench.planning.plan import plan_study
from bitbench.ports import Observer
from bitbench.running import runner
from bitbench.running.offers import LogObserver, load_client, load_executor
from bitbench.study.plan import Plan
from bitbench.study.study_file import StudySource, check_input, parse_objectives
from bitbench.util.units import parse_fraction

_COUNTS = TypeAdapter[tuple[int, ...]](tuple[PositiveInt, ...])
_RATES = TypeAdapter[tuple[float, ...]](tuple[PositiveFloat, ...])


def plan(study: StudyInput) -> Plan:
    """Return the points that a study would run, without starting anything.

    Args:
        study: A study file, its content as a dict, or a `bitbench.Study`.

    Returns:
        The plan. Its `points` would run, and its `refusals` have the reasons why others cannot.

    Raises:
        BitbenchError: The study contains a mistake.

    Example:
        plan = bitbench.plan({"name": "x", "engines": ["null"], "workloads": ["interactive"]})
        print([point.name for point in plan.points])
    """
    return plan_study(parse_study_input(study), Workplace())


def run(
    study: StudyInput,
    into: PathInput | None = None,
    *,
    on: str | None = None,
    mirror: str | None = None,
    observer: Observer | None = None,
    key_from: Sequence[str] = (),
) -> Results:
    """Run a study, or resume an interrupted one, and return its results.

    Args:
        study: A study file, its content as a dict, or a `bitbench.Study`.
        into: The results folder, by default ./NAME of the study.
        on: The nodes that run a block each ("ray://HEAD:PORT", "gpus"), by default this machine.
        mirror: A URL such as s3://BUCKET/PATH. Records are copied there after each group, and
            fetched from there at the start.
        observer: An object that is told of the progress, by default the logger `bitbench`.
        key_from: Environment variables whose values the study may send as API keys, in addition
            to OPENAI_API_KEY and BITBENCH_*.

    Returns:
        The results, which a notebook cell shows as the answer and a table.

    Raises:
        BitbenchError: The study cannot be run on this machine.

    Example:
        results = bitbench.run("study.yaml", into="out")
        results.plot("answer-ratios")
    """
    workplace = Workplace()
    source = StudySource.of(parse_study_input(study))
    executor = None if on is None else load_executor(on)
    folder = runner.measure_study(
        source,
        None if into is None else Path(into),
        observer or LogObserver(),
        workplace,
        on=executor,
        mirror=mirror,
        key_from=key_from,
    )
    return Results(folder, workplace.home)


def load_test(
    url: str,
    into: PathInput | None = None,
    *,
    concurrency: int | Sequence[int] | None = None,
    rate: float | Sequence[float] | None = None,
    slo: str | Mapping[str, str | float] | None = None,
    model: str | None = None,
    input_tokens: int = 128,
    output_tokens: int = 64,
    text: PathInput | None = None,
    api: str = "completions",
    arrival: str | None = None,
    duration: str | float | None = None,
    requests: int | None = None,
    trials: int | None = None,
    precision: str | float | None = None,
    max_rate: float | None = None,
    ignore_eos: bool = True,
    api_key_env: str = API_KEY_ENV,
    seed: int | None = None,
    nodes: int | None = None,
    on: str | None = None,
    observer: Observer | None = None,
) -> Results:
    """Measure a running OpenAI-compatible endpoint, and return the results.

    With `concurrency` or `rate` it is a sweep. With `slo` alone it is a search for the highest
    rate that meets these objectives.

    Args:
        url: The server, such as http://127.0.0.1:8000.
        into: The results folder, new or to resume, by default load-HOST-DATE.
        concurrency: Concurrent requests: one number, or several for a sweep.
        rate: Requests per second: one number, or several for a sweep.
        slo: Objectives: "ttft_p99=200ms", or names with limits in seconds.
        model: The model's name, by default the first in /v1/models.
        input_tokens: The prompt length in tokens.
        output_tokens: The output length in tokens.
        text: A file with prompts, instead of random token ids.
        api: "completions", or "chat", which needs `text`.
        arrival: The spacing of requests at a rate, "poisson" (default) or "constant".
        duration: The length of a trial at a rate, such as "30s" or a number of seconds.
        requests: The requests of a trial, instead of `duration`.
        trials: The trials of each point, or of a whole search.
        precision: The share to which a search must determine the rate, by default 5%.
        max_rate: The highest rate that a search may try.
        ignore_eos: Whether to request exactly `output_tokens`. Use False for a server that does
            not support it.
        api_key_env: The environment variable with the key.
        seed: The seed of order and prompts, by default a new one, which is recorded.
        nodes: The number of machines of `on` that send requests, by default all.
        on: The Ray cluster whose machines send the requests ("ray://HEAD:PORT").
        observer: An object that is told of the progress, by default the logger `bitbench`.

    Returns:
        The results, with a point for each load.

    Raises:
        BitbenchError: The server does not answer, or the options do not fit together.

    Example:
        results = bitbench.load_test("http://localhost:8000", concurrency=[1, 2, 4])
        results.points.to_pandas()
    """
    counts = None
    if concurrency is not None:
        counts = parse_items(concurrency, _COUNTS, about="concurrency")
    rates = None
    if rate is not None:
        rates = parse_items(rate, _RATES, about="rate")
    precision_share = None
    if precision is not None:
        precision_share = check_input(lambda: parse_fraction(precision), about="precision")
    options = LoadOptions(
        concurrency=counts,
        rate=rates,
        objectives=parse_objectives(slo, about="slo"),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        text=None if text is None else Path(text),
        api=api,
        arrival=arrival,
        duration=duration,
        requests=requests,
        trials=trials,
        precision=precision_share,
        max_rate=max_rate,
        output_forced=ignore_eos,
        seed=seed,
    )
    workplace = Workplace()
    folder = None if into is None else Path(into)
    with load_client(nodes, on, api_key_env=api_key_env) as client:
        prepared = prepare_load(
            url, options, client, into=folder, model=model, api_key_env=api_key_env
        )
        results = measure_endpoint_study(prepared, observer or LogObserver(), client, workplace)
        return Results(results, workplace.home)


def open(folder: ResultsInput) -> Results:
    """Open a study folder. It needs neither the engines nor the model.

    Args:
        folder: The path of a study folder, also of one that still runs.

    Returns:
        The results, which are read at the first use.

    Raises:
        BitbenchError: The path is not a study folder.

    Example:
        results = bitbench.open("out")
        print(results.summary.rankings)
    """
    return Results(open_study_folder(folder), get_default_home())


def report(folder: ResultsInput) -> Path:
    """Write the report of a study folder from its records, and return the path of its page.

    Args:
        folder: The path of a study folder, or results.

    Returns:
        The path of the page, FOLDER/report/index.html.

    Raises:
        BitbenchError: The path is not a study folder, or cannot be written.

    Example:
        page = bitbench.report("out")
    """
    return open(folder).report()
