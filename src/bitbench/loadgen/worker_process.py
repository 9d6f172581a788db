"""The inside of a load worker: `python -m bitbench.loadgen.worker_process`, tasks on stdin, results on stdout."""

import fcntl
import os
import pickle
import queue
import resource
import struct
import sys
import termios
import threading
import traceback
from typing import BinaryIO

import uvloop

from bitbench.loadgen.client import run_client_part
from bitbench.loadgen.progress import Snapshot
from bitbench.loadgen.workers import JobFailed, Ready, write_frame
from bitbench.util.child_processes import read_child_frame
from bitbench.util.errors import LoadError

_PIPE_BYTES = 1_048_576  # what an ordinary user may ask for
_SNAPSHOT_ROOM = _PIPE_BYTES // 4  # a snapshot has some kilobytes


def main() -> None:
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not write into the results
    fcntl.fcntl(results, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    _allow_many_connections()
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, frames), daemon=True).start()

    def zero_from_parent() -> float:
        write_frame(results, Ready())
        return float(pickle.loads(frames.get()))

    def report(snapshot: Snapshot) -> None:
        if (
            _waiting_bytes(results) < _SNAPSHOT_ROOM
        ):  # else nobody reads them, and a full pipe would stop the trial
            write_frame(results, snapshot)

    while True:
        task_frame = frames.get()
        try:
            task = pickle.loads(task_frame)
            result = uvloop.run(
                run_client_part(
                    task.job, task.part, zero_from_parent, report if task.report else None
                )
            )
        except LoadError as problem:
            write_frame(results, JobFailed(str(problem)))
        except Exception as problem:
            traceback.print_exc()
            write_frame(results, JobFailed(f"{type(problem).__name__}: {problem}"))
        else:
            write_frame(results, result)


def _allow_many_connections() -> None:
    """Each one is an open file, and the usual limit is 1,024; the process may raise it up to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _receive(pipe: BinaryIO, frames: "queue.SimpleQueue[bytes]") -> None:
    """Waits in the kernel while a trial runs, so it costs nothing; the parent's end is seen at once, also then."""
    try:
        while True:
            frames.put(read_child_frame(pipe))
    except EOFError:
        os._exit(0)


def _waiting_bytes(pipe: BinaryIO) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)


if __name__ == "__main__":
    main()
