"""One process of the load client, as its parent sees it."""

import contextlib
import subprocess
import tempfile

from bitbench.loadgen.frames import JobFailed, Ready, WorkerTask, encode_task, encode_zero, read_message
from bitbench.loadgen.progress import Snapshot
from bitbench.ports import LoadResult
from bitbench.util.child_environment import bitbench_environment
from bitbench.util.child_python import NOWHERE, own
from bitbench.util.errors import LoadError
from bitbench.util.frames import write_frame
from bitbench.util.quotation import quote

_MODULE = "bitbench.loadgen.worker_process"
_EXIT_TIMEOUT_S = 5.0
_SHOWN_LINES = 3


class Worker:
    """Does nothing else while a trial runs, so that nothing the parent does delays a timestamp.

    It ends by itself when this process is gone, however it went: its standard input is then at its end.
    """

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            own(_MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=NOWHERE,
            env=bitbench_environment(),
            bufsize=0,  # what lay in a buffer would not show as readable
            start_new_session=True,  # an interrupt in the terminal is the parent's to handle
        )
        self._doing = "nothing"
        self._key = ""  # what its words must not repeat

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Readable when there is a message."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def begin(self, task: WorkerTask) -> None:
        self._doing = f"workload {task.job.workload.name}"
        self._key = task.job.endpoint.api_key
        self._write(encode_task(task))

    def start_clock(self, zero: float) -> None:
        self._write(encode_zero(zero))

    def read(self) -> Ready | Snapshot | LoadResult:
        """The next message, waited for. Raises LoadError where the worker is gone or could not do its task."""
        assert self._process.stdout is not None
        try:
            return read_message(self._process.stdout)
        except JobFailed as failed:
            raise LoadError(f"The load worker could not run {self._doing}: {quote(str(failed), self._key)}") from None
        except EOFError:
            raise LoadError(self._obituary()) from None

    def end(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):  # it may be gone already
            process.stdin.close()
        try:
            process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._errors.close()

    def _write(self, frame: bytes) -> None:
        assert self._process.stdin is not None
        try:
            write_frame(self._process.stdin, frame)
        except BrokenPipeError:
            raise LoadError(self._obituary()) from None

    def _obituary(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = f" Its output: {quote(' / '.join(lines), self._key)}" if lines else ""
        return f"The load worker {ended} during {self._doing}; repeat the command to resume.{said}"
