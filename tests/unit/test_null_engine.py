"""The null engine keeps its schedule, and fails in the ways it is told to."""

import http.client
import json
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pytest
from scripts.client_overhead import (
    ThroughputRatio,
    compare_to_bare_client,
    differences_to_schedule,
    ratio_of_pairs,
)

from bitbench import __version__
from bitbench.engines.null import NullEngine
from bitbench.engines.workers.null_server import AnswerPlan, NullBehaviour
from bitbench.loadgen.client import run_job
from bitbench.loadgen.verdict import load_verdict
from bitbench.loadgen.workers import LoadWorkers
from bitbench.ports import Endpoint, InstanceFailed, LoadJob, Vocabulary
from bitbench.records.trial import Outcome
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.workload import Arrival, Workload
from bitbench.util.errors import StudyFileError
from tests.support.null_instance import NOTHING, running, start

ONE = Workload(name="one", concurrency=1, input_tokens=32, output_tokens=20)


def load(endpoint: Endpoint, workload: Workload = ONE, stall_s: float = 10.0) -> pa.Table:
    return run_job(LoadJob(endpoint, workload, Vocabulary(1_000), (1,), 30.0, stall_s)).requests


def failure_of(endpoint: Endpoint, stall_s: float = 10.0) -> tuple[Outcome, str]:
    result = run_job(LoadJob(endpoint, ONE, Vocabulary(1_000), (1,), 30.0, stall_s))
    failure = load_verdict(result.sums, ONE, result.health)
    assert failure is not None
    return failure.outcome, failure.cause


def refusal(args: dict[str, Argument]) -> str | None:
    """Why the point is refused; a mistake in the arguments is raised."""
    return NullEngine().refuse(EngineSetup(name="n", engine="null", args=args), NOTHING, ONE)


@pytest.mark.alone
def test_reported_times_are_the_schedule_within_one_percent(tmp_path: Path) -> None:
    """In a third of the trials: what a busy machine does to the others is not our overhead, which is in all of them."""
    workload = Workload(name="w", concurrency=1, input_tokens=128, output_tokens=32)
    with running({"ttft": "100ms", "tpot": "10ms"}, tmp_path) as endpoint, LoadWorkers() as worker:
        differences = list(
            differences_to_schedule(worker, endpoint, workload, ttft_s=0.1, tpot_s=0.01, trials=9)
        )
    for name in ("ttft", "tpot"):
        ordered = sorted((getattr(difference, name) for difference in differences), key=abs)
        assert abs(ordered[2]) < 0.01, f"{name}: {ordered}"
        assert name == "tpot" or min(ordered) >= 0  # nothing arrives before it was sent


def test_counts_facts_and_key(tmp_path: Path) -> None:
    instance = start({"ttft": "1ms", "tpot": "0.5ms"}, tmp_path)
    try:
        endpoint = instance.wait_ready(60.0)
        facts = instance.facts()
        (row,) = load(endpoint).to_pylist()
        (denied,) = load(Endpoint(endpoint.url, endpoint.model, "wrong")).to_pylist()
    finally:
        instance.stop()
    assert (row["status"], row["input_tokens"], row["output_tokens"], len(row["chunk_s"])) == (
        "ok",
        32,
        20,
        20,
    )
    assert (denied["status"], denied["http_status"]) == ("http_error", 401)
    assert facts.engine_version == __version__
    assert facts.kernels == ("schedule: 1.00 ms, then a token each 500 µs",)
    assert not any(endpoint.api_key in part for part in facts.command)
    assert endpoint.api_key not in (tmp_path / "null.log").read_text()


@pytest.mark.parametrize(
    "body", ["{}", "nonsense", '{"prompt": [1], "max_tokens": 0, "stream": true}', "[1]"]
)
def test_a_request_that_makes_no_sense_is_refused_and_the_server_lives(
    tmp_path: Path, body: str
) -> None:
    with running({}, tmp_path) as endpoint:
        connection = http.client.HTTPConnection(urlsplit(endpoint.url).netloc)
        connection.request(
            "POST", "/v1/completions", body, {"Authorization": f"Bearer {endpoint.api_key}"}
        )
        answer = connection.getresponse()
        assert answer.status == 400
        assert "not a streaming completion" in json.loads(answer.read())["error"]["message"]
        connection.request("GET", "/nothing")
        assert connection.getresponse().status == 404


def behaviour(**changes: object) -> NullBehaviour:
    settings = {"ttft": 0.1, "tpot": 0.01, "vary": 0.0, "vary_instance": 0.0, "slow_requests": (), "slow_factor": 4.0,
                "per_stream": 0.0, "capacity": None, "stall_at": None, "stall_for": 2.0, "fail": None, "memory_mb": 1,
                "children": 0, "seed": 0}  # fmt: skip
    return NullBehaviour(**settings | changes)  # type: ignore[arg-type]


def test_variation_is_seeded_and_as_wide_as_asked() -> None:
    factors = [AnswerPlan(behaviour(vary=0.05)).request(number)[0] / 0.1 for number in range(4_000)]
    again = [AnswerPlan(behaviour(vary=0.05)).request(number)[0] / 0.1 for number in range(10)]
    mean = sum(factors) / len(factors)
    deviation = (sum((factor - mean) ** 2 for factor in factors) / len(factors)) ** 0.5
    assert factors[:10] == again
    assert mean == pytest.approx(1, abs=0.003)
    assert deviation == pytest.approx(0.05, rel=0.1)


def test_an_instance_has_its_own_pace() -> None:
    first, other = (AnswerPlan(behaviour(vary_instance=0.1, seed=seed)) for seed in (1, 2))
    assert first.request(1) == first.request(2)
    assert first.request(1) != other.request(1)


def test_slow_requests_are_slow(tmp_path: Path) -> None:
    workload = Workload(
        name="w",
        concurrency=1,
        input_tokens=4,
        output_tokens=2,
        requests=4,
        arrival=Arrival.CLOSED_LOOP,
    )
    args: dict[str, Argument] = {
        "ttft": "200ms",
        "tpot": "1ms",
        "slow_requests": "2,4",
        "slow_factor": 5,
    }
    with running(args, tmp_path) as endpoint:
        rows = load(endpoint, workload).to_pylist()
    assert [row["first_token_s"] - row["planned_s"] > 0.9 for row in rows] == [
        False,
        True,
        False,
        True,
    ]


def test_streams_slow_each_other_where_they_are_told_to(tmp_path: Path) -> None:
    together = Workload(name="w", concurrency=5, input_tokens=4, output_tokens=11)
    with running({"ttft": "20ms", "tpot": "50ms", "per_stream": "50%"}, tmp_path) as endpoint:
        rows = load(endpoint, together).to_pylist()
    for row in rows:  # 50 ms × (1 + 4 × 0.5)
        assert (row["last_token_s"] - row["first_token_s"]) / 10 == pytest.approx(0.15, rel=0.2)


def test_short_answers_are_invalid(tmp_path: Path) -> None:
    with running({"fail": "short", "ttft": "1ms", "tpot": "1ms"}, tmp_path) as endpoint:
        assert failure_of(endpoint) == (
            Outcome.INVALID,
            "Requested 20 output tokens, the engine counted 10 (1 of 1 requests).",
        )


def test_a_hanging_stream_is_a_timeout(tmp_path: Path) -> None:
    with running({"fail": "hang", "ttft": "1ms", "tpot": "1ms"}, tmp_path) as endpoint:
        assert failure_of(endpoint, stall_s=1.0) == (
            Outcome.TIMEOUT,
            "Request 0: no byte for 1.00 s.",
        )


def test_a_disconnect_is_a_crash(tmp_path: Path) -> None:
    with running({"fail": "disconnect", "ttft": "1ms", "tpot": "1ms"}, tmp_path) as endpoint:
        outcome, cause = failure_of(endpoint)
    assert outcome is Outcome.CRASHED
    assert "closed the connection before the answer was complete, after 10 chunks" in cause


def test_an_exit_at_the_start_is_a_crash_with_its_log(tmp_path: Path) -> None:
    instance = start({"fail": "exit"}, tmp_path)
    with pytest.raises(InstanceFailed) as caught:
        instance.wait_ready(60.0)
    instance.stop()
    assert caught.value.failure.outcome is Outcome.CRASHED
    assert "exit code 3: NullEngineError: it was told to exit" in caught.value.failure.cause
    assert any("NullEngineError" in line for line in caught.value.failure.log_lines)


def test_never_ready_is_a_timeout(tmp_path: Path) -> None:
    instance = start({"fail": "never_ready"}, tmp_path)
    with pytest.raises(InstanceFailed) as caught:
        instance.wait_ready(1.5)
    instance.stop()
    assert caught.value.failure.outcome is Outcome.TIMEOUT


def test_memory_grows_while_it_is_not_ready(tmp_path: Path) -> None:
    instance = start({"fail": "memory", "memory_mb": 2_000}, tmp_path)
    try:
        process = psutil.Process(instance.pid)
        deadline = time.monotonic() + 60
        while process.memory_info().rss < 200e6:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(InstanceFailed):
            instance.wait_ready(0.1)
    finally:
        instance.stop()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            {"tpott": "3ms"},
            "the null engine has no argument tpott; did you mean `tpot`? it has ttft, tpot, vary,",
        ),
        ({"ttft": "soon"}, "ttft: expected a duration"),
        ({"ttft": 20}, "ttft: 20 needs a unit; write 20ms, 20s or 20m"),
        ({"fail": "maybe"}, "'hang'"),
    ],
)
def test_arguments_that_do_not_exist_or_make_no_sense_are_a_mistake_of_the_study(
    args: dict[str, Argument], said: str
) -> None:
    assert refusal({"ttft": "250ms", "slow_requests": 7, "fail": "hang"}) is None
    with pytest.raises(StudyFileError, match=re.escape(said)):
        refusal(args)


def test_the_ratio_to_a_bare_client_is_that_of_pairs() -> None:
    ratio = ratio_of_pairs([(99.0, 100.0), (198.0, 200.0), (50.0, 50.0)], seed=0)
    assert ratio == ThroughputRatio(0.99, 0.99, 1.0)


@pytest.mark.alone
def test_the_client_is_as_quick_as_a_bare_one(tmp_path: Path) -> None:
    """On a schedule both must say the same; the real comparison, with vLLM, is scripts/overhead."""
    workload = Workload(name="w", concurrency=1, input_tokens=16, output_tokens=21)
    with running({"ttft": "10ms", "tpot": "20ms"}, tmp_path) as endpoint, LoadWorkers() as worker:
        pairs = compare_to_bare_client(
            worker, endpoint, workload, Vocabulary(1_000), pairs=15, seed=0
        )
        ratio = ratio_of_pairs(pairs, seed=0)
    assert ratio.value == pytest.approx(1, abs=0.02)
