"""Other people's work is told from our own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from bitbench.machine.host import OtherWork, measure_busy_cores
from bitbench.records.trial import Outcome

pytestmark = pytest.mark.alone

SPIN = "while True: pass"
# Starts it, says its number and ends: nobody's child any more.
ORPHAN = f"import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', {SPIN!r}], stdout=subprocess.DEVNULL).pid)"


@contextmanager
def our_child() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


@contextmanager
def a_stranger() -> Iterator[None]:
    number = int(
        subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, check=True).stdout
    )
    try:
        yield
    finally:
        os.kill(number, signal.SIGKILL)


def test_what_we_started_is_not_other_work() -> None:
    with our_child():
        ours = measure_busy_cores(2.0)
    with a_stranger():
        theirs = measure_busy_cores(2.0)
    assert theirs > max(0.5, ours + 0.3)


def test_an_engine_beside_other_work_was_not_measured() -> None:
    with our_child() as child, OtherWork(child.pid) as beside_us:
        time.sleep(1.0)
    with ExitStack() as strangers:
        for _ in os.sched_getaffinity(0):
            strangers.enter_context(a_stranger())
        with OtherWork() as beside_others:
            time.sleep(1.0)
    assert beside_us.failure is None
    assert beside_others.failure is not None
    assert beside_others.failure.outcome is Outcome.DISTURBED
    assert f"of {len(os.sched_getaffinity(0))} cores busy" in beside_others.failure.cause
