"""What our own client adds: against a schedule that is known, and against a client that does next to nothing."""

import random
import socket
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bitbench.loadgen.requests import plan_requests
from bitbench.ports import Endpoint, LoadClient, LoadJob, Vocabulary
from bitbench.records.request_rows import RequestRows
from bitbench.study.workload import Workload, get_longest_length
from bitbench.util.errors import LoadError
from bitbench.util.http.connection import parse_address

_TIMEOUT_S = 600.0
_RESAMPLES = 4_000


class ReportedDifference(NamedTuple):
    """A trial on the null engine: reported times over scheduled ones, minus 1."""

    ttft: float
    tpot: float


class ThroughputRatio(NamedTuple):
    """Decode throughput through bitbench over that through the bare client, with its 95 % interval."""

    value: float
    low: float
    high: float


def differences_to_schedule(
    client: LoadClient,
    endpoint: Endpoint,
    workload: Workload,
    *,
    ttft_s: float,
    tpot_s: float,
    trials: int,
) -> Iterator[ReportedDifference]:
    """One per trial, from its means over requests."""
    for trial in range(trials):
        rows = RequestRows(
            client.run(_job(endpoint, workload, Vocabulary(size=50_000), trial)).requests
        )
        yield ReportedDifference(
            float(np.mean(rows.ttft)) / ttft_s - 1, float(np.mean(rows.tpot)) / tpot_s - 1
        )


def decode_throughput(client: LoadClient, job: LoadJob) -> float:
    """Tokens per second from the first to the end, through bitbench's client; for a single stream."""
    result = client.run(job)
    (row,) = result.requests.to_pylist()
    if row["status"] != "ok" or row["output_tokens"] != get_longest_length(
        job.workload.output_tokens
    ):
        raise LoadError(
            f"A request was not answered as requested ({row['status']}): {row['error']}"
        )
    return float(
        (get_longest_length(job.workload.output_tokens) - 1) / (row["end_s"] - row["first_token_s"])
    )


def bare_decode_throughput(job: LoadJob) -> float:
    """The same request through a blocking socket that only waits for the first event and for the end."""
    request = plan_requests(job).make(0).data
    host, port, _ = parse_address(job.endpoint.url)
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(request)
        first, seen = None, b""
        while b"data: [DONE]" not in seen:
            data = connection.recv(65_536)
            now = time.monotonic()
            if not data:
                raise LoadError("The server closed the connection of the bare client mid-stream.")
            seen = seen[-16:] + data
            if first is None and b"data:" in seen:
                first = now
    assert first is not None
    return (get_longest_length(job.workload.output_tokens) - 1) / (now - first)


def compare_to_bare_client(
    client: LoadClient,
    endpoint: Endpoint,
    workload: Workload,
    vocabulary: Vocabulary,
    *,
    pairs: int,
    seed: int,
) -> Iterator[tuple[float, float]]:
    """Decode throughput through bitbench and through the bare client, pair by pair: both send the same request to one
    instance, in random order."""
    order = random.Random(seed)
    for pair in range(pairs):
        job = _job(endpoint, workload, vocabulary, pair)
        if order.random() < 0.5:
            ours = decode_throughput(client, job)
            bare = bare_decode_throughput(job)
        else:
            bare = bare_decode_throughput(job)
            ours = decode_throughput(client, job)
        yield ours, bare


def ratio_of_pairs(pairs: Iterable[tuple[float, float]], seed: int) -> ThroughputRatio:
    """Median of the first over the second; the interval is a bootstrap over pairs."""
    ratios = np.array([ours / other for ours, other in pairs])
    draws = np.random.default_rng(seed).integers(len(ratios), size=(_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), [0.025, 0.975])
    return ThroughputRatio(float(np.median(ratios)), float(low), float(high))


def _job(endpoint: Endpoint, workload: Workload, vocabulary: Vocabulary, number: int) -> LoadJob:
    return LoadJob(endpoint, workload, vocabulary, (number,), _TIMEOUT_S, _TIMEOUT_S)
