"""The load client in a process of its own, so that nothing the parent does delays a timestamp."""

import contextlib
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import IO, Self

from bitbench.core.ports import LoadJob, LoadResult
from bitbench.errors import LoadError
from bitbench.load.frames import JobFailed, encode_job, read_result, write_frame

_COMMAND = (sys.executable, "-P", "-m", "bitbench.load.worker_process")
_EXIT_TIMEOUT_S = 5.0
_SHOWN_LINES = 3


class LoadWorker:
    """Implements core.ports.LoadClient. Started at the first job, kept for the next ones, ended with the context.

    The worker ends by itself when this process is gone, however it went: its standard input is then at its end.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._start()  # imports take half a second; they happen while the first engine starts
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, job: LoadJob) -> LoadResult:
        """Blocks until the trial has ended. Raises LoadError where the client failed, not the engine."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_frame(process.stdin, encode_job(job))
            return read_result(process.stdout)
        except JobFailed as failed:
            raise LoadError(f"The load worker could not run workload {job.workload.name}: {failed}") from None
        except (EOFError, BrokenPipeError):
            raise LoadError(self._obituary(job)) from None
        except BaseException:  # an interrupt: its answer would be taken for the next job's
            self._end()
            raise

    def _start(self) -> "subprocess.Popen[bytes]":
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # an interrupt in the terminal is the parent's to handle
        )
        return self._process

    def _obituary(self, job: LoadJob) -> str:
        assert self._process is not None
        assert self._errors is not None
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
        code = self._process.returncode
        self._end()
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = f" It said: {' / '.join(lines)}" if lines else ""
        return f"The load worker {ended} during workload {job.workload.name}; run the study again to continue.{said}"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        assert self._errors is not None
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):  # it may be gone already
            process.stdin.close()
        try:
            process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._errors.close()
