"""`bitbench load --slo` on a real null engine finds the capacity that it is told to have, also where it was killed."""

import json
import os
from pathlib import Path

import pytest

from bitbench.analysis.rate_search import VERIFICATIONS
from bitbench.analysis.results.summary import SearchStop
from bitbench.machine.workplace import get_default_home
from bitbench.records.folder import StudyFolder
from bitbench.reports.write import StudyReport
from tests.busy_machine import wait_for
from tests.chain.test_load import ANSWER, CAPABLE, load
from tests.forked import command, start
from tests.support.null_instance import running

TRUE_RATE = 40.0  # of CAPABLE


def test_the_search_finds_the_known_capacity_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    # Above what the stalls of a busy machine add below the capacity; beyond it the queue grows, whatever the limit.
    asked = [
        "--slo",
        "ttft_p99=900ms",
        "--duration",
        "6s",
        "--into",
        "out",
        "--arrival",
        "constant",
        *ANSWER,
    ]
    lines = tmp_path / "out" / "trials.jsonl"
    with running(CAPABLE, tmp_path) as null:
        variables = {**os.environ, "OPENAI_API_KEY": null.api_key}
        first = start(
            command,
            ["load", null.url, *asked],
            cwd=tmp_path,
            env=variables,
            streams={1: Path(os.devnull)},
        )
        assert wait_for(lambda: lines.exists() and lines.read_text().count("\n") > 1, 300)
        first.kill()
        first.join()
        kept = lines.read_text().splitlines()[:2]
        done = load(null, tmp_path, *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming after" in done.stdout
    folder = StudyFolder.existing(tmp_path / "out")
    assert lines.read_text().splitlines()[:2] == kept
    found = StudyReport(folder, get_default_home()).summary.search
    assert found is not None
    assert found.trials <= 12 + VERIFICATIONS
    assert found.rate == pytest.approx(
        TRUE_RATE, rel=0.06
    )  # six seconds have a quarter of the requests of a p99
    assert found.low is not None
    assert found.high is not None
    assert found.low <= TRUE_RATE * 1.01
    assert found.high >= TRUE_RATE * 0.99
    assert found.verified is not None
    assert found.verified <= TRUE_RATE
    assert found.verified_requests is not None
    assert found.verified_requests >= 18 * found.verified - 1
    assert found.stop in (SearchStop.PRECISE, SearchStop.TRIALS)
    assert "The highest rate that meets ttft_p99 ≤ 900 ms" in done.stdout
    assert json.loads((tmp_path / "out" / "lock.json").read_text())["search"]["trials"] == 12
