"""A hundred million request rows are summed up by config within 1.5 GB."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.many_rows import CONFIGS, PERCENTILES, TRIALS, ask, many_rows

ROWS_PER_TRIAL = 1_000_000
MOST_BYTES = 1.5e9
NEAR = 0.01  # of the percentile of all rows


@pytest.mark.timeout(3600)
def test_a_hundred_million_request_rows(tmp_path: Path) -> None:
    folder = many_rows(tmp_path / "many", ROWS_PER_TRIAL)
    found, took_s, peak_bytes = ask(folder.path, PERCENTILES)
    requests = sum(one["requests"] for one in found)
    print(f"{requests:,} rows: {took_s:.0f} s, {peak_bytes / 1e6:.0f} MB at most")
    assert requests == CONFIGS * TRIALS * ROWS_PER_TRIAL == 100_000_000
    assert peak_bytes < MOST_BYTES
    first = next(
        trial for trial in folder.trials() if trial.point.config.engine == found[0]["engine"]
    )
    rows = pq.read_table(
        folder.requests / f"{first.id}.parquet", columns=["planned_s", "first_token_s"]
    )
    ttft = (
        rows["first_token_s"].to_numpy() - rows["planned_s"].to_numpy()
    )  # those of each trial of this config
    for column, percent in (("ttft_p50_s", 50), ("ttft_p99_s", 99)):
        assert found[0][column] == pytest.approx(np.percentile(ttft, percent), rel=NEAR)
