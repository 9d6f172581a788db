"""One run of a worker in its own environment: a job file in, lines of JSON out."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from bitbench.core.base import Json
from bitbench.errors import QuantizeError
from bitbench.quantize.manifest import WorkerFacts
from bitbench.quantize.work import Work


def run_worker(
    script: Path, work: Work, job: Mapping[str, Json], *, maker: str, on_event: Callable[[Json], None]
) -> WorkerFacts:
    """Runs the worker to its end. It dies with this process, even after `kill -9`: it asks the kernel for that."""
    job_file = work.folder / "job.json"
    job_file.write_text(json.dumps({**job, "parent": os.getpid()}), encoding="utf-8")
    last: Json = {}
    with work.log_file.open("wb") as log:
        worker = subprocess.Popen(
            [work.python, "-I", script, job_file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=work.folder,
            env=_environment(),
            pass_fds=(work.lock_fd,),
        )
    try:
        for line in worker.stdout or ():
            last = json.loads(line)
            on_event(last)
        exit_code = worker.wait()
    finally:
        worker.kill()
        worker.wait()
    if exit_code != 0 or last.get("event") != "done":
        raise QuantizeError(f"{maker} could not make {work.recipe.name}: {_cause(last, exit_code)}")
    return WorkerFacts.model_validate(last["facts"])


def _environment() -> dict[str, str]:
    """Ours without what would leak packages into another Python; nothing is asked of a hub."""
    ours = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "HF_TOKEN")}
    return ours | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def _cause(last: Json, exit_code: int) -> str:
    if last.get("event") == "failed":
        return str(last["cause"])
    if exit_code < 0:
        return (
            f"the worker was killed by signal {-exit_code}, most often for want of memory; free some (calibration with "
            "fewer or shorter samples needs less)"
        )
    return f"the worker ended with {exit_code}"
