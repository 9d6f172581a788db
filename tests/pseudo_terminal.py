"""The command line on a pseudo-terminal: what it writes there byte by byte, and answers to its questions."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
    with subprocess.Popen(
        [sys.executable, "-m", "bitbench", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd,
        env=variables, start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        try:
            output = _read(ours, time.monotonic() + limit_s, answer, question)
            process.wait(timeout=limit_s)
        finally:
            process.kill()
            os.close(ours)
    return Shown(process.returncode, output)


def _read(terminal: int, end: float, answer: bytes, question: bytes) -> bytes:
    output = b""
    while (left := end - time.monotonic()) > 0:
        if not select.select([terminal], [], [], left)[0]:
            break
        try:
            output += os.read(terminal, 65536)
        except OSError:  # the last one who had it open has gone
            return output
        if answer and question in output:
            os.write(terminal, answer)
            answer = b""
    raise AssertionError(f"it did not end in time; it showed {output[-2000:]!r}")
