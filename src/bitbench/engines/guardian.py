"""Runs one engine and makes sure that nothing of it outlives bitbench, whichever process is ended by `kill -9`.

Started as `python -I -S guardian.py FD PARENT_PID COMMAND…` by `engines.processes`; imports nothing of ours. The engine
is its child. It is a child subreaper, so that orphans and processes that changed their session stay below it in the
tree and are found in /proc.

| who is killed | what happens |
|---|---|
| bitbench | its end of the socket closes; the guardian ends the engine and all that it started |
| the engine | the guardian reports it and ends what the engine had started |
| the guardian | the kernel kills the engine (PR_SET_PDEATHSIG); bitbench finds the rest by a mark that they inherited |
| bitbench and the guardian | the kernel kills the engine; the next command of that user finds the rest by the mark |

FD is one end of a socket pair. Two lines are written to it: the engine's pid, and its exit code
as soon as it is known, which may be seconds before the last process is gone. It is closed when nothing is left. The
exit status is the engine's, a signal included.
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
KILL_S = 1.0  # from SIGKILL until the last process is gone, on a busy machine
CANNOT_START = 127  # as a shell says it
MARK_VARIABLE = "BITBENCH_INSTANCE"


def main(arguments: list[str]) -> None:
    """Runs a command as the engine."""
    leash, parent, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    _carry_mark(os.environ.pop(MARK_VARIABLE, ""))
    _guard(leash, parent)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(CANNOT_START)


def _carry_mark(mark: str) -> None:
    """By which `engines.left_over` finds all that comes from here. Where a lower limit holds already there is none."""
    if mark:
        with contextlib.suppress(ValueError, OSError):
            soft, hard = map(int, mark.split(":"))
            resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))


def _guard(leash: int, parent: int) -> None:
    """Fork the engine and return in it alone. The guardian ends when the engine has, or its time is over."""
    guardian = os.getpid()
    engine = os.fork()
    wakeups = _prepare_guardian()
    if engine == 0:
        _become_engine(guardian, leash, wakeups)
        return
    os.write(leash, f"{engine}\n".encode())
    status = _watch_engine(engine, leash, parent, wakeups)
    _report_end(leash, status)
    _end_like_engine(_end_all(engine, status))


def _become_engine(guardian: int, leash: int, wakeups: int) -> None:
    os.setsid()
    _call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guardian:  # it died before the line above
        os._exit(CANNOT_START)
    for descriptor in (leash, wakeups, signal.set_wakeup_fd(-1)):
        os.close(descriptor)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _watch_engine(engine: int, leash: int, parent: int, wakeups: int) -> int | None:
    """Return the engine's wait status; None where the parent is gone, or this process is told to end, before it."""
    while True:
        readable, _, _ = select.select([leash, wakeups], [], [], PARENT_CHECK_S)
        if wakeups in readable and _is_told_to_end(wakeups):
            return None
        if (leash in readable and _is_leash_closed(leash)) or os.getppid() != parent:
            return None
        if (status := _reap().get(engine)) is not None:
            return status


def _report_end(leash: int, status: int | None) -> None:
    """Before the rest of the tree is ended, which may take seconds. None: not the engine began it, but we."""
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(leash, f"{code}\n".encode())


def _prepare_guardian() -> int:
    """Orphans come here from now on; the descriptor is readable when a child ends or this process is told to end."""
    _call_prctl(PR_SET_CHILD_SUBREAPER, 1)
    return _wakeup_on_signals()


def _call_prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _wakeup_on_signals() -> int:
    """A descriptor that becomes readable when a child ends or somebody asks this process to end."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return read_end


def _is_told_to_end(wakeups: int) -> bool:
    return any(number != signal.SIGCHLD for number in os.read(wakeups, 4096))


def _is_leash_closed(leash: int) -> bool:
    try:
        return not os.read(leash, 1)
    except OSError:  # bitbench was gone before it had read everything
        return True


def _reap() -> dict[int, int]:
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


def _end_all(engine: int, status: int | None) -> int:
    """Ask every process below to end, wait, then kill what is left; return the engine's wait status."""
    deadline = time.monotonic() + GRACE_S
    asked: set[int] = set()
    while True:
        status = _reap().get(engine, status)
        alive = descendants(os.getpid())
        if not alive:
            return 0 if status is None else status
        if time.monotonic() > deadline:
            send_signal(alive, signal.SIGKILL)
        else:
            send_signal(alive - asked, signal.SIGTERM)
            asked |= alive
        time.sleep(0.02)


def send_signal(pids: set[int], number: int) -> None:
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


def _end_like_engine(status: int) -> None:
    """Ends this process in the way the engine ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1:])
