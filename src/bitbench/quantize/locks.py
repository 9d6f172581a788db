"""One maker per variant: an exclusive lock that the system itself releases when its holders are dead."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hold(place: Path, name: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Waits for the lock of `name`; yields its descriptor, which a child process may inherit to hold it as well."""
    fd = _open(place, name)
    try:
        if not _take(fd):
            on_wait()
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def try_hold(place: Path, name: str) -> Iterator[bool]:
    """True where no other process held it."""
    fd = _open(place, name)
    try:
        yield _take(fd)
    finally:
        os.close(fd)


def _open(place: Path, name: str) -> int:
    """Lock files stay: removing one while another process waits on it would give two holders."""
    folder = place / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _take(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
