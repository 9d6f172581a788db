"""Starts a worker in another environment and reads what it says, line by line; see `job_worker` for its end of it."""

import json
import os
import subprocess
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bitbench.isolated.job_worker import Json


class WorkerFailed(Exception):
    """`cause` is the worker's own sentence; None where it had no time for one."""

    def __init__(self, cause: str | None, exit_code: int) -> None:
        super().__init__(cause or f"the worker ended with {exit_code}")
        self.cause, self.exit_code = cause, exit_code


def run_job(
    script: Path,
    python: Path,
    job: Mapping[str, Any],
    *,
    folder: Path,
    log_file: Path,
    pass_fds: Sequence[int] = (),
) -> Generator[Json, None, None]:
    """Its events as they come; the last one is `done`. Raises WorkerFailed where it ends in another way.

    It works in `folder`. It is ended when this is closed before its last event, and dies with this process, even after
    `kill -9`: it asks the kernel for that.
    """
    job_file = folder / "job.json"
    job_file.write_text(json.dumps({**job, "parent": os.getpid()}), encoding="utf-8")
    with log_file.open("wb") as log:
        worker = subprocess.Popen(
            [python, "-I", script, job_file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env=_environment(),
            pass_fds=pass_fds,
        )
    last: Json = {}
    try:
        for line in worker.stdout or ():
            if not line.endswith("\n"):  # killed while it wrote
                break
            last = json.loads(line)
            yield last
        exit_code = worker.wait()
    finally:
        worker.kill()
        worker.wait()
    if exit_code != 0 or last.get("event") != "done":
        raise WorkerFailed(last.get("cause") if last.get("event") == "failed" else None, exit_code)


def _environment() -> dict[str, str]:
    """Ours without what would leak packages into another Python; nothing is asked of a hub."""
    ours = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "HF_TOKEN")}
    return ours | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
