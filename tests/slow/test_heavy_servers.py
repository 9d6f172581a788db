"""The heaviest hostile servers, as large as they were met, against a worker as a study uses it."""

from collections.abc import Iterator

import pytest

from bitbench.loadgen.workers import LoadWorkers
from tests.support.hostile_modes import BLOCK, GOOD, OK_HEAD, STREAM, UNTIL_CLOSE, chunk
from tests.support.raw_server import Answerer, flood, send, serving
from tests.support.scripted_server import END
from tests.unit.test_hostile_servers import job, within

GIGABYTE = 1_000_000_000


@pytest.fixture
def worker() -> Iterator[LoadWorkers]:
    """One that has imported what it needs, and run a trial."""
    with serving(send(STREAM, GOOD)) as server, LoadWorkers(1) as workers:
        workers.run(job(server.url))
        yield workers


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(
            flood(UNTIL_CLOSE, BLOCK, 2 * GIGABYTE), "larger than", id="2 GB until it closes"
        ),
        pytest.param(
            flood(OK_HEAD + b"Content-Length: 1000000000\r\n\r\n", BLOCK, GIGABYTE),
            "larger than",
            id="1 GB as it says",
        ),
        pytest.param(
            flood(STREAM, chunk(b"x" * 60_000), GIGABYTE), "larger than", id="1 GB in whole chunks"
        ),
        pytest.param(
            flood(STREAM, chunk(b"data: {}\n\n" * 1_000), 3_000_000 * 10),
            "larger than",
            id="3,000,000 events",
        ),
    ],
)
def test_a_body_of_a_gigabyte_takes_no_more_than_its_limit(
    worker: LoadWorkers, answer: Answerer, said: str
) -> None:
    with serving(answer) as server, within(64.0, 10.0, worker.pids[0]):
        (row,) = worker.run(job(server.url)).requests.to_pylist()
    assert row["status"] == "oversized"
    assert said in row["error"]


@pytest.mark.parametrize("empty", [b"\n\n", b"data:\n\n", b": ping\n\n"])
def test_three_million_empty_events_are_given_up_even_where_a_long_answer_was_asked_for(
    worker: LoadWorkers, empty: bytes
) -> None:
    """200,000 tokens may take 800 MB and 801,000 events."""
    answer = send(STREAM, chunk(empty * 3_000_000), END)
    with serving(answer) as server, within(400.0, 60.0, worker.pids[0]):
        (row,) = worker.run(
            job(server.url, output_tokens=200_000, request_s=50.0)
        ).requests.to_pylist()
    assert row["status"] == "oversized"
    assert "more than 801,000 events" in row["error"]
