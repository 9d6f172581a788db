"""The parent of a worker in another environment. It starts the worker and reads its output line
by line. See `job_worker` for the other end.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bitbench.util.child_processes import collect_tool_variables, make_isolated_command
from bitbench.util.files import SafeFolder
from bitbench.util.isolated.job_worker import Json

_LAST_LINES = 3  # of the log of a worker that ended without a cause
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class WorkerFailed(Exception):
    """A failure of a worker. `cause` is the worker's own sentence, or None if it wrote none."""

    def __init__(self, cause: str | None, exit_code: int) -> None:
        super().__init__(cause or f"the worker ended with {exit_code}")
        self.cause = cause
        self.exit_code = exit_code


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
    """Yield the events of a worker, `done` as the last. Raise WorkerFailed if it ends otherwise.

    The worker runs in `folder` with the variables `env`. The default is our variables without
    access to a hub. It is killed if the generator is closed early. It dies with this process,
    even after `kill -9`, because it asks the kernel for that.
    """
    if env is None:
        env = collect_tool_variables(_OFFLINE)
    job_file = SafeFolder(folder).write("job.json", json.dumps({**job, "parent": os.getpid()}))
    with SafeFolder(log_file.parent).open_to_append(log_file.name) as log:
        worker = subprocess.Popen(
            make_isolated_command(python, script, job_file),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env=env,
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
    if last.get("event") == "failed":
        raise WorkerFailed(last.get("cause"), exit_code)
    if exit_code != 0 or last.get("event") != "done":
        raise WorkerFailed(None, exit_code)


def run_short_job(
    script: Path, python: Path, job: Mapping[str, Any], *, env: Mapping[str, str] | None = None
) -> Iterator[Json]:
    """Run a job in a temporary folder. A WorkerFailed always has a cause, perhaps from its log."""
    with tempfile.TemporaryDirectory(prefix="bitbench-job-") as name:
        folder = Path(name)
        log_file = folder / "worker.log"
        try:
            yield from run_job(script, python, job, folder=folder, log_file=log_file, env=env)
        except WorkerFailed as failure:
            cause = failure.cause or _describe_end(log_file, failure.exit_code)
            raise WorkerFailed(cause, failure.exit_code) from None


def get_last_event(events: Iterator[Json]) -> Json:
    """Return the last event of a job, and ignore the others."""
    *_, last = events
    return last


def _describe_end(log_file: Path, exit_code: int) -> str:
    """Return how a worker ended, with the last lines of its log."""
    cause = f"it ended with {exit_code}"
    if exit_code < 0:
        cause = f"it was killed by signal {-exit_code}"
    log = log_file.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if not lines:
        return cause
    return f"{cause}; its last output: {' / '.join(lines[-_LAST_LINES:])}"
