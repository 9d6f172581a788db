"""Files of strangers: the only way to write into a folder that may be one's, and to read what is a plain file and no
larger than allowed.

The folder itself is where a person pointed, and may be a link of theirs. Below it no link is followed. What is replaced
is written to a fresh file beside it and renamed, so that no half of it is ever seen. What is not a plain file is
refused in a sentence, and so is a disk that is full or read-only.
"""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import IO

from bitbench.util.errors import StoreError
from bitbench.util.units import show_bytes

_PARTIAL_BYTES = 8
_PARTIAL = re.compile(rf"(.+)\.[0-9a-f]{{{2 * _PARTIAL_BYTES}}}\.partial")
_FILE, _FOLDER = "plain file", "folder"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


class SafeFolder:
    """A folder in which nothing is written through a link.

    Names are relative to `root`, such as "requests/t00001.parquet". Everything raises StoreError.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def around(cls, file: Path, study: Path | None = None) -> tuple["SafeFolder", str]:
        """Where a file is to be written that a person named, and its name there. One that lies in the folder of
        `study`, which a stranger may have filled, is contained by that one."""
        if study is not None and study.absolute() in file.absolute().parents:
            return cls(study), str(file.absolute().relative_to(study.absolute()))
        return cls(file.parent), file.name

    def make_folder(self, name: str = "") -> Path:
        """Make it and all above it, where they are missing."""
        folder = self._below(name, _FOLDER)
        with _plainly(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write(self, name: str, text: str, mode: int = 0o666) -> Path:
        with self.replacing(name, mode) as file:
            file.write(text.encode())
        return self.root / name

    @contextmanager
    def replacing(self, name: str, mode: int = 0o666) -> Iterator[IO[bytes]]:
        """Yield a file to write to, which takes the name's place once all of it is on disk. `mode`: without the
        umask."""
        path = self._file(name)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(_PARTIAL_BYTES)}.partial")
        with _plainly(path):
            try:
                with os.fdopen(
                    os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb"
                ) as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise

    def move_in(self, file: Path, name: str) -> None:
        """Give a finished file this name; copies it from another file system."""
        path = self._file(name)
        with _plainly(path), file.open("rb") as content:
            os.fsync(content.fileno())
            try:
                file.replace(path)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with self.replacing(name) as copy:
                    shutil.copyfileobj(content, copy)
                file.unlink()

    def create(self, name: str) -> Path:
        """Make a new, empty file; refused where the name is taken, by whatever it is."""
        path = self._file(name)
        with _plainly(path):
            path.touch(exist_ok=False)
        return path

    def open_to_append(self, name: str) -> IO[bytes]:
        path = self._file(name)
        with _plainly(path):
            return path.open("ab")

    def append(self, name: str, content: bytes) -> None:
        """Append to the file; what is written is on disk when this returns."""
        with self.open_to_append(name) as file, _plainly(self.root / name):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def truncate(self, name: str, size: int) -> None:
        path = self._file(name)
        with _plainly(path):
            os.truncate(path, size)

    def remove_matching(
        self, folder: str, ours: re.Pattern[str], keep: frozenset[str] = frozenset()
    ) -> None:
        """Delete the plain files in `folder` whose whole name fits `ours`, and what a kill left half-written of them;
        not those in `keep`. What is no plain file stays."""
        place = self._below(folder, _FOLDER)
        with _plainly(place), suppress(FileNotFoundError):
            for path in list(place.iterdir()):
                whole = partial[1] if (partial := _PARTIAL.fullmatch(path.name)) else path.name
                is_ours = path.name not in keep and ours.fullmatch(whole)
                if is_ours and path.is_file() and not path.is_symlink():
                    path.unlink()

    def remove_folder(self, name: str) -> None:
        """Delete it with all in it, where it exists; links in it are removed, not followed."""
        place = self._below(name, _FOLDER)
        with _plainly(place), suppress(FileNotFoundError):
            shutil.rmtree(place)

    def _file(self, name: str) -> Path:
        """Return the path of a file that may be written, in a folder that exists."""
        path = self._below(name, _FILE)
        with _plainly(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _below(self, name: str, wanted: str) -> Path:
        """Return the path of a name; refuse one that leads out, and a link or another kind of file on the way."""
        parts = PurePath(name).parts
        if name.startswith("/") or ".." in parts or "\0" in name or (wanted == _FILE and not parts):
            raise StoreError(
                f"{name!r} is not a file name; bitbench writes nothing outside {self.root}"
            )
        path = self.root
        with _plainly(path / name):
            for number, part in enumerate(parts, start=1):
                path /= part
                kind = wanted if number == len(parts) else _FOLDER
                if path.is_symlink() or (
                    path.exists() and not (path.is_file() if kind == _FILE else path.is_dir())
                ):
                    raise _refusal(path, kind)
        return path


def open_to_read(path: Path) -> IO[bytes]:
    """Open a plain file, through links if need be; a pipe or a device, which may never end, is refused."""
    if path.exists() and not path.is_file():
        raise _refusal(path, _FILE)
    return path.open("rb")


def read_bytes(path: Path) -> bytes:
    with open_to_read(path) as file:
        return file.read()


def _refusal(path: Path, wanted: str) -> StoreError:
    kinds = {"a link": path.is_symlink(), "a folder": path.is_dir(), "a file": path.is_file()}
    kind = next((words for words, is_it in kinds.items() if is_it), "a pipe or a device")
    return StoreError(f"{path} is {kind} instead of a {wanted}; remove it, or use another folder")


@contextmanager
def _plainly(path: Path) -> Iterator[None]:
    """Tell what the system says as a sentence with what to do."""
    try:
        yield
    except OSError as error:
        said = f"{path} cannot be written: {error.strerror or error}"
        if error.errno in _FULL:
            raise StoreError(f"{said}; free some space and repeat the command") from error
        if error.errno in _FORBIDDEN:
            raise StoreError(f"{said}; make the folder writable, or use another one") from error
        raise StoreError(f"{said}; use another folder") from error


LARGEST_UNSIZED_BYTES = 2**20  # a file of /proc has no size before it was read


class UnreadableFileError(Exception):
    """What is wrong with a file, as the end of a sentence: "it is a folder"."""


def read_text_file(path: Path, *, largest_bytes: int) -> str:
    """Return the file as UTF-8 text, with or without a byte order mark. Raises UnreadableFileError, never waits for a
    pipe."""
    most = f"it may have {show_bytes(largest_bytes)} at most"
    try:
        state = path.stat()
        if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
            raise UnreadableFileError("it is a device or a pipe, not a regular file")
        if state.st_size > largest_bytes:
            raise UnreadableFileError(f"{most}, and it has {show_bytes(state.st_size)}")
        with path.open(encoding="utf-8-sig") as file:
            limit = min(largest_bytes, max(state.st_size, LARGEST_UNSIZED_BYTES))
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
        raise UnreadableFileError(most)
    return text
