"""The base of every worker that runs isolated in another environment: its job, output, memory and
end.

Workers find it through sys.path, since bitbench is not installed there. It imports nothing of
bitbench. A worker is called as `python -I WORKER.py JOB.json`. It writes lines of JSON, the last
one {"event": "done" | "failed", …}.
"""

import ctypes
import json
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]

PR_SET_PDEATHSIG = 1


class Reports:
    """The output of the process, reserved for our lines. Libraries write to the error stream."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, event: str, **content: Any) -> None:
        self._file.write(json.dumps({"event": event, **content}) + "\n")
        self._file.flush()


class JobError(Exception):
    """A reason why the job failed, written without the name of its type."""


def run_as_job_worker(job_file: str, work: Callable[[Json, Reports], Json]) -> int:
    """Run the job and report its end with the result of `work`. Return the exit code."""
    reports = Reports()
    try:
        job = json.loads(Path(job_file).read_text(encoding="utf-8"))
        end_job_worker_with(job["parent"])
        reports.send("done", **work(job, reports))
    except Exception as error:
        traceback.print_exc()
        reports.send("failed", cause=_describe_cause(error))
        return 1
    return 0


def end_job_worker_with(parent: int) -> None:
    """End the worker with its parent, even after `kill -9`, since its result would be useless."""
    result = ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if result != 0 or os.getppid() != parent:
        os._exit(1)


def job_worker_peak_bytes() -> int | None:
    """Return the peak memory of this program. getrusage would include its parent at the fork."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def _describe_cause(error: Exception) -> str:
    """Return the first line of an error, after the name of its type unless it is a JobError."""
    if isinstance(error, JobError):
        return str(error)
    kind = type(error).__name__
    lines = str(error).strip().splitlines()
    if not lines:
        return kind
    return f"{kind}: {lines[0]}"
