"""A study in an object store, with a copy of it on this machine that is worked on.

study.yaml  lock.json  roof.json       replaced only where they are still what this writer wrote
trials/ID.json  instances/ID.json  quality/ID.json    one object per record, created once; it is what makes it exist
rows/SHA256.parquet                    rows of a record, which names them by their hash; written before it
profiles/ID.json  materials/NAME       as in a folder
logs/ID.log                            created when an instance gets its id, so that no other gets the same
writer.json                            who writes; see `lease`
../.catalog/                           what a query reads; see `catalog`

The copy holds nothing that the store does not: a record is created there first. So a run that is killed at any moment
continues by the same command, on this machine or on another one.
"""

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from bitbench.features.objects.catalog import TABLES, write_tables
from bitbench.features.objects.lease import LASTS_S, Lease
from bitbench.features.objects.store import SCHEME, ObjectChangedError, ObjectExistsError, ObjectStore
from bitbench.records.arrow_tables import study_table
from bitbench.records.folder import StudyFolder, Writer
from bitbench.records.profile import OperatorProfile
from bitbench.study.base import Record
from bitbench.util.errors import StoreError, UsageError
from bitbench.util.safe_files import SafeFolder, read_bytes

_DOCUMENTS = ("study.yaml", "lock.json", "roof.json")
_RECORD = re.compile(r"(trials/t|instances/i|quality/q)\d{4,9}\.json", re.ASCII)
_FILE = re.compile(r"profiles/p\d{4,9}\.json|logs/i\d{4,9}\.log", re.ASCII)
_MATERIAL = re.compile(r"materials/(windows-[\w.+-]+\.json)", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}")
_ROWS = {"trials": "requests_file", "quality": "scores_file"}
_KEPT_ROWS = re.compile(r"requests/t\d{4,9}\.parquet|quality/q\d{4,9}\.parquet", re.ASCII)


def open_folder(url: str, home: Path) -> "RemoteFolder":
    """Return the study at s3://BUCKET/…/STUDY."""
    return RemoteFolder(_study_url(url), home)


def pull_study(url: str, into: Path | None) -> StudyFolder:
    """Copy a study from an object store, also one that is still running."""
    store = ObjectStore(_study_url(url))
    folder = StudyFolder(into or Path(store.url.rpartition("/")[2]))
    if store.read("lock.json") is None:
        raise StoreError(
            f"{store.url} contains no study (no lock.json); `bitbench run STUDY --into {store.url}` fills it"
        )
    if folder.lock_file.exists() or folder.study_file.exists():
        raise StoreError(f"{folder.path} already contains a study; give another folder")
    pull(store, folder.path)
    return folder


def _study_url(url: str) -> str:
    """A bucket alone is where studies lie, and no study itself."""
    bucket, _, path = url.removeprefix(SCHEME).strip("/").partition("/")
    if not bucket or not path or not url.startswith(SCHEME):
        raise UsageError(f"{url} does not name a study; write {SCHEME}BUCKET/STUDY")
    return f"{SCHEME}{bucket}/{path}"


class RemoteFolder(StudyFolder):
    """`path` is the copy on this machine."""

    def __init__(self, url: str, home: Path) -> None:
        self.store = ObjectStore(url)
        super().__init__(home / "remote" / sha256(self.store.url.encode()).hexdigest()[:16])

    def writing(self) -> "RemoteWriter":
        return RemoteWriter(self)


class RemoteWriter(Writer):
    def __init__(self, folder: RemoteFolder, *, lasts_s: float = LASTS_S) -> None:
        super().__init__(folder)
        self._store = folder.store
        self._lease = Lease(folder.store, lasts_s=lasts_s)
        self._held = ExitStack()
        self._tags: dict[str, str] = {}  # of the documents, as this writer knows them
        self._begun: list[Path] = []  # logs of this run's instances
        self._rows: dict[str, str] = {}  # hash of rows that were written, by their name in a folder

    def __enter__(self) -> "RemoteWriter":
        with ExitStack() as held:
            self._held = held
            super().__enter__()
            self._held = held.pop_all()
        return self

    def _prepare(self) -> None:
        self._store.probe()
        self._held.enter_context(self._lease)
        self._tags = pull(self._store, self.folder.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._lease.check()
            for log in self._begun:
                self._store.write(f"logs/{log.name}", read_bytes(log))
            if self.folder.lock() is not None:
                self._write_catalog()
        finally:
            self._held.close()
            super().__exit__(kind, error, traceback)

    def _write_catalog(self) -> None:
        place, _, name = self._store.url.rpartition("/")
        records = self.folder.read()
        write_tables(ObjectStore(place), name, {table: study_table(records, table) for table in TABLES})

    def new_instance(self) -> tuple[str, Path]:
        """Its log exists in the store from now on, with the writer's epoch: two writers never have the same."""
        mark = f"begun by writer {self._lease.state.epoch}; the log follows when the run ends\n"
        self._create(f"logs/i{self._next_instance:04d}.log", mark.encode())
        instance_id, log = super().new_instance()
        self._begun.append(log)
        return instance_id, log

    def _append(self, lines: Path, record: Record) -> None:
        rows = getattr(record, _ROWS.get(lines.stem, ""), None)
        content = {"record": json.loads(record.model_dump_json()), "rows": self._rows.get(rows) if rows else None}
        self._create(f"{lines.stem}/{record.id}.json", json.dumps(content).encode())  # type: ignore[attr-defined]
        super()._append(lines, record)

    def _write_rows(self, name: str, rows: pa.Table | None) -> str | None:
        written = super()._write_rows(name, rows)
        if written is not None:
            content = read_bytes(self.folder.path / name)
            self._rows[name] = sha256(content).hexdigest()
            self._create(f"rows/{self._rows[name]}.parquet", content)
        return written

    def add_profile(self, draft: OperatorProfile, trace: Path) -> OperatorProfile:
        """Its trace stays on this machine: it is large, and only a person looks at it."""
        profile = super().add_profile(draft, trace)
        self._create(f"profiles/{profile.id}.json", profile.model_dump_json(indent=1).encode())
        return profile

    def _write_document(self, name: str, text: str) -> None:
        self._lease.check()
        content = text.encode()
        remote = name.replace("quality/", "materials/")
        try:
            known = self._tags.get(remote)
            self._tags[remote] = (
                self._store.create(remote, content) if known is None else self._store.replace(remote, content, known)
            )
        except (ObjectExistsError, ObjectChangedError):
            raise self._other_writer(remote) from None
        super()._write_document(name, text)

    def _create(self, name: str, content: bytes) -> None:
        self._lease.check()
        try:
            self._store.create(name, content)
        except ObjectExistsError:
            raise self._other_writer(name) from None

    def _other_writer(self, name: str) -> StoreError:
        return StoreError(f"{self._store.url}/{name} was written by another bitbench; only one may write to a study")


def pull(store: ObjectStore, into: Path) -> dict[str, str]:
    """Make `into` a study folder with what is in the store, and nothing else of records. Returns the documents' tags.

    Names and content of objects may be a stranger's: only those that bitbench gives are taken, rows by their hash.
    """
    files = SafeFolder(into)
    files.make_folder()
    tags: dict[str, str] = {}
    listed = store.list()
    for name in _DOCUMENTS:
        found = store.read(name)
        if found is not None:
            files.write(name, _text(found[0], store, name))
            tags[name] = found[1]
        else:
            _remove(files, "", name)
    for stored in listed:
        if (material := _MATERIAL.fullmatch(stored.name)) and (found := store.read(stored.name)) is not None:
            files.write(f"quality/{material[1]}", _text(found[0], store, stored.name))
            tags[stored.name] = found[1]
    for kind in ("trials", "instances", "quality"):
        names = [
            stored.name for stored in listed if _RECORD.fullmatch(stored.name) and stored.name.startswith(f"{kind}/")
        ]
        records = [_record(content, store, name) for name, content in zip(names, store.read_all(names), strict=True)]
        lines = "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record, _ in records)
        if lines:
            files.write(f"{kind}.jsonl", lines)
        else:
            _remove(files, "", f"{kind}.jsonl")
        for record, rows in records:
            _pull_rows(store, files, record.get(_ROWS.get(kind, "")), rows)
    profiles = frozenset(stored.name.rpartition("/")[2] for stored in listed if stored.name.startswith("profiles/"))
    files.remove_matching("profiles", re.compile(r"p\d+\.json"), profiles)
    held = {path.name for path in (into / "logs").glob("*")}
    for stored in listed:
        if _FILE.fullmatch(stored.name) and not (stored.name.startswith("logs/") and stored.name[5:] in held):
            found = store.read(stored.name)
            files.write(stored.name, found[0].decode("utf-8", errors="replace") if found else "")
    return tags


def _remove(files: SafeFolder, folder: str, name: str) -> None:
    """What an earlier copy held, and the store does not."""
    files.remove_matching(folder, re.compile(re.escape(name)))


def _record(content: bytes, store: ObjectStore, name: str) -> tuple[Mapping[str, object], object]:
    try:
        found = json.loads(content)
        record, rows = found["record"], found["rows"]
        if not isinstance(record, dict) or record.get("id") != name.rpartition("/")[2].removesuffix(".json"):
            raise ValueError("its id is not its name")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StoreError(f"{store.url}/{name} is damaged ({error}); remove it to continue without it") from None
    return record, rows


def _pull_rows(store: ObjectStore, files: SafeFolder, name: object, digest: object) -> None:
    """Those that are on this machine already, with the right hash, are not read again."""
    if not isinstance(name, str) or not isinstance(digest, str):
        return
    if not _KEPT_ROWS.fullmatch(name) or not _HASH.fullmatch(digest):
        raise StoreError(f"a record in {store.url} names rows as bitbench does not ({name[:60]}); remove that record")
    path = files.root / name
    if path.is_file() and sha256(read_bytes(path)).hexdigest() == digest:
        return
    found = store.read(f"rows/{digest}.parquet")
    if found is None:
        return  # not kept, as in a folder
    if sha256(found[0]).hexdigest() != digest:
        raise StoreError(f"{store.url}/rows/{digest}.parquet is damaged; remove it to continue without these rows")
    with files.replacing(name) as file:
        file.write(found[0])


def _text(content: bytes, store: ObjectStore, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise StoreError(f"{store.url}/{name} is damaged: it is not UTF-8 text; restore it from a copy") from None
