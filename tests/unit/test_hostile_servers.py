"""Every mode of the table of hostile servers: its outcome, its memory, its time. Heavier ones are in tests/slow."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bitbench.engines.endpoint import EndpointUnusable, list_offered_models
from bitbench.loadgen import dispatch
from bitbench.loadgen.client import run_job
from bitbench.loadgen.verdict import load_verdict
from bitbench.ports import Endpoint, LoadJob, Vocabulary
from bitbench.records.tables import REQUEST_STATUSES
from bitbench.records.trial import Outcome
from bitbench.study.workload import Workload
from tests.support.hostile_modes import BLOCK, MB, MODEL_LISTS, STREAMS, UNTIL_CLOSE
from tests.support.raw_server import flood, serving
from tests.support.with_receiver import BOTH, WAYS, choose

PATIENT_S = 40.0  # for what ends by itself, also where a busy machine gives this process and its servers little time


@contextmanager
def within(memory_mb: float, time_s: float, pid: int | str = "self") -> Iterator[None]:
    """The process needs no more than so much more memory, at any moment, and no more time."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # its highest memory so far is forgotten
    before, started = _status_bytes(pid, "VmRSS"), time.monotonic()
    yield
    assert time.monotonic() - started < time_s
    assert _status_bytes(pid, "VmHWM") - before < memory_mb * MB


def _status_bytes(pid: int | str, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def job(
    url: str,
    *,
    output_tokens: int = 2,
    concurrency: int = 1,
    request_s: float = PATIENT_S,
    stall_s: float = PATIENT_S,
) -> LoadJob:
    workload = Workload(
        name="w", concurrency=concurrency, input_tokens=4, output_tokens=output_tokens
    )
    return LoadJob(
        Endpoint(url, "m", "a-secret-key"), workload, Vocabulary(1_000), (1,), request_s, stall_s
    )


@pytest.mark.parametrize("receiver", WAYS)
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_of_a_hostile_server_has_its_outcome(
    name: str, receiver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(receiver, monkeypatch)
    mode = STREAMS[name]
    with serving(mode.answer) as server, within(mode.memory_mb, mode.time_s):
        limit_s = 3.0 if mode.status == "timeout" else PATIENT_S
        asked = job(
            server.url, request_s=limit_s, stall_s=1.0 if mode.status == "stalled" else PATIENT_S
        )
        result = run_job(asked)
    (row,) = result.requests.to_pylist()
    assert row["status"] in REQUEST_STATUSES
    assert row["status"] == mode.status, row["error"]
    if mode.status != "ok":
        assert mode.said in row["error"]
        assert row["error"].isprintable()
        assert load_verdict(result.sums, asked.workload, result.health) is not None


@pytest.mark.parametrize("name", MODEL_LISTS)
def test_a_list_of_models_of_a_hostile_server_has_its_outcome(name: str) -> None:
    mode = MODEL_LISTS[name]
    limit_s = 0.5 if mode.outcome is Outcome.TIMEOUT else 10.0
    with serving(mode.answer) as server, within(memory_mb=64.0, time_s=15.0):
        endpoint = Endpoint(server.url, "m", "a-secret-key")
        if mode.outcome is None:
            assert list_offered_models(endpoint, limit_s) == mode.names
            return
        with pytest.raises(EndpointUnusable) as unusable:
            list_offered_models(endpoint, limit_s)
    assert unusable.value.failure.outcome is mode.outcome
    assert mode.said in unusable.value.failure.cause
    assert unusable.value.failure.cause.isprintable()


@pytest.mark.parametrize("receiver", BOTH)
def test_streams_that_fill_the_memory_together_are_given_up(
    receiver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be 42 MB long, all four together 20 MB."""
    choose(receiver, monkeypatch)
    monkeypatch.setattr(dispatch, "TRIAL_BYTES", 20 * MB)
    slowly = flood(UNTIL_CLOSE, BLOCK[:16_384], each_alone=True)
    with serving(slowly) as server, within(memory_mb=150.0, time_s=60.0):
        result = run_job(job(server.url, output_tokens=10_000, concurrency=4))
    rows = result.requests.to_pylist()
    assert {row["status"] for row in rows} == {"oversized"}
    assert "the answers of this trial take more than" in rows[0]["error"]
