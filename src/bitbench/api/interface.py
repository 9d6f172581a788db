"""The Python interface: the functions that `import bitbench` offers, except `compare` and
`recommend`, which have their own files. Each function does what the command of its name does."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bitbench.api.results import Results
from bitbench.endpoint.endpoint_run import measure_endpoint_study
from bitbench.endpoint.load_study import API_KEY_ENV, LoadOptions, prepare_load
from bitbench.machine.workplace import Workplace, get_default_home
from bitbench.planning.plan import plan_study
from bitbench.ports import Observer
from bitbench.records.folder import StudyFolder
from bitbench.running import runner
from bitbench.running.offers import LogObserver, load_client, load_executor
from bitbench.study.plan import Plan
from bitbench.study.study import Study
from bitbench.study.study_file import StudySource, check_input, parse_objectives
from bitbench.util.units import parse_fraction

Place = str | Path
AskedFor = str | Path | Study


def plan(study: AskedFor) -> Plan:
    """Return the points that a study would run, and the refused ones with the reason. It starts
    nothing. `study` is a file or a `bitbench.Study`."""
    return plan_study(_parse_study(study), Workplace())


def run(
    study: AskedFor,
    into: Place | None = None,
    *,
    on: str | None = None,
    mirror: str | None = None,
    observer: Observer | None = None,
    key_from: Sequence[str] = (),
) -> Results:
    """Run a study, or resume an interrupted one, and return its results.

    `into` is the results folder, by default ./NAME of the study.

    `on` are nodes that run a block each, as in `bitbench run --on` ("ray://HEAD:PORT", "gpus").

    `mirror` is a URL such as s3://BUCKET/PATH. Records are copied there after each group, and
    fetched from there at the start.

    Progress goes to the logger `bitbench`, unless there is an `observer`. `key_from` lists
    environment variables whose values the study may send as API keys, in addition to OPENAI_API_KEY
    and BITBENCH_*.
    """
    workplace = Workplace()
    source = StudySource.of(_parse_study(study))
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


def load(
    url: str,
    into: Place | None = None,
    *,
    concurrency: Sequence[int] | None = None,
    rate: Sequence[float] | None = None,
    slo: str | Mapping[str, str | float] | None = None,
    model: str | None = None,
    input_tokens: int = 128,
    output_tokens: int = 64,
    text: Place | None = None,
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

    With `concurrency` or `rate` it is a sweep. With `slo` alone it is a search for the highest rate
    that meets these objectives ("ttft_p99=200ms", or names and seconds).

    With `on`, the machines of a Ray cluster send the requests together, or `nodes` of them.
    """
    precision_share = None
    if precision is not None:
        precision_share = check_input(lambda: parse_fraction(precision), about="precision")
    options = LoadOptions(
        concurrency=None if concurrency is None else tuple(concurrency),
        rate=None if rate is None else tuple(rate),
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


def read(folder: Place) -> Results:
    """Return the results in a study folder. It needs neither the engines nor the model."""
    return Results(StudyFolder.existing(Path(folder)), get_default_home())


def report(folder: Place) -> Path:
    """Write the report of a study folder from its records, and return the path of its page."""
    return read(folder).report()


def _parse_study(study: AskedFor) -> Path | Study:
    return study if isinstance(study, Study) else Path(study)
