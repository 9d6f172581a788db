"""The null engine: a real HTTP server that streams tokens at moments that are known beforehand.

`python -m bitbench.engines.workers.null_server PORT BEHAVIOUR`, where BEHAVIOUR is JSON with fields of `NullBehaviour`,
and the key that requests must show is in BITBENCH_NULL_KEY (empty: none is asked for). The loop that serves is native
(`native/src/server.cpp`).

The first token of a request leaves at t0 + ttft and token i at t0 + ttft + i × tpot, where t0 is the moment at which
the request had been received completely. These are absolute times: a token that was late does not delay the next.
What was really sent when is told at /truth.
"""

import gc
import json
import os
import resource
import sys
import time
from typing import TYPE_CHECKING

from bitbench.engines.workers.null_answers import Answers, NullBehaviour

if TYPE_CHECKING:
    from bitbench._native import NullServer

KEY_VARIABLE = "BITBENCH_NULL_KEY"

# Memory grows by 400 MB/s: quick enough for a test, slow enough for a watcher that looks ten times a second.
MEMORY_STEP_BYTES, MEMORY_PAUSE_S = 8_000_000, 0.02


def make_server(port: int, key: str, behaviour: NullBehaviour) -> "NullServer":
    from bitbench._native import NullServer

    def take_truth() -> dict[str, float | None]:
        return server.take_truth()

    answers = Answers(key, behaviour, take_truth)
    server = NullServer(
        port,
        answers.respond,
        per_stream=behaviour.per_stream,
        capacity=behaviour.capacity,
        stall_at_s=behaviour.stall_at,
        stall_for_s=behaviour.stall_for,
    )
    return server


def fill_memory(megabytes: int) -> list[bytes]:
    """Grow like an engine that loads a model of this size; serves nothing meanwhile."""
    held = []
    for _ in range(0, megabytes * 1_000_000, MEMORY_STEP_BYTES):
        held.append(os.urandom(1) * MEMORY_STEP_BYTES)  # written to, so that it is really there
        time.sleep(MEMORY_PAUSE_S)
    return held


def start_children(count: int) -> None:
    """Like the workers of a real engine: each has left our session, and its parent has ended."""
    for _ in range(count):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    time.sleep(3600)
            os._exit(0)
        os.wait()


def main(port: str, behaviour_json: str) -> None:
    behaviour = NullBehaviour(**json.loads(behaviour_json))
    print(f"null engine: {behaviour}", flush=True)
    if behaviour.fail == "exit":
        sys.stderr.write("NullEngineError: it was told to exit at its start (fail: exit)\n")
        sys.exit(3)
    start_children(behaviour.children)
    held = fill_memory(behaviour.memory_mb) if behaviour.fail == "memory" else []
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # a connection each
    server = make_server(int(port), os.environ[KEY_VARIABLE], behaviour)
    print(f"null engine: listening on port {port}, {len(held)} blocks of memory held", flush=True)
    gc.freeze()
    gc.disable()  # a collection would make tokens late, and requests leave no cycles
    server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
