"""The guardian: it runs one engine and ends all its processes, even if bitbench is killed.

`engines.processes` starts it as `python -I -S guardian.py FD PARENT_PID COMMAND…`. It imports only
the standard library. The engine is its child. The guardian is a child subreaper: orphans and
processes that changed their session stay below it in the tree, so it finds them in /proc.

| killed process | consequence |
|---|---|
| bitbench | its end of the socket closes; the guardian ends the engine and all that it started |
| the engine | the guardian reports it and ends the processes that the engine had started |
| the guardian | the kernel kills the engine (PR_SET_PDEATHSIG); bitbench finds the rest by mark |
| both | the kernel kills the engine; the user's next command finds the rest by mark |

FD is one end of a socket pair. The guardian writes two lines to it: the engine's pid, and its exit
code as soon as it is known, which may be seconds before the last process ends. It closes FD when no
process is left. Its exit status is the engine's, a signal included.
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
# A vLLM that is ready ends 0.4 to 0.6 s after SIGTERM. While it starts it ignores the signal.
GRACE_S = 3.0
# The parent's death closes the socket at once, unless a process forked from the parent still holds
# the other end. In that case it is noticed after this time.
PARENT_CHECK_S = 1.0
KILL_S = 1.0  # from SIGKILL until the last process is gone, on a busy machine
CANNOT_START = 127  # the code of a shell
MARK_VARIABLE = "BITBENCH_INSTANCE"


def main(arguments: list[str]) -> None:
    """Run a command as the engine, below a guardian."""
    leash = int(arguments[0])
    parent = int(arguments[1])
    command = arguments[2:]
    _carry_mark(os.environ.pop(MARK_VARIABLE, ""))
    _start_guarded_engine(leash, parent)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(CANNOT_START)


def _carry_mark(mark: str) -> None:
    """Set the mark by which `engines.left_over` finds all descendants.

    Set nothing if a lower limit is already set.
    """
    if mark:
        with contextlib.suppress(ValueError, OSError):
            soft, hard = map(int, mark.split(":"))
            resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))


def _start_guarded_engine(leash: int, parent: int) -> None:
    """Fork the engine and return only in it. The guardian ends after the engine and its tree."""
    guardian = os.getpid()
    engine = os.fork()
    wakeups = _prepare_guardian()
    if engine == 0:
        _prepare_engine(guardian, leash, wakeups)
        return
    os.write(leash, f"{engine}\n".encode())
    status = _watch_engine(engine, leash, parent, wakeups)
    _report_end(leash, status)
    _end_like_engine(_end_all(engine, status))


def _prepare_engine(guardian: int, leash: int, wakeups: int) -> None:
    """Give the engine its own session and default signals, and let it die with the guardian."""
    os.setsid()
    _call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guardian:  # the guardian died before the line above
        os._exit(CANNOT_START)
    for descriptor in (leash, wakeups, signal.set_wakeup_fd(-1)):
        os.close(descriptor)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _watch_engine(engine: int, leash: int, parent: int, wakeups: int) -> int | None:
    """Wait until the engine ends, and return its wait status.

    Return None if the guardian must end the engine itself, because the parent is gone or because
    this process received a signal to end.
    """
    while True:
        readable, _, _ = select.select([leash, wakeups], [], [], PARENT_CHECK_S)
        if wakeups in readable and _is_told_to_end(wakeups):
            return None
        if (leash in readable and _is_leash_closed(leash)) or os.getppid() != parent:
            return None
        if (status := _wait_for_ended_children().get(engine)) is not None:
            return status


def _report_end(leash: int, status: int | None) -> None:
    """Report the engine's exit code, or SIGKILL if the guardian itself ends the engine.

    This comes before the rest of the tree is ended, which may take seconds.
    """
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(leash, f"{code}\n".encode())


def _prepare_guardian() -> int:
    """Adopt orphans from now on, and return the descriptor of `_make_wakeup_descriptor`."""
    _call_prctl(PR_SET_CHILD_SUBREAPER, 1)
    return _make_wakeup_descriptor()


def _call_prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _make_wakeup_descriptor() -> int:
    """Return a descriptor that becomes readable when a child ends or a signal asks for the end."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return read_end


def _is_told_to_end(wakeups: int) -> bool:
    """Return True if a signal other than SIGCHLD has arrived."""
    return any(number != signal.SIGCHLD for number in os.read(wakeups, 4096))


def _is_leash_closed(leash: int) -> bool:
    """Return True if bitbench has closed its end of the socket, or is gone."""
    try:
        return not os.read(leash, 1)
    except OSError:  # bitbench was gone before it had read all reports
        return True


def _wait_for_ended_children() -> dict[int, int]:
    """Return the wait statuses of the children that have ended, orphans included."""
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
    """Ask every process below to end, wait, then kill the rest. Return the engine's status."""
    deadline = time.monotonic() + GRACE_S
    signaled: set[int] = set()
    while True:
        status = _wait_for_ended_children().get(engine, status)
        alive = list_descendants(os.getpid())
        if not alive:
            return 0 if status is None else status
        if time.monotonic() > deadline:
            send_signal(alive, signal.SIGKILL)
        else:
            send_signal(alive - signaled, signal.SIGTERM)
            signaled |= alive
        time.sleep(0.02)


def send_signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def list_descendants(root: int) -> set[int]:
    """Return every process below `root`, whatever its session or group.

    A process that has ended but is not reaped does not count.
    """
    parents = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would double the start time
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                    state, parent = stat.read().rpartition(b")")[2].split()[:2]
            except OSError:  # gone in the meantime
                continue
            parents[int(name)] = (int(parent), state)
    below: set[int] = set()
    generation = {root}
    while generation:
        generation = {pid for pid, (parent, _) in parents.items() if parent in generation}
        below |= generation
    return {pid for pid in below if parents[pid][1] not in (b"Z", b"X")}


def _end_like_engine(status: int) -> None:
    """End this process in the same way as the engine ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        code = 128 - code  # as a shell reports a signal, if this process is still alive
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
