"""The inside of a load worker: `python -m bitbench.load.worker_process`, jobs on stdin, results on stdout."""

import os
import queue
import sys
import threading
import traceback
from typing import BinaryIO

from bitbench.load.client import run_job
from bitbench.load.frames import decode_job, read_frame, write_failure, write_result


def main() -> None:
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not write into the results
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, jobs), daemon=True).start()
    while True:
        _run(jobs.get(), results)


def _receive(pipe: BinaryIO, jobs: "queue.SimpleQueue[bytes]") -> None:
    """Waits in the kernel while a trial runs, so it costs nothing; the parent's end is seen at once, also then."""
    try:
        while True:
            jobs.put(read_frame(pipe))
    except EOFError:
        os._exit(0)


def _run(frame: bytes, results: BinaryIO) -> None:
    try:
        result = run_job(decode_job(frame))
    except Exception as problem:
        traceback.print_exc()
        write_failure(results, f"{type(problem).__name__}: {problem}")
    else:
        write_result(results, result)


if __name__ == "__main__":
    main()
