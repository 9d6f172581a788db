"""A copy of a study folder at a URL, so that another machine goes on where this one was lost.

A run fetches the copy before it begins, and copies what is new after each group. Lines of records are copied last:
whatever moment a kill chooses, the rows that a line names are there. Before each copy the lines there must be the
beginning of the lines here. What else is found there is another run's, and stays as it is.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from bitbench.ports import Observer
from bitbench.records.folder import StudyFolder
from bitbench.records.lock import LOCK_FORMAT, Lock
from bitbench.records.strict_reader import parse_record
from bitbench.util.errors import StoreError, UsageError
from bitbench.util.files import SafeFolder, open_to_read, read_bytes

COPIES_AT_ONCE = 8
LARGEST_LINES_BYTES = 2**30
REST = 10  # times as long as the last failure took, before the next attempt: a server that hangs costs no more
_DOCUMENTS = ("study.yaml", "lock.json", "roof.json")
# In the order in which they are copied: a block that has ended has all of its trials there.
_LINES = ("instances.jsonl", "quality.jsonl", "trials.jsonl", "blocks.jsonl")
_FOLDERS = ("logs", "requests", "quality", "profiles", "tables")
_ROWS = re.compile(rb'"((?:requests|quality)/[^"\\]+)"')  # as a line names them
_AWS_ERROR = re.compile(r"AWS Error [A-Z_0-9]+")
Known = dict[str, tuple[int, int]]  # size and time of each file here that is in the mirror as it is


class PlaceAtUrl:
    """A place that pyarrow's file systems reach. `shown` is its URL without what may be a key."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
        if "@" in parts.netloc:
            raise UsageError(
                f"{self.shown}: give keys in the environment (AWS_ACCESS_KEY_ID, …), not in the URL"
            )
        try:
            self.files, path = fs.FileSystem.from_uri(url)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UsageError(
                f"{self.shown} is no place that can be opened; write s3://BUCKET/PATH, gs://BUCKET/PATH or file:///PATH"
            ) from error
        self.path = path.rstrip("/")

    def list_files(self) -> dict[str, fs.FileInfo]:
        """Every file below, by its name from here."""
        below = fs.FileSelector(self.path, recursive=True, allow_not_found=True)
        found = self.files.get_file_info(below)
        return {
            info.path[len(self.path) + 1 :]: info for info in found if info.type is fs.FileType.File
        }

    def read(self, name: str) -> bytes:
        with self.files.open_input_file(f"{self.path}/{name}") as file:
            if file.size() > LARGEST_LINES_BYTES:
                raise StoreError(
                    f"{self.shown}/{name} has more than {LARGEST_LINES_BYTES // 2**20:,} MiB"
                )
            content: bytes = file.read()
        return content

    def fetch(self, names: Iterable[str], into: SafeFolder) -> None:
        def copy(name: str) -> None:
            with (
                self.files.open_input_stream(f"{self.path}/{name}") as source,
                into.replacing(name) as file,
            ):
                shutil.copyfileobj(source, file, 2**20)

        _each(copy, names)

    def put(self, name: str, file: Path) -> None:
        """Whole or not at all: a store shows an object once it is closed."""
        is_folder = isinstance(self.files, fs.LocalFileSystem)
        target = f"{self.path}/{name}"
        opened = (
            SafeFolder(Path(self.path)).replacing(name)
            if is_folder
            else self.files.open_output_stream(target)
        )
        with open_to_read(file) as source, opened as out:
            shutil.copyfileobj(source, out, 2**20)

    def say_unreachable(self, error: OSError) -> str:
        """A sentence without the server's own words, which may repeat what it was sent."""
        found = _AWS_ERROR.search(str(error))
        cause = (
            found[0] if found else os.strerror(error.errno) if error.errno else type(error).__name__
        )
        return f"{self.shown} cannot be reached ({cause})"


class Mirror:
    """`fetch` before the run, `begin` once it has its lock, `push` after each group and at the end."""

    def __init__(self, url: str, folder: StudyFolder, observer: Observer) -> None:
        self._place = PlaceAtUrl(url)
        self._folder = folder
        self._observer = observer
        self._known: Known = {}
        self._left: dict[str, tuple[int, int]] | None = (
            None  # lines in the mirror as this run left them
        )
        self._is_open = False
        self._is_failing = False
        self._not_before = 0.0

    def fetch(self) -> None:
        """Bring the folder to what the mirror has. Raises StoreError where one does not continue the other."""
        try:
            self._fetch()
        except OSError as error:
            raise StoreError(
                f"{self._place.say_unreachable(error)}; check the place and the keys"
            ) from error

    def _fetch(self) -> None:
        there = self._place.list_files()
        if "lock.json" not in there:
            if any(name in there for name in _LINES):
                raise StoreError(
                    f"{self._place.shown} has records but no lock.json; give another place"
                )
            return
        lock = self._place.read("lock.json")
        where = f"{self._place.shown}/lock.json"
        found = parse_record(lock, Lock, LOCK_FORMAT, where, "give another place")
        files = SafeFolder(self._folder.path)
        with (
            self._folder.writing()
        ):  # its orphans are dropped: no row stays that another run may number alike
            own = self._folder.lock()
            if own is not None and own.created_at != found.created_at:
                raise self._other_study()
            if own is None:
                self._refuse_other_file(there)
            elif self._compare_lines(there) >= 0:
                return
            files.write("lock.json", lock.decode())
        here = _here(self._folder.path)
        rows = self._rows_of_lines()
        same = {
            name
            for name in here
            if name in rows and name in there and here[name][0] == there[name].size
        }
        others = [
            name for name in there if _is_ours(name) and name not in _LINES and name not in same
        ]
        self._place.fetch(others, files)
        for name in _LINES:
            if name in there:
                self._place.fetch([name], files)

    def begin(self) -> None:
        """The first copy, with the lock of this run. Raises StoreError where the place cannot be written to."""
        try:
            self._push()
        except OSError as error:
            raise StoreError(
                f"{self._place.say_unreachable(error)}; check the place and the keys"
            ) from error
        self._is_open = True

    def push(self, *, is_last: bool = False) -> None:
        """Copy what is new. A place that fails is tried again later, and at the end in any case."""
        began = time.monotonic()
        if not self._is_open or (began < self._not_before and not is_last):
            return
        try:
            self._push()
        except OSError as error:
            self._rest(error, began, is_last=is_last)
        except StoreError as error:
            self._is_open = False
            self._observer.warn(f"{error}; nothing more is copied")
        else:
            if self._is_failing:
                self._observer.note(f"{self._place.shown} is reached again, and complete")
            self._is_failing = False

    def _rest(self, error: OSError, began: float, *, is_last: bool) -> None:
        later = (
            "the same command copies what is missing"
            if is_last
            else "the run goes on, and tries again"
        )
        if is_last or not self._is_failing:
            self._observer.warn(f"{self._place.say_unreachable(error)}: {later}")
        self._is_failing = True
        self._left = None
        now = time.monotonic()
        self._not_before = now + REST * (now - began)

    def _push(self) -> None:
        there = self._place.list_files() if self._left is None else self._lines_there()
        if self._left is None or self._left != _marks(there):
            if self._compare_lines(there) < 0:
                raise self._other_study()
            self._know(there)
        here = _here(self._folder.path)
        new = [name for name, state in here.items() if self._known.get(name) != state]
        order = [name for name in _DOCUMENTS if name in new]
        self._copy(order, here)
        self._copy([name for name in new if name not in _LINES and name not in order], here)
        for name in _LINES:
            if name in new:
                self._copy([name], here)
        self._left = _marks(self._lines_there())

    def _copy(self, names: Iterable[str], here: Known) -> None:
        def copy(name: str) -> None:
            self._place.put(name, self._folder.path / name)
            self._known[name] = here[name]

        _each(copy, names)

    def _lines_there(self) -> dict[str, fs.FileInfo]:
        paths = [f"{self._place.path}/{name}" for name in _LINES]
        found = zip(_LINES, self._place.files.get_file_info(paths), strict=True)
        return {name: info for name, info in found if info.type is fs.FileType.File}

    def _know(self, there: dict[str, fs.FileInfo]) -> None:
        """Which rows need no copy: those that a line in the mirror names. Others may be of a run that was killed."""
        names = _rows_in(self._place.read(name) for name in _LINES if name in there)
        here = _here(self._folder.path)
        self._known = {name: here[name] for name in names if name in here and name in there}
        self._known = {
            name: state for name, state in self._known.items() if state[0] == there[name].size
        }

    def _compare_lines(self, there: dict[str, fs.FileInfo]) -> int:
        """Below 0: the mirror has more. Raises StoreError where both have lines that the other lacks."""
        more_here = more_there = False
        for name in _LINES:
            mirrored = _whole_lines(self._place.read(name)) if name in there else b""
            own = _whole_lines(_content(self._folder.path / name))
            if not own.startswith(mirrored) and not mirrored.startswith(own):
                raise self._other_study()
            more_here |= len(own) > len(mirrored)
            more_there |= len(mirrored) > len(own)
        if more_here and more_there:
            raise self._other_study()
        return int(more_here) - int(more_there)

    def _refuse_other_file(self, there: dict[str, fs.FileInfo]) -> None:
        """A study.yaml where no run began is a person's own, unless it says the same."""
        own = self._folder.study_file
        if (
            own.exists()
            and "study.yaml" in there
            and read_bytes(own) != self._place.read("study.yaml")
        ):
            raise self._other_study()

    def _rows_of_lines(self) -> set[str]:
        return _rows_in(_content(self._folder.path / name) for name in _LINES)

    def _other_study(self) -> StoreError:
        return StoreError(
            f"{self._place.shown} has records of another run than {self._folder.path}; give another place, or another "
            "folder with --into"
        )


def _is_ours(name: str) -> bool:
    """Only what bitbench writes: a person's own files in the folder stay where they are."""
    top, is_below, _ = name.partition("/")
    if name.endswith(".partial"):
        return False
    return top in _FOLDERS if is_below else name in _DOCUMENTS or name in _LINES


def _here(folder: Path) -> Known:
    """Plain files that belong into a mirror, with size and time."""
    paths = [folder / name for name in (*_DOCUMENTS, *_LINES)]
    for below in _FOLDERS:
        paths += sorted((folder / below).rglob("*"))
    found: Known = {}
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if _is_ours(name) and path.is_file() and not path.is_symlink():
            state = path.stat()
            found[name] = (state.st_size, state.st_mtime_ns)
    return found


def _marks(there: dict[str, fs.FileInfo]) -> dict[str, tuple[int, int]]:
    return {name: (there[name].size, there[name].mtime_ns or 0) for name in _LINES if name in there}


def _rows_in(contents: Iterable[bytes]) -> set[str]:
    return {name.decode() for content in contents for name in _ROWS.findall(content)}


def _content(path: Path) -> bytes:
    return read_bytes(path) if path.exists() else b""


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _each(work: Callable[[str], None], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(COPIES_AT_ONCE) as workers:
        try:
            list(workers.map(work, names))
        except BaseException:
            workers.shutdown(
                wait=False, cancel_futures=True
            )  # each would wait as long as the one that failed
            raise
