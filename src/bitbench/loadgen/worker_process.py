"""The main program of a load worker, with tasks on stdin and results on stdout.

Run it as `python -m bitbench.loadgen.worker_process`.
"""

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

_PIPE_BYTES = 1_048_576  # the most that an ordinary user may request
_SNAPSHOT_ROOM = _PIPE_BYTES // 4  # plenty for snapshots of some kilobytes


def main() -> None:
    """Run the tasks of the parent process until it ends."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints must not go into the results
    fcntl.fcntl(results, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    _allow_many_connections()
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, frames), daemon=True).start()

    def zero_from_parent() -> float:
        write_frame(results, Ready())
        return float(pickle.loads(frames.get()))

    def report(snapshot: Snapshot) -> None:
        # If nobody reads the snapshots, a full pipe would stop the trial.
        if _count_waiting_bytes(results) < _SNAPSHOT_ROOM:
            write_frame(results, snapshot)

    while True:
        task_frame = frames.get()
        try:
            task = pickle.loads(task_frame)
            on_snapshot = report if task.report else None
            result = uvloop.run(run_client_part(task.job, task.part, zero_from_parent, on_snapshot))
        except LoadError as problem:
            write_frame(results, JobFailed(str(problem)))
        except Exception as problem:
            traceback.print_exc()
            write_frame(results, JobFailed(f"{type(problem).__name__}: {problem}"))
        else:
            write_frame(results, result)


def _allow_many_connections() -> None:
    """Raise the limit on open files from the usual 1,024: each connection is one."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def _receive(pipe: BinaryIO, frames: "queue.SimpleQueue[bytes]") -> None:
    """Read frames in a thread, and end the process when the parent ends.

    During a trial it waits in the kernel and costs nothing.
    """
    try:
        while True:
            frames.put(read_child_frame(pipe))
    except EOFError:
        os._exit(0)


def _count_waiting_bytes(pipe: BinaryIO) -> int:
    """Return how many bytes in a pipe were not read yet."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)


if __name__ == "__main__":
    main()
