"""The command line on a pseudo-terminal: what it writes there byte by byte, and answers to its questions."""

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.forked import command, start

COLUMNS = 240


@dataclass(frozen=True)
class Shown:
    exit_code: int
    output: bytes


def on_terminal(
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    answer: bytes = b"",
    question: bytes = b"[y/N]",
    limit_s: float = 120.0,
) -> Shown:
    """`bitbench ARGUMENTS` with a terminal as its standard input, output and error; `answer` is typed once at the
    `question`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    variables = {**os.environ, "TERM": "xterm-256color", **(env or {})}
    for name in ("COLUMNS", "NO_COLOR"):
        variables.pop(name, None)
    streams = dict.fromkeys((0, 1, 2), Path(os.ttyname(theirs)))
    process = start(command, arguments, cwd=cwd, env=variables, streams=streams)
    output, end = b"", time.monotonic() + limit_s
    try:
        while process.is_alive() or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < end, f"it did not end in time; it showed {output[-2000:]!r}"
            if (
                select.select([ours, process.sentinel], [], [], 1)[0]
                and select.select([ours], [], [], 0)[0]
            ):
                output += os.read(ours, 65536)
            if answer and question in output:
                os.write(ours, answer)
                answer = b""
    finally:
        process.kill()
        process.join()
        os.close(ours)
        os.close(theirs)
    assert process.exitcode is not None
    return Shown(process.exitcode, output)
