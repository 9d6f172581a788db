"""Is somebody else using this machine? Then figures are not the engine's alone."""

import time
from collections.abc import Sequence

import psutil

LOOK_S = 1.0
# The kernel, a desktop and ourselves take a few percent; a tenth of a core is somebody's work.
BUSY_CORES = 0.1


def cores_in_use(look_s: float = LOOK_S) -> float:
    """How many cores were busy with what is not ours while we looked: neither this process nor one that it started."""
    before = _busy_s() - _ours_s()
    time.sleep(look_s)
    return max(0.0, _busy_s() - _ours_s() - before) / look_s


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0) - getattr(times, "guest", 0))


def _ours_s() -> float:
    me = psutil.Process()
    own = me.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system  # children: those that have ended
    for child in me.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return float(total)


def cores_of(pids: Sequence[int], look_s: float = 0.5) -> float:
    """How many cores these processes and all that they started keep busy."""
    trees = [process for pid in pids for process in _tree(pid)]
    before = sum(_used_s(process) for process in trees)
    time.sleep(look_s)
    return max(0.0, sum(_used_s(process) for process in trees) - before) / look_s


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _used_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
