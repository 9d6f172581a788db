"""Files of strangers: the only way to write into a folder that may be one's, and to read what is a plain file and no
larger than allowed.

The folder itself is where a person pointed, and may be a link of theirs. Below it no link is followed: each part of a
path is opened relative to the descriptor of the one before it. What is replaced is written to a fresh file beside it
and renamed, so that no other name of the old file changes and no half of it is ever seen. What is not a plain file of
one name is refused in a sentence, and so is a disk that is full or read-only.
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

_FILE_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # without the last one, opening a pipe waits for its reader
_FOLDER_FLAGS = os.O_CLOEXEC | os.O_DIRECTORY
_PARTIAL_BYTES = 8
_PARTIAL = re.compile(rf"(.+)\.[0-9a-f]{{{2 * _PARTIAL_BYTES}}}\.partial")
_KINDS = {
    stat.S_ISLNK: "a link",
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


class SafeFolder:
    """Names are relative to `root`, such as "requests/t00001.parquet". Everything raises StoreError."""

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
        """It and all above it, where they are missing."""
        with _plainly(self.root / name), self._folder(PurePath(name).parts, create=True):
            return self.root / name

    def write(self, name: str, text: str, mode: int = 0o666) -> Path:
        with self.replacing(name, mode) as file:
            file.write(text.encode())
        return self.root / name

    @contextmanager
    def replacing(self, name: str, mode: int = 0o666) -> Iterator[IO[bytes]]:
        """A file to write to, which takes the name's place once all of it is on disk. `mode`: without the umask."""
        with _plainly(self.root / name), self._parent(name, create=True) as (folder, last):
            _refuse_unusual(folder, last, self.root / name)
            partial = f"{last}.{secrets.token_hex(_PARTIAL_BYTES)}.partial"
            fd = os.open(partial, _FILE_FLAGS | os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
            try:
                with os.fdopen(fd, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(partial, last, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(partial, dir_fd=folder)
                raise

    def move_in(self, file: Path, name: str) -> None:
        """Give a finished file this name; copies it from another file system."""
        with _plainly(self.root / name), self._parent(name, create=True) as (folder, last):
            _refuse_unusual(folder, last, self.root / name)
            with file.open("rb") as content:
                os.fsync(content.fileno())
                try:
                    os.replace(file, last, dst_dir_fd=folder)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    with self.replacing(name) as copy:
                        shutil.copyfileobj(content, copy)
                    file.unlink()

    def create(self, name: str) -> Path:
        """A new, empty file; refused where the name is taken, by whatever it is."""
        with _plainly(self.root / name), self._open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "wb"):
            return self.root / name

    def open_to_append(self, name: str) -> IO[bytes]:
        with _plainly(self.root / name):
            return self._open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab")

    def append(self, name: str, content: bytes) -> None:
        """On disk when this returns."""
        with self.open_to_append(name) as file, _plainly(self.root / name):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def truncate(self, name: str, size: int) -> None:
        with _plainly(self.root / name), self._open(name, os.O_RDWR, "r+b") as file:
            file.truncate(size)

    def open_lock(self, name: str) -> IO[bytes]:
        """A file that exists to be locked; nothing is written to it."""
        with _plainly(self.root / name):
            return self._open(name, os.O_RDWR | os.O_CREAT, "r+b")

    def remove_matching(self, folder: str, ours: re.Pattern[str], keep: frozenset[str] = frozenset()) -> None:
        """Delete the plain files in `folder` whose whole name fits `ours`, and what a kill left half-written of them;
        not those in `keep`. What is no plain file stays."""
        with (
            _plainly(self.root / folder),
            suppress(FileNotFoundError),
            self._folder(PurePath(folder).parts, create=False) as fd,
        ):
            for entry in os.scandir(fd):
                whole = partial[1] if (partial := _PARTIAL.fullmatch(entry.name)) else entry.name
                if entry.name not in keep and ours.fullmatch(whole) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=fd)

    def remove_folder(self, name: str) -> None:
        """With all in it, where it exists; links in it are removed, not followed."""
        with (
            _plainly(self.root / name),
            suppress(FileNotFoundError),
            self._parent(name, create=False) as (folder, last),
        ):
            if not stat.S_ISDIR((state := _state(folder, last)).st_mode):
                raise _refusal(self.root / name, state, "folder")
            shutil.rmtree(last, dir_fd=folder)

    def _open(self, name: str, flags: int, mode: str) -> IO[bytes]:
        path = self.root / name
        with self._parent(name, create=bool(flags & os.O_CREAT)) as (folder, last):
            _refuse_unusual(folder, last, path)
            fd = os.open(last, _FILE_FLAGS | flags, 0o666, dir_fd=folder)
        file: IO[bytes] = os.fdopen(fd, mode)
        try:
            _check_plain(path, os.fstat(fd))  # again, of what was opened
            os.set_blocking(fd, True)
        except BaseException:
            file.close()
            raise
        return file

    @contextmanager
    def _parent(self, name: str, *, create: bool) -> Iterator[tuple[int, str]]:
        *folders, last = PurePath(name).parts or ("",)
        with self._folder(tuple(folders), create=create) as folder:
            _refuse_escape(self.root, last)
            yield folder, last

    @contextmanager
    def _folder(self, parts: tuple[str, ...], *, create: bool) -> Iterator[int]:
        if create:
            self.root.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.root, _FOLDER_FLAGS)
        try:
            path = self.root
            for part in parts:
                _refuse_escape(path, part)
                path /= part
                below = _open_folder(fd, part, path, create=create)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)


def open_to_read(path: Path) -> IO[bytes]:
    """A plain file, through links if need be; a pipe or a device, which may never end, is refused."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG((state := os.fstat(fd)).st_mode):
        os.close(fd)
        raise _refusal(path, state, "plain file")
    return os.fdopen(fd, "rb")


def read_bytes(path: Path) -> bytes:
    with open_to_read(path) as file:
        return file.read()


def _open_folder(above: int, name: str, path: Path, *, create: bool) -> int:
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
    if not stat.S_ISDIR((state := _state(above, name)).st_mode):
        raise _refusal(path, state, "folder")
    return os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=above)


def _refuse_escape(folder: Path, name: str) -> None:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise StoreError(f"{name!r} is not a file name; bitbench writes nothing outside {folder}")


def _refuse_unusual(folder: int, name: str, path: Path) -> None:
    with suppress(FileNotFoundError):
        _check_plain(path, _state(folder, name))


def _check_plain(path: Path, state: os.stat_result) -> None:
    """Of one name: what is written to a file with two changes both."""
    if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
        raise _refusal(path, state, "plain file")


def _refusal(path: Path, state: os.stat_result, wanted: str) -> StoreError:
    usual = "a hard link" if state.st_nlink > 1 else "a file"
    kind = next((words for is_kind, words in _KINDS.items() if is_kind(state.st_mode)), usual)
    return StoreError(f"{path} is {kind} instead of a {wanted}; remove it, or use another folder")


def _state(folder: int, name: str) -> os.stat_result:
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


@contextmanager
def _plainly(path: Path) -> Iterator[None]:
    """What the system says, as a sentence with what to do."""
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
    if not stat.S_ISREG(state.st_mode):
        raise UnreadableFileError("it is a device or a pipe, not a regular file")
    if state.st_size > largest_bytes:
        raise UnreadableFileError(f"{_too_large(largest_bytes)}, and it has {show_bytes(state.st_size)}")
    return min(largest_bytes, max(state.st_size, LARGEST_UNSIZED_BYTES))


def _too_large(largest_bytes: int) -> str:
    return f"it may have {show_bytes(largest_bytes)} at most"
