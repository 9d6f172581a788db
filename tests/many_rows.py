"""A study folder of many request rows, and what `bitbench query` takes to sum them up."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bitbench.records.folder import StudyFolder
from tests.big_study import big_study

CONFIGS, TRIALS = 5, 20  # 100 trials, each with a file of rows
PERCENTILES = """
SELECT engine, count(*) AS requests, approx_quantile(first_token_s - planned_s, 0.5) AS ttft_p50_s,
    approx_quantile(first_token_s - planned_s, 0.99) AS ttft_p99_s,
    approx_quantile((last_token_s - first_token_s) / (r.output_tokens - 1), 0.99) AS tpot_p99_s,
    approx_quantile(end_s - planned_s, 0.99) AS latency_p99_s
FROM requests r JOIN trials USING (folder, trial)
WHERE kind = 'measured' AND outcome = 'ok' AND status = 'ok' GROUP BY ALL ORDER BY ALL
"""
# The peak of this program alone: what the system says of a child process begins with the memory of its parent.
QUERY = """
import sys
from pathlib import Path
from bitbench.cli import main
try:
    main()
finally:
    print(Path("/proc/self/status").read_text(), file=sys.stderr)
"""


def many_rows(place: Path, rows_per_trial: int) -> StudyFolder:
    """Trials of a config share one file under many names, so that the disk holds a twentieth of the rows."""
    folder = big_study(
        place, configs=CONFIGS, workloads=1, trials=TRIALS, rows_per_trial=rows_per_trial
    )
    trials = folder.trials()
    for trial in trials:
        os.link(folder.path / str(trial.requests_file), folder.requests / f"{trial.id}.parquet")
    for name in {str(trial.requests_file) for trial in trials}:
        (folder.path / name).unlink()
    return folder


def ask(folder: Path, sql: str) -> tuple[list[dict[str, Any]], float, int]:
    """The rows of the answer, seconds, and the most memory that the command had, in bytes."""
    began = time.monotonic()
    command = [sys.executable, "-c", QUERY, "query", str(folder), sql, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (peak,) = (line.split()[1] for line in done.stderr.splitlines() if line.startswith("VmHWM:"))
    return json.loads(done.stdout), time.monotonic() - began, 1024 * int(peak)
