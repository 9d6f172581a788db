"""One run of a quantizer's worker in its own environment."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from bitbench.quantize.manifest import WorkerFacts
from bitbench.quantize.work import Work
from bitbench.study.base import Json
from bitbench.util.errors import QuantizeError
from bitbench.util.isolated.job_process import WorkerFailed, run_job


def run_worker(
    script: Path, work: Work, job: Mapping[str, Json], *, maker: str, on_event: Callable[[Json], None]
) -> WorkerFacts:
    """Runs the worker to its end; raises QuantizeError. It dies with this process, even after `kill -9`."""
    last: Json = {}
    try:
        with closing(
            run_job(script, work.python, job, folder=work.folder, log_file=work.log_file, pass_fds=(work.lock_fd,))
        ) as events:
            for last in events:
                on_event(last)
    except WorkerFailed as failure:
        raise QuantizeError(f"{maker} could not create {work.recipe.name}: {_cause(failure)}") from None
    return WorkerFacts.model_validate(last["facts"])


def _cause(failure: WorkerFailed) -> str:
    if failure.cause is None and failure.exit_code < 0:
        return (
            f"the worker was killed by signal {-failure.exit_code}, most often for lack of memory; free some, or "
            f"calibrate with fewer or shorter samples"
        )
    return str(failure)
