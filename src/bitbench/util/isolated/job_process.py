"""Starts a worker in another environment and reads what it says, line by line; see `job_worker` for its end of it."""

import json
import os
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bitbench.util.child_processes import isolated_command, tool_child_variables
from bitbench.util.files import SafeFolder
from bitbench.util.isolated.job_worker import Json

_LAST_LINES = 3  # of its log, where a worker had no time to tell a cause
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


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
    env: Mapping[str, str] | None = None,
) -> Generator[Json, None, None]:
    """Its events as they come; the last one is `done`. Raises WorkerFailed where it ends in another way.

    It works in `folder`, with the environment variables `env`; without them it has ours, and asks no hub. It is ended
    when this is closed before its last event, and dies with this process, even after `kill -9`: it asks the kernel for
    that.
    """
    job_file = SafeFolder(folder).write("job.json", json.dumps({**job, "parent": os.getpid()}))
    with SafeFolder(log_file.parent).open_to_append(log_file.name) as log:
        worker = subprocess.Popen(
            isolated_command(python, script, job_file),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env=tool_child_variables(_OFFLINE) if env is None else env,
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


def run_short_job(
    script: Path, python: Path, job: Mapping[str, Any], *, env: Mapping[str, str] | None = None
) -> Iterator[Json]:
    """`run_job` in a folder that is gone afterwards. A WorkerFailed always has a cause: told, or from its log."""
    with tempfile.TemporaryDirectory(prefix="bitbench-job-") as place:
        log_file = Path(place) / "worker.log"
        try:
            yield from run_job(script, python, job, folder=Path(place), log_file=log_file, env=env)
        except WorkerFailed as failure:
            cause = failure.cause or _last_words(log_file, failure.exit_code)
            raise WorkerFailed(cause, failure.exit_code) from None


def last_job_event(events: Iterator[Json]) -> Json:
    """What a job returned that is not watched on its way."""
    *_, last = events
    return last


def _last_words(log_file: Path, exit_code: int) -> str:
    lines = [
        line.strip() for line in log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    said = " / ".join([line for line in lines if line][-_LAST_LINES:])
    cause = (
        f"it was killed by signal {-exit_code}" if exit_code < 0 else f"it ended with {exit_code}"
    )
    return f"{cause}; its last output: {said}" if said else cause
