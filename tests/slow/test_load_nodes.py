"""4,096 streams from several node programs: merged percentiles, the server's schedule, and a node that is killed."""

import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from bitbench.features.fleet.load_fleet import LoadFleet
from bitbench.features.fleet.orders import SKETCHED
from bitbench.features.fleet.roster import roster_of
from bitbench.ports import LoadLost
from bitbench.records.request_rows import RequestRows
from bitbench.records.trial import LoadProgress
from tests.features.fleet.test_load_nodes import killing
from tests.slow.test_load_truth import job
from tests.unit.null_instance import running

STREAMS = 4_096
# A token every 300 ms and stream: 14,000 a second in all, which leaves cores to the server and to four processes.
TTFT_S, SCHEDULE = 2.0, {"ttft": "2s", "tpot": "300ms", "vary": "10%"}


@pytest.mark.parametrize("nodes", [2, 4])
def test_merged_percentiles_are_those_of_all_rows(tmp_path: Path, nodes: int) -> None:
    most_running = 0

    def note(progress: LoadProgress) -> None:
        nonlocal most_running
        most_running = max(most_running, progress.running)

    with running(SCHEDULE, tmp_path) as endpoint, LoadFleet(roster_of(f"local:{nodes}")) as client:
        result = client.run(job(endpoint, concurrency=STREAMS, output_tokens=30), note)
    assert result.requests["status"].to_pylist() == ["ok"] * STREAMS
    assert result.requests["request"].to_pylist() == list(range(STREAMS))
    assert most_running == STREAMS
    assert [node.requests for node in result.health.nodes] == [STREAMS // nodes] * nodes
    rows = RequestRows(result.requests)
    for name in SKETCHED:
        exact, merged = rows.time(name), result.sketched[name]
        assert merged.count == exact.size
        for percent, found in ((50, merged.p50_s), (90, merged.p90_s), (99, merged.p99_s)):
            assert found == pytest.approx(float(np.percentile(exact, percent)), rel=0.0101)
    # What the server meant to do; sending 4,096 requests at once takes a while.
    late_s = float(np.median(rows.column("sent_s") - rows.planned))
    assert rows.ttft.size == STREAMS
    assert float(np.median(rows.ttft)) - late_s == pytest.approx(TTFT_S, rel=0.05)


def test_one_of_four_killed_in_the_middle(tmp_path: Path) -> None:
    gone: list[psutil.Process] = []
    kill, began = killing(2, gone), threading.Event()

    def kill_when_all_run(progress: LoadProgress) -> None:
        if progress.running == STREAMS:
            began.set()
            kill(progress)

    with running(SCHEDULE, tmp_path) as endpoint, LoadFleet(roster_of("local:4")) as client:
        with pytest.raises(LoadLost, match=r"local-3 was lost"):
            client.run(job(endpoint, concurrency=STREAMS, output_tokens=30), kill_when_all_run)
        assert began.is_set()
        _, alive = psutil.wait_procs(gone, timeout=20)
        assert not alive
