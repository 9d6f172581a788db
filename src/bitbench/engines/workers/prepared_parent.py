"""Imports an engine once, and becomes it by fork for each start: a prepared parent.

Run as `python -I prepared_parent.py FD HOOK MODULE…` in the engine's environment by `engines.starts`, with the
variables around it that the engine's own workers get: OpenMP reads them once, when torch is loaded, so that a fork
comes too late to set them. FD is a socket on which each message is an order (JSON, with the descriptors of a log and
a leash), answered by the reason why it is refused, or by nothing. The first message says whether this process can be
forked at all.

A start below it is kept by a keeper and a guardian like any other (`guardian.py`), forked, too. HOOK is a file whose
`allow_forks(loaded)` prepares the forked engine, or "-"; it is given the OpenMP variables that this process was loaded
with.
"""

import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_GUARDIAN = Path(__file__).parents[1] / "guardian.py"
_LARGEST_ORDER = 2**18
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


def _load_guardian() -> ModuleType:
    """By its path: the folder that it lies in holds files with the names of engines."""
    found = importlib.util.spec_from_file_location("bitbench_guardian", _GUARDIAN)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def main(channel: socket.socket, hook: str, modules: list[str]) -> None:
    guardian = _load_guardian()
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:  # another version's: the engine imports what it needs itself
            print(f"not imported in advance: {error}", flush=True)
    gc.collect()
    gc.freeze()  # the collector of a child would write to, and so copy, every page that it visits
    if (probe := os.fork()) == 0:
        os._exit(0)
    os.waitpid(probe, 0)  # OpenBLAS ends its threads before a fork; one that is left now knows nothing of forks
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers that end are nobody's business here
    _answer_prepared_start(channel, _why_not_fork())
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _LARGEST_ORDER, 2)
        if not message:
            return
        reason = _why_not_fork()
        if reason is None and os.fork() == 0:
            channel.close()
            _become_prepared_engine(json.loads(message), hook, guardian, *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        _answer_prepared_start(channel, reason)


def _answer_prepared_start(channel: socket.socket, reason: str | None) -> None:
    channel.send(json.dumps({"refused": reason}).encode())


def _why_not_fork() -> str | None:
    """A reason not to fork this process."""
    if (threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208
        return f"{threads} threads run after its imports"  # a lock that one of them holds would stay locked in a child
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialised after its imports"
    if any(device in Path("/proc/self/maps").read_text() for device in _DEVICES):
        return "a device is open after its imports"
    return None


def _become_prepared_engine(order: dict[str, Any], hook: str, guardian: ModuleType, log: int, leash: int) -> None:
    """In the forked process: the surroundings that a new process would have had, then the engine itself, which ends
    as a program does when this file's last line is reached."""
    parent = os.getppid()
    os.setsid()
    guardian.call_prctl(guardian.PR_SET_PDEATHSIG, signal.SIGTERM)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.sched_setaffinity(0, order["cpus"])  # a preloaded OpenMP has bound this process before
    guardian.fork_under_guardian(leash, parent)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python sets them when it is started
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    loaded = {name: os.environ[name] for name in order["openmp"] if name in os.environ}
    os.environ.clear()
    os.environ.update(order["env"])
    if hook != "-":
        runpy.run_path(hook)["allow_forks"](loaded)
    words = order["words"]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:])
