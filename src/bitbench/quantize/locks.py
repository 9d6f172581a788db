"""One maker per variant: an exclusive lock that the system itself releases when its holders are dead."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bitbench.util.safe_files import SafeFolder


@contextmanager
def hold(place: Path, name: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Waits for the lock of `name`; yields its descriptor, which a child process may inherit to hold it as well."""
    with _open(place, name) as lock:
        if not _take(lock):
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


@contextmanager
def try_hold(place: Path, name: str) -> Iterator[bool]:
    """True where no other process held it."""
    with _open(place, name) as lock:
        yield _take(lock)


def _open(place: Path, name: str) -> IO[bytes]:
    """Lock files stay: removing one while another process waits on it would give two holders."""
    return SafeFolder(place.parent).open_lock(f"{place.name}/.locks/{name}.lock")


def _take(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
