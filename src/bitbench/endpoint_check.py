"""The first contact with an endpoint: does it answer as asked, and how fast while it has nothing else to do?"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from bitbench.core.arrival import ClosedLoop
from bitbench.core.base import Json
from bitbench.core.ports import Endpoint, InstanceFailed, LoadClient, LoadJob
from bitbench.core.trial import Outcome
from bitbench.core.workload import Workload
from bitbench.engines.endpoint import EndpointArguments, EndpointInstance, EndpointUnusable, offered_models
from bitbench.errors import LoadError
from bitbench.load.secrets import without_key
from bitbench.load.verdict import judge

REQUESTS = 4  # one after the other; the first may find a cold server and is left out of the latency
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class FirstContact:
    """Without load: medians over a few requests, one at a time."""

    latency_s: float
    ttft_s: float


def choose_model(arguments: EndpointArguments, wanted: str | None) -> str:
    """`wanted`, or the first that the server lists. Raises LoadError where there is none."""
    if wanted is not None:
        return wanted
    try:
        offered = offered_models(_endpoint(arguments))
    except EndpointUnusable as problem:
        raise LoadError(_advise(str(problem), problem.failure.outcome, arguments)) from None
    if not offered:
        raise LoadError(f"{arguments.url} does not say which models it has; name one with --model")
    return offered[0]


def first_contact(arguments: EndpointArguments, workload: Workload, load: LoadClient, folder: Path) -> FirstContact:
    """A few requests of this workload's shape, one at a time. Raises LoadError that says what is wrong and what to do."""
    try:
        endpoint = EndpointInstance(arguments).wait_ready(TIMEOUT_S)
    except InstanceFailed as failed:
        raise LoadError(_advise(failed.failure.cause, failed.failure.outcome, arguments)) from None
    assert endpoint.vocabulary is not None
    alone = workload.model_copy(
        update={"concurrency": 1, "arrival": ClosedLoop(), "requests": REQUESTS, "duration": None}
    )
    job = LoadJob(
        endpoint=endpoint,
        workload=alone,
        vocabulary=endpoint.vocabulary,
        seed=(0, 0),
        request_timeout_s=TIMEOUT_S,
        stall_timeout_s=TIMEOUT_S,
        folder=folder,
    )
    result = load.run(job)
    requests = without_key(result.requests, endpoint.api_key)
    failure = judge(requests, alone, result.health)
    if failure is not None and failure.outcome is not Outcome.CLIENT_BOUND:
        raise LoadError(_explain(requests, failure.cause, arguments))
    later = requests.slice(1)
    return FirstContact(
        latency_s=_median(later, "end_s") or 0.0, ttft_s=_median(later, "first_token_s") or 0.0
    )


def _endpoint(arguments: EndpointArguments) -> Endpoint:
    import os

    return Endpoint(arguments.url, arguments.model, os.environ.get(arguments.api_key_env, ""))


def _advise(cause: str, outcome: Outcome, arguments: EndpointArguments) -> str:
    if outcome is Outcome.CRASHED:
        return f"{cause}; is the server running, and is this its port?"
    if outcome is Outcome.INVALID and "key" in cause:
        return f"{cause}; put it into the environment variable {arguments.api_key_env}, or name another with --api-key-env"
    return cause


def _explain(requests: pa.Table, cause: str, arguments: EndpointArguments) -> str:
    """The first request that failed, in one sentence with what to do."""
    rows: list[dict[str, Json]] = requests.to_pylist()
    row = next((row for row in rows if row["status"] != "ok"), rows[0])
    status, said = row["http_status"], str(row["error"] or "").rstrip(".")
    if row["status"] == "ok":
        return (
            f"{cause.rstrip('.')}; the output length must be forced to be comparable: the server has to take `ignore_eos` "
            "(vLLM, SGLang, TGI and llama.cpp do), and the context must be long enough"
        )
    if status in (401, 403):
        return _advise(f"{arguments.url} says {status}: the key was refused", Outcome.INVALID, arguments)
    if status == 404:
        return f"{arguments.url} says 404: {said}; --model names the model, --api chat or completions the kind of endpoint"
    if "usage" in said:
        return f"{said}; the server must send usage when `stream_options: {{include_usage: true}}` asks for it"
    if status == 400 and "ignore_eos" in said:
        return f"{arguments.url} does not take `ignore_eos` ({said}); --no-ignore-eos leaves it out"
    if status == 400:
        return f"{arguments.url} says 400: {said}; fewer --input-tokens, or --api chat with --text, may be what it takes"
    return f"the first request failed: {f'HTTP {status}: ' if status not in (None, 200) else ''}{said}"


def _median(requests: pa.Table, column: str) -> float | None:
    spans = [
        row[column] - row["planned_s"]
        for row in requests.select(["planned_s", column]).to_pylist()
        if row[column] is not None
    ]
    return float(np.median(spans)) if spans else None
