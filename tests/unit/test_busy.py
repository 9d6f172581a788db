"""Other people's work is told from our own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bitbench.measure.machine.host import cores_in_use

pytestmark = pytest.mark.alone

SPIN = "while True: pass"
# Starts it, says its number and ends: nobody's child any more.
ORPHAN = (
    f"import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', {SPIN!r}], stdout=subprocess.DEVNULL).pid)"
)


@contextmanager
def our_child() -> Iterator[None]:
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        yield
    finally:
        child.kill()
        child.wait()


@contextmanager
def a_stranger() -> Iterator[None]:
    number = int(subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, check=True).stdout)
    try:
        yield
    finally:
        os.kill(number, signal.SIGKILL)


def test_what_we_started_is_not_other_work() -> None:
    with our_child():
        ours = cores_in_use(2.0)
    with a_stranger():
        theirs = cores_in_use(2.0)
    assert theirs > max(0.5, ours + 0.3)
