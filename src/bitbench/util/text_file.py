"""Text files that somebody named: regular ones up to a size, since a device or a pipe may never end."""

import os
import stat
from pathlib import Path

from bitbench.util.units import show_bytes

LARGEST_UNSIZED_BYTES = 2**20  # a file of /proc has no size before it was read


class UnreadableFileError(Exception):
    """What is wrong with a file, as the end of a sentence: "it is a folder"."""


def read_text_file(path: Path, *, largest_bytes: int) -> str:
    """The file as UTF-8 text, with or without a byte order mark. Raises UnreadableFileError, never waits for a pipe."""
    try:
        with open(path, encoding="utf-8-sig", opener=_without_waiting) as file:
            limit = _limit(os.fstat(file.fileno()), largest_bytes)
            text = file.read(limit + 1)
    except IsADirectoryError:
        raise UnreadableFileError("it is a folder") from None
    except OSError as problem:
        raise UnreadableFileError(f"{problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise UnreadableFileError(f"it is not UTF-8 text: {problem.reason}") from problem
    except ValueError as problem:  # a name that no file can have
        raise UnreadableFileError(str(problem)) from problem
    if len(text) > limit:
        raise UnreadableFileError(_too_large(limit))
    return text


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe would wait for somebody who writes. `Path.open` takes no opener."""
    return os.open(path, flags | os.O_NONBLOCK)


def _limit(state: os.stat_result, largest_bytes: int) -> int:
    """How much may be read: what it has, or a little where that is not known. Refuses what may not be read at all."""
    if stat.S_ISDIR(state.st_mode):
        raise UnreadableFileError("it is a folder")
    if not stat.S_ISREG(state.st_mode):
        raise UnreadableFileError("it is a device or a pipe, not a regular file")
    if state.st_size > largest_bytes:
        raise UnreadableFileError(f"{_too_large(largest_bytes)}, and it has {show_bytes(state.st_size)}")
    return min(largest_bytes, max(state.st_size, LARGEST_UNSIZED_BYTES))


def _too_large(largest_bytes: int) -> str:
    return f"it may have {show_bytes(largest_bytes)} at most"
