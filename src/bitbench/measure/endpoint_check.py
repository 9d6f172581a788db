"""The first contact with an endpoint: whether it answers as requested, and how fast without load."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bitbench.engines.endpoint import EndpointArguments, EndpointInstance, EndpointUnusable, key_from, offered_models
from bitbench.loadgen.verdict import judge
from bitbench.measure.trial import load_job
from bitbench.ports import Endpoint, InstanceFailed, LoadClient, LoadLost
from bitbench.records.request_rows import RequestRows, statistic
from bitbench.records.trial import NOT_THE_ENGINES, Failure, Outcome
from bitbench.study.arrival import ClosedLoop
from bitbench.study.base import Json
from bitbench.study.metrics import PROMISED, Promised
from bitbench.study.objective import Objective
from bitbench.study.study import Timeouts
from bitbench.study.workload import Workload
from bitbench.util.errors import LoadError, UnreachableError
from bitbench.util.units import show_seconds, written_seconds

REQUESTS = 4  # one after the other; the first may find a cold server and is left out of the latency
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class FirstContact:
    """Without load: medians over a few requests, one at a time, and the fastest of them."""

    latency_s: float
    ttft_s: float
    requests: int
    fastest_s: Mapping[Promised, float]  # without a time per token where each answer has one token


def first_model(url: str, api_key_env: str) -> str:
    """The first that the server lists. Raises LoadError where there is none."""
    try:
        offered = offered_models(Endpoint(url, "", key_from(api_key_env)))
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
    try:
        result = load.run(load_job(endpoint, alone, seed=(secrets.randbits(64), 0), limits=limits))
    except LoadLost as lost:
        raise LoadError(str(lost)) from None
    failure = judge(result.requests, alone, result.health)
    if failure is not None and failure.outcome not in NOT_THE_ENGINES:
        raise LoadError(_explain(result.requests, failure.cause, arguments))
    later = RequestRows(result.requests.slice(1))
    times = {name: later.time(name) for name in PROMISED}
    return FirstContact(
        latency_s=statistic(later.latency, "p50") or 0.0,
        ttft_s=statistic(later.ttft, "p50") or 0.0,
        requests=requests - 1,
        fastest_s={name: float(np.nanmin(found)) for name, found in times.items() if np.isfinite(found).any()},
    )


def refuse_unreachable(objectives: Sequence[Objective], contact: FirstContact) -> None:
    """Raises UnreachableError for a limit that even the fastest request without load did not meet: load only adds to
    it, so that a search could but fail."""
    for objective in objectives:
        fastest = contact.fastest_s.get(objective.metric)
        if fastest is not None and fastest > objective.limit:
            raise UnreachableError(
                f"{objective.name}={written_seconds(objective.limit)} cannot be met at any rate: without load the "
                f"fastest of {contact.requests} requests had a {objective.metric} of {show_seconds(fastest)}; nothing "
                f"was searched"
            )


def _advise(failure: Failure, api_key_env: str) -> str:
    if failure.outcome is Outcome.CRASHED:
        return f"{failure.cause}; is the server running, and is this its port?"
    if "key" in failure.cause:
        return f"{failure.cause}; set the environment variable {api_key_env}, or name another with --api-key-env"
    return failure.cause


def _explain(requests: pa.Table, cause: str, arguments: EndpointArguments) -> str:
    """The first request that failed, in one sentence with what to do."""
    rows: list[dict[str, Json]] = requests.to_pylist()
    row = next((row for row in rows if row["status"] != "ok"), None)
    if row is None:  # complete, but not as long as asked
        return f"{cause.rstrip('.')}; if the server does not support ignore_eos, use --no-ignore-eos"
    status, said = row["http_status"], str(row["error"] or "no explanation").rstrip(".")
    if "without usage" in said:
        return f"{said}; the server must send it when the request has `stream_options: {{include_usage: true}}`"
    if status in (None, 200):
        return f"the first request failed: {said}"
    advice = {
        401: f"is the right key in the environment variable {arguments.api_key_env}? --api-key-env names another",
        403: f"is the right key in the environment variable {arguments.api_key_env}? --api-key-env names another",
        404: "--model names the model, --api chat or completions the kind of endpoint",
        400: "--no-ignore-eos, --vocabulary, fewer --input-tokens, or --api chat with --text may help",
    }
    return f"{arguments.url} says {status}: {said}" + (f"; {advice[status]}" if status in advice else "")
