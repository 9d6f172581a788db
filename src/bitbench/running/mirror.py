"""A copy of a study folder at a URL, so that another machine can continue when this one is lost.

A run fetches the copy before it begins, and uploads new files after each group. It uploads the
lines of records last: whenever the run is killed, the rows that a line names are already there.
Before each upload, the lines there must be the beginning of the lines here. Any other lines belong
to another run and stay as they are.
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
# Pause before the next attempt, as a multiple of how long the failed one took. It bounds the share
# of time that a server which hangs can cost.
REST = 10
_DOCUMENTS = ("study.yaml", "lock.json", "roof.json")
# In the order in which they are copied: a block that has ended there has all of its trials.
_LINES = ("instances.jsonl", "quality.jsonl", "trials.jsonl", "blocks.jsonl")
_FOLDERS = ("logs", "requests", "quality", "profiles", "tables")
_ROWS = re.compile(rb'"((?:requests|quality)/[^"\\]+)"')  # names in lines
_AWS_ERROR = re.compile(r"AWS Error [A-Z_0-9]+")
# Size and modification time of each file here.
FileStates = dict[str, tuple[int, int]]


class PlaceAtUrl:
    """A folder that pyarrow's file systems can open. `safe_url` is its URL without credentials."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.safe_url = f"{parts.scheme}://{host}{parts.path}".rstrip("/")
        if "@" in parts.netloc:
            raise UsageError(
                f"{self.safe_url}: give keys in the environment (AWS_ACCESS_KEY_ID, …), "
                "not in the URL"
            )
        try:
            self.files, path = fs.FileSystem.from_uri(url)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UsageError(
                f"{self.safe_url} is no place that can be opened; "
                "write s3://BUCKET/PATH, gs://BUCKET/PATH or file:///PATH"
            ) from error
        self.path = path.rstrip("/")

    def list_files(self) -> dict[str, fs.FileInfo]:
        """Return every file in the folder and below, by its relative name."""
        selector = fs.FileSelector(self.path, recursive=True, allow_not_found=True)
        files: dict[str, fs.FileInfo] = {}
        for info in self.files.get_file_info(selector):
            if info.type is fs.FileType.File:
                files[info.path[len(self.path) + 1 :]] = info
        return files

    def read(self, name: str) -> bytes:
        """Return the content of a file of at most LARGEST_LINES_BYTES, or raise StoreError."""
        with self.files.open_input_file(f"{self.path}/{name}") as file:
            if file.size() > LARGEST_LINES_BYTES:
                raise StoreError(
                    f"{self.safe_url}/{name} has more than {LARGEST_LINES_BYTES // 2**20:,} MiB"
                )
            content: bytes = file.read()
        return content

    def fetch(self, names: Iterable[str], into: SafeFolder) -> None:
        """Download these files."""

        def copy(name: str) -> None:
            with (
                self.files.open_input_stream(f"{self.path}/{name}") as source,
                into.open_replacement(name) as file,
            ):
                shutil.copyfileobj(source, file, 2**20)

        _run_for_each(copy, names)

    def put(self, name: str, file: Path) -> None:
        """Upload a file, whole or not at all: a store shows an object once it is closed."""
        if isinstance(self.files, fs.LocalFileSystem):
            target = SafeFolder(Path(self.path)).open_replacement(name)
        else:
            target = self.files.open_output_stream(f"{self.path}/{name}")
        with open_to_read(file) as source, target as out:
            shutil.copyfileobj(source, out, 2**20)

    def describe_unreachable(self, error: OSError) -> str:
        """Return a sentence without the server's words, which may repeat what it was sent."""
        aws_error = _AWS_ERROR.search(str(error))
        if aws_error is not None:
            cause = aws_error[0]
        elif error.errno:
            cause = os.strerror(error.errno)
        else:
            cause = type(error).__name__
        return f"{self.safe_url} cannot be reached ({cause})"


class Mirror:
    """A mirror of a study folder.

    Call `fetch` before the run, `begin` once the run has its lock, and `push` after each group and
    at the end.
    """

    def __init__(self, url: str, folder: StudyFolder, observer: Observer) -> None:
        self._place = PlaceAtUrl(url)
        self._folder = folder
        self._observer = observer
        self._mirrored: FileStates = {}  # the files here that the mirror has as they are
        # The lines in the mirror as this run left them. None means that they must be read again.
        self._left: FileStates | None = None
        self._is_open = False
        self._is_failing = False
        self._not_before = 0.0

    def fetch(self) -> None:
        """Download what the mirror has and the folder lacks.

        Raise StoreError if neither continues the other, or if the mirror cannot be reached.
        """
        try:
            self._fetch()
        except OSError as error:
            raise self._make_unreachable_error(error) from error

    def _fetch(self) -> None:
        remote = self._place.list_files()
        if "lock.json" not in remote:
            if any(name in remote for name in _LINES):
                raise StoreError(
                    f"{self._place.safe_url} has records but no lock.json; give another place"
                )
            return
        content = self._place.read("lock.json")
        name_in_messages = f"{self._place.safe_url}/lock.json"
        lock = parse_record(content, Lock, LOCK_FORMAT, name_in_messages, "give another place")
        files = SafeFolder(self._folder.path)
        # Opening the writer removes orphans: otherwise another run may give a row the same number.
        with self._folder.open_writer():
            local_lock = self._folder.lock()
            if local_lock is not None and local_lock.created_at != lock.created_at:
                raise self._make_other_study_error()
            if local_lock is None:
                self._refuse_other_file(remote)
            elif self._compare_lines(remote) >= 0:
                return
            files.write("lock.json", content.decode())
        self._place.fetch(self._list_missing(remote), files)
        for name in _LINES:
            if name in remote:
                self._place.fetch([name], files)

    def _list_missing(self, remote: dict[str, fs.FileInfo]) -> list[str]:
        """Return the files in the mirror to download, without the lines of records.

        Rows that a line names are the same if their size is.
        """
        local = _list_local_files(self._folder.path)
        rows = self._collect_row_names()
        missing: list[str] = []
        for name, info in remote.items():
            is_same = name in local and name in rows and local[name][0] == info.size
            if _is_ours(name) and name not in _LINES and not is_same:
                missing.append(name)
        return missing

    def begin(self) -> None:
        """Make the first copy, with the lock of this run. Raise StoreError if that fails."""
        try:
            self._push()
        except OSError as error:
            raise self._make_unreachable_error(error) from error
        self._is_open = True

    def _make_unreachable_error(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self._place.describe_unreachable(error)}; check the place and the keys"
        )

    def push(self, *, is_last: bool = False) -> None:
        """Upload what is new. Retry a failed upload later, and at the end in any case."""
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
                self._observer.note(f"{self._place.safe_url} is reached again, and complete")
            self._is_failing = False

    def _rest(self, error: OSError, began: float, *, is_last: bool) -> None:
        if is_last or not self._is_failing:
            advice = "the run goes on, and tries again"
            if is_last:
                advice = "the same command copies what is missing"
            self._observer.warn(f"{self._place.describe_unreachable(error)}: {advice}")
        self._is_failing = True
        self._left = None
        now = time.monotonic()
        self._not_before = now + REST * (now - began)

    def _push(self) -> None:
        remote = self._place.list_files() if self._left is None else self._list_remote_lines()
        if self._left is None or self._left != _get_line_states(remote):
            if self._compare_lines(remote) < 0:
                raise self._make_other_study_error()
            self._update_mirrored(remote)
        local = _list_local_files(self._folder.path)
        new = [name for name, state in local.items() if self._mirrored.get(name) != state]
        documents = [name for name in _DOCUMENTS if name in new]
        self._copy(documents, local)
        self._copy([name for name in new if name not in _LINES and name not in documents], local)
        for name in _LINES:
            if name in new:
                self._copy([name], local)
        self._left = _get_line_states(self._list_remote_lines())

    def _copy(self, names: Iterable[str], local: FileStates) -> None:
        def copy(name: str) -> None:
            self._place.put(name, self._folder.path / name)
            self._mirrored[name] = local[name]

        _run_for_each(copy, names)

    def _list_remote_lines(self) -> dict[str, fs.FileInfo]:
        """Return the files of record lines that the mirror has."""
        paths = [f"{self._place.path}/{name}" for name in _LINES]
        infos = zip(_LINES, self._place.files.get_file_info(paths), strict=True)
        return {name: info for name, info in infos if info.type is fs.FileType.File}

    def _update_mirrored(self, remote: dict[str, fs.FileInfo]) -> None:
        """Find out which rows need no copy, because a line in the mirror names them.

        Other rows there may be from a run that was killed.
        """
        rows = _parse_row_names(self._place.read(name) for name in _LINES if name in remote)
        local = _list_local_files(self._folder.path)
        self._mirrored = {}
        for name in rows:
            if name in local and name in remote and local[name][0] == remote[name].size:
                self._mirrored[name] = local[name]

    def _compare_lines(self, remote: dict[str, fs.FileInfo]) -> int:
        """Return 1 if the folder has more lines, -1 if the mirror has, or 0 if both are equal.

        Raise StoreError if each has lines that the other lacks.
        """
        more_here = False
        more_there = False
        for name in _LINES:
            mirrored = _trim_torn_line(self._place.read(name)) if name in remote else b""
            local = _trim_torn_line(_read_content(self._folder.path / name))
            if not local.startswith(mirrored) and not mirrored.startswith(local):
                raise self._make_other_study_error()
            more_here |= len(local) > len(mirrored)
            more_there |= len(mirrored) > len(local)
        if more_here and more_there:
            raise self._make_other_study_error()
        return int(more_here) - int(more_there)

    def _refuse_other_file(self, remote: dict[str, fs.FileInfo]) -> None:
        """Raise StoreError for a study.yaml without a run that differs from the mirror's.

        It belongs to the user.
        """
        file = self._folder.study_file
        if not file.exists() or "study.yaml" not in remote:
            return
        if read_bytes(file) != self._place.read("study.yaml"):
            raise self._make_other_study_error()

    def _collect_row_names(self) -> set[str]:
        return _parse_row_names(_read_content(self._folder.path / name) for name in _LINES)

    def _make_other_study_error(self) -> StoreError:
        return StoreError(
            f"{self._place.safe_url} has records of another run than {self._folder.path}; "
            "give another place, or another folder with --into"
        )


def _is_ours(name: str) -> bool:
    """Return True for a file that bitbench writes: the user's own files stay where they are."""
    top, is_below, _ = name.partition("/")
    if name.endswith(".partial"):
        return False
    if is_below:
        return top in _FOLDERS
    return name in _DOCUMENTS or name in _LINES


def _list_local_files(folder: Path) -> FileStates:
    """Return the plain files of a study folder that belong into a mirror."""
    paths = [folder / name for name in (*_DOCUMENTS, *_LINES)]
    for below in _FOLDERS:
        paths += sorted((folder / below).rglob("*"))
    states: FileStates = {}
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if _is_ours(name) and path.is_file() and not path.is_symlink():
            state = path.stat()
            states[name] = (state.st_size, state.st_mtime_ns)
    return states


def _get_line_states(remote: dict[str, fs.FileInfo]) -> FileStates:
    """Return size and time of the record lines in a mirror, to notice if another run writes."""
    marks: FileStates = {}
    for name in _LINES:
        if name in remote:
            marks[name] = (remote[name].size, remote[name].mtime_ns or 0)
    return marks


def _parse_row_names(contents: Iterable[bytes]) -> set[str]:
    """Return the names of the files of rows that these lines mention."""
    return {name.decode() for content in contents for name in _ROWS.findall(content)}


def _read_content(path: Path) -> bytes:
    return read_bytes(path) if path.exists() else b""


def _trim_torn_line(content: bytes) -> bytes:
    """Return the content without an incomplete last line."""
    return content[: content.rfind(b"\n") + 1]


def _run_for_each(work: Callable[[str], None], names: Iterable[str]) -> None:
    """Call `work` for each name in a few threads, and raise its first error."""
    with ThreadPoolExecutor(COPIES_AT_ONCE) as workers:
        try:
            list(workers.map(work, names))
        except BaseException:
            # Each of the others would take as long as the one that failed.
            workers.shutdown(wait=False, cancel_futures=True)
            raise
