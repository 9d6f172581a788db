"""Runs one engine and makes sure that nothing of it outlives bitbench, not even after `kill -9` of bitbench.

Started as `python -I -S guardian.py FD PARENT_PID COMMAND…` by `engines.processes`; imports nothing of ours.

- FD is one end of a socket pair. The engine's pid is written to it; when its other end is closed, all is ended.
- The engine runs in a session of its own. Every process it starts stays below this one in the tree, because this
  one is a child subreaper: orphans and processes that changed their session come here and are found in /proc.
- The exit status is the engine's, a signal included.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# A vLLM that is ready ends 0.4 to 0.6 s after SIGTERM; one that is still starting does not listen to it at all.
GRACE_S = 3.0
# The parent's death closes the socket at once, unless a process forked from the parent still holds the other end;
# then it is noticed after this time.
PARENT_CHECK_S = 1.0
CANNOT_START = 127  # as a shell says it


def main(arguments: list[str]) -> int:
    """Runs the command until it ends or the parent is gone; returns its wait status."""
    fd, parent, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    control(PR_SET_CHILD_SUBREAPER, 1)
    wakeups = wakeup_on_signals()
    engine = start(command, fd)
    os.write(fd, f"{engine}\n".encode())

    status = None
    while status is None:
        readable, _, _ = select.select([fd, wakeups], [], [], PARENT_CHECK_S)
        if wakeups in readable and is_told_to_end(wakeups):
            break
        if (fd in readable and not os.read(fd, 1)) or os.getppid() != parent:
            break
        status = reap().get(engine)
    return end_all(engine, status)


def control(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def wakeup_on_signals() -> int:
    """A descriptor that becomes readable when a child ends or somebody asks this process to end."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return read_end


def is_told_to_end(wakeups: int) -> bool:
    return any(number != signal.SIGCHLD for number in os.read(wakeups, 4096))


def start(command: list[str], fd: int) -> int:
    guardian = os.getpid()
    engine = os.fork()
    if engine:
        return engine
    try:
        os.setsid()
        control(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:  # it died before the line above
            os._exit(CANNOT_START)
        os.close(fd)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(CANNOT_START)


def reap() -> dict[int, int]:
    """Wait statuses of the children that have ended, orphans included."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def end_all(engine: int, status: int | None) -> int:
    """Asks every process below to end, waits, then kills what is left; returns the engine's wait status."""
    deadline = time.monotonic() + GRACE_S
    asked: set[int] = set()
    while True:
        status = reap().get(engine, status)
        alive = descendants(os.getpid())
        if not alive:
            return 0 if status is None else status
        if time.monotonic() > deadline:
            send(alive, signal.SIGKILL)
        else:
            send(alive - asked, signal.SIGTERM)
            asked |= alive
        time.sleep(0.02)


def send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def descendants(root: int) -> set[int]:
    """Every process below `root`, whatever its session or group; what has ended but is not reaped does not count."""
    parents = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would double the time it takes to start
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                    state, parent = stat.read().rpartition(b")")[2].split()[:2]
            except OSError:  # gone in the meantime
                continue
            parents[int(name)] = (int(parent), state)
    found: set[int] = set()
    below = {root}
    while below:
        below = {pid for pid, (parent, _) in parents.items() if parent in below}
        found |= below
    return {pid for pid in found if parents[pid][1] not in (b"Z", b"X")}


def pass_on(status: int) -> None:
    """Ends this process in the way the engine ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    pass_on(main(sys.argv[1:]))
