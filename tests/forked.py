"""A process of its own without the seconds that its imports take: a server that has imported bitbench once forks it.

It has its own folder, variables, streams and exit code, like one that a user starts. Where a test is about what happens
while a process begins, or about what it imports, it starts one.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory

_SERVER = get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.preloaded"])
_TICKS = os.sysconf("SC_CLK_TCK")


def bitbench_process(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 400
) -> subprocess.CompletedProcess[str]:
    """`bitbench ARGUMENTS`."""
    return forked(command, arguments, cwd=cwd, env=env, timeout_s=timeout_s)


def forked(
    work: Callable[..., object],
    given: Sequence[object],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 400,
) -> subprocess.CompletedProcess[str]:
    """What `work`, a function that can be imported, printed in a process of its own, and its exit code."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = start(work, given, cwd=cwd, env=env, streams={1: out, 2: err})
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(
                list(map(str, given)), timeout_s, out.read_bytes(), err.read_bytes()
            )
        return subprocess.CompletedProcess(
            given, process.exitcode, out.read_text(), err.read_text()
        )


def start(
    work: Callable[..., object],
    given: Sequence[object],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    streams: Mapping[int, Path],
) -> ForkServerProcess:
    """`streams`: by their numbers; those that are not named are the test's own."""
    process = _SERVER.Process(
        target=_work, args=(work, given, cwd, dict(os.environ if env is None else env), streams)
    )
    process.start()
    return process


def command(*arguments: str) -> None:
    from bitbench.cli import main

    sys.argv = ["bitbench", *arguments]
    main()


def _work(
    work: Callable[..., object],
    given: Sequence[object],
    cwd: Path,
    env: dict[str, str],
    streams: Mapping[int, Path],
) -> None:
    os.setsid()  # a terminal that it opens is its own
    for number, path in streams.items():
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    if 0 in streams:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    work(*given)


def processor_s() -> float:
    """What the server and those of its processes that have ended have used."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / _TICKS
