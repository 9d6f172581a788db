"""Safe access to files of strangers: reading plain files of limited size, and the only way to
write into a folder that a stranger may have filled.

The folder itself is the user's choice and may be a link. Below it no link is followed. A file is
replaced by writing a new one next to it and renaming it, so that it is never incomplete. A file
that is not plain is refused with a sentence, and so is a full or read-only disk.
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
_FILE = "plain file"
_FOLDER = "folder"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


class SafeFolder:
    """A folder in which nothing is written through a link.

    Names are relative to `root`, such as "requests/t00001.parquet". All methods raise StoreError.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def around(cls, file: Path, study: Path | None = None) -> tuple["SafeFolder", str]:
        """Return the folder to write a file in, and its name there.

        It is the folder of `study`, which a stranger may have filled, if the file is inside it.
        """
        if study is not None and study.absolute() in file.absolute().parents:
            return cls(study), str(file.absolute().relative_to(study.absolute()))
        return cls(file.parent), file.name

    def make_folder(self, name: str = "") -> Path:
        """Create a folder with its parents, if missing."""
        folder = self._resolve_name(name, _FOLDER)
        with _explain_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write(self, name: str, text: str, mode: int = 0o666) -> Path:
        with self.open_replacement(name, mode) as file:
            file.write(text.encode())
        return self.root / name

    @contextmanager
    def open_replacement(self, name: str, mode: int = 0o666) -> Iterator[IO[bytes]]:
        """Yield a file that replaces `name` once it is on disk. The umask applies to `mode`."""
        path = self._file(name)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(_PARTIAL_BYTES)}.partial")
        with _explain_errors(path):
            try:
                descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                with os.fdopen(descriptor, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise

    def move_in(self, file: Path, name: str) -> None:
        """Move a finished file here. Copy it if it comes from another file system."""
        path = self._file(name)
        with _explain_errors(path), file.open("rb") as content:
            os.fsync(content.fileno())
            try:
                file.replace(path)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with self.open_replacement(name) as copy:
                    shutil.copyfileobj(content, copy)
                file.unlink()

    def create(self, name: str) -> Path:
        """Create an empty file. Raise StoreError if the name is taken."""
        path = self._file(name)
        with _explain_errors(path):
            path.touch(exist_ok=False)
        return path

    def open_to_append(self, name: str) -> IO[bytes]:
        path = self._file(name)
        with _explain_errors(path):
            return path.open("ab")

    def append(self, name: str, content: bytes) -> None:
        """Append to a file. The content is on disk when this returns."""
        with self.open_to_append(name) as file, _explain_errors(self.root / name):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def truncate(self, name: str, size: int) -> None:
        path = self._file(name)
        with _explain_errors(path):
            os.truncate(path, size)

    def remove_matching(
        self, folder: str, ours: re.Pattern[str], keep: frozenset[str] = frozenset()
    ) -> None:
        """Delete the plain files in `folder` whose whole name fits `ours`, except those in `keep`.

        Also delete incomplete versions of such files, left by a killed process.
        """
        path = self._resolve_name(folder, _FOLDER)
        with _explain_errors(path), suppress(FileNotFoundError):
            for file in list(path.iterdir()):
                name = file.name
                if partial := _PARTIAL.fullmatch(name):
                    name = partial[1]
                is_ours = file.name not in keep and ours.fullmatch(name)
                if is_ours and file.is_file() and not file.is_symlink():
                    file.unlink()

    def remove_folder(self, name: str) -> None:
        """Delete a folder with its content, if it exists. Links in it are removed, not followed."""
        path = self._resolve_name(name, _FOLDER)
        with _explain_errors(path), suppress(FileNotFoundError):
            shutil.rmtree(path)

    def _file(self, name: str) -> Path:
        """Return the path of a file that may be written. Its folder is created if missing."""
        path = self._resolve_name(name, _FILE)
        with _explain_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _resolve_name(self, name: str, kind: str) -> Path:
        """Return the path of a name.

        Raise StoreError if it leads out of the folder, through a link, or to another kind of file.
        """
        parts = PurePath(name).parts
        if name.startswith("/") or ".." in parts or "\0" in name or (kind == _FILE and not parts):
            raise StoreError(
                f"{name!r} is not a file name; bitbench writes nothing outside {self.root}"
            )
        path = self.root
        kinds = [_FOLDER] * (len(parts) - 1) + [kind]
        with _explain_errors(path / name):
            for part, part_kind in zip(parts, kinds, strict=False):
                path /= part
                if path.is_symlink() or (path.exists() and not _is_kind(path, part_kind)):
                    raise _make_refusal(path, part_kind)
        return path


def _is_kind(path: Path, kind: str) -> bool:
    if kind == _FILE:
        return path.is_file()
    return path.is_dir()


def open_to_read(path: Path) -> IO[bytes]:
    """Open a plain file, even through links. Raise StoreError for a pipe or a device."""
    if path.exists() and not path.is_file():
        raise _make_refusal(path, _FILE)
    return path.open("rb")


def read_bytes(path: Path) -> bytes:
    with open_to_read(path) as file:
        return file.read()


def _make_refusal(path: Path, expected: str) -> StoreError:
    if path.is_symlink():
        kind = "a link"
    elif path.is_dir():
        kind = "a folder"
    elif path.is_file():
        kind = "a file"
    else:
        kind = "a pipe or a device"
    return StoreError(f"{path} is {kind} instead of a {expected}; remove it, or use another folder")


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that explains what to do."""
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        if error.errno in _FULL:
            raise StoreError(f"{message}; free some space and repeat the command") from error
        if error.errno in _FORBIDDEN:
            raise StoreError(f"{message}; make the folder writable, or use another one") from error
        raise StoreError(f"{message}; use another folder") from error


LARGEST_UNSIZED_BYTES = 2**20  # for files such as those of /proc, whose size is unknown


class UnreadableFileError(Exception):
    """A problem with a file, as the end of a sentence: "it is a folder"."""


def read_text_file(path: Path, *, largest_bytes: int) -> str:
    """Read a file as UTF-8 text, with or without a byte order mark.

    Raise UnreadableFileError if it is too large, not a regular file, or not text. It never waits
    for a pipe.
    """
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
