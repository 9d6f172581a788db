"""What every worker shares that runs isolated in another environment: its job, its output, its memory, its end.

Found through sys.path by the workers, where bitbench is not installed; imports nothing of ours. A worker is called as
`python -I WORKER.py JOB.json` and writes lines of JSON to its output, the last one {"event": "done" | "failed", …}.
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
    """The process's output, kept for our own lines: what libraries print goes to the error stream instead."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, event: str, **content: Any) -> None:
        self._file.write(json.dumps({"event": event, **content}) + "\n")
        self._file.flush()


class JobError(Exception):
    """Why the job could not be done, in words that need no name of a type before them."""


def run_as_job_worker(job_file: str, work: Callable[[Json, Reports], Json]) -> int:
    """Do the job and say how it ended, with what `work` returns. Returns the exit code."""
    reports = Reports()
    try:
        job = json.loads(Path(job_file).read_text(encoding="utf-8"))
        end_job_worker_with(job["parent"])
        reports.send("done", **work(job, reports))
    except Exception as error:
        traceback.print_exc()
        reports.send("failed", cause=_job_worker_cause(error))
        return 1
    return 0


def end_job_worker_with(parent: int) -> None:
    """Ends with its parent, even after `kill -9`: its result would be of no use."""
    if (
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0
        or os.getppid() != parent
    ):
        os._exit(1)


def job_worker_peak_bytes() -> int | None:
    """High-water mark of this program alone; getrusage would count what the parent had when it forked."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def _job_worker_cause(error: Exception) -> str:
    """Its first line, after the name of its type unless it is a JobError."""
    if isinstance(error, JobError):
        return str(error)
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
