"""A study in an object store, with a copy of it on this machine that is worked on, and the tables of it that
`bitbench query` reads.

    PLACE/.catalog/TABLE/STUDY.parquet    written by whoever wrote the study, when it stops
    PLACE/.catalog/TABLE.parquet          all of them in one object, with the tag that each had

A query lists the first, reads the second, and reads of the first only those that changed since: what it answers is
always complete, and for a thousand studies it takes two requests.

    study.yaml  lock.json  roof.json       replaced only where they are still what this writer wrote
    trials/ID.json  instances/ID.json  quality/ID.json    one object per record, created once; it is what makes it exist
    rows/SHA256.parquet                    rows of a record, which names them by their hash; written before it
    profiles/ID.json  materials/NAME       as in a folder
    logs/ID.log                            created when an instance gets its id, so that no other gets the same
    writer.json                            who writes; see `Lease`
    ../.catalog/                           what a query reads; see above

The copy holds nothing that the store does not: a record is created there first. So a run that is killed at any moment
continues by the same command, on this machine or on another one.
"""

import importlib.util
import io
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bitbench.features.objects.store import (
    LASTS_S,
    SCHEME,
    Lease,
    ObjectChangedError,
    ObjectExistsError,
    ObjectStore,
    StoredObject,
)
from bitbench.records.arrow_tables import study_arrow_table, table_schema
from bitbench.records.folder import StudyFolder, Writer
from bitbench.records.profile import OperatorProfile
from bitbench.study.base import Record
from bitbench.util.errors import StoreError, UsageError
from bitbench.util.files import SafeFolder, read_bytes

TABLES = ("studies", "trials", "instances", "quality")
FOLDER = ".catalog"
COMPACTED_FROM = 50  # studies that a query has to read one by one: beyond it, whoever ends a study compacts
_TAGS = b"bitbench.tags"
_NAME = re.compile(r"[^/]+\.parquet")


def write_remote_tables(store: ObjectStore, name: str, tables: Mapping[str, pa.Table]) -> None:
    """The tables of one study, by its name at this place."""
    for table, rows in tables.items():
        write_remote_table(store, table, name, rows)
    if len(_changed(store, "studies")[0]) >= COMPACTED_FROM:
        compact_remote_tables(store)


def write_remote_table(store: ObjectStore, table: str, name: str, rows: pa.Table) -> None:
    place = rows.schema.get_field_index("folder")
    named = rows.set_column(place, "folder", pa.array([name] * rows.num_rows, pa.string()))
    store.write(f"{FOLDER}/{table}/{name}.parquet", _bytes(named))


def compact_remote_tables(store: ObjectStore) -> None:
    """Two at once are harmless: the second finds that the object changed, and leaves it."""
    for table in TABLES:
        changed, kept, etag, tags = _changed(store, table)
        if not changed:
            continue
        rows = _joined(store, table, changed, kept)
        content = _bytes(rows.replace_schema_metadata({_TAGS: json.dumps(tags).encode()}))
        try:
            if etag is None:
                store.create(f"{FOLDER}/{table}.parquet", content)
            else:
                store.replace(f"{FOLDER}/{table}.parquet", content, etag)
        except (ObjectExistsError, ObjectChangedError):
            continue


def open_remote_catalog(place: str) -> "ObjectCatalog | None":
    """Return that of studies that bitbench wrote there; None where other means have to read what lies there."""
    if importlib.util.find_spec("obstore") is None:
        return None
    catalog = ObjectCatalog(place)
    return None if catalog.is_empty else catalog


class ObjectCatalog:
    """`is_empty`: no study below this place has written its tables, such as a folder that was copied there."""

    tables = TABLES

    def __init__(self, place: str) -> None:
        self._store = ObjectStore(place)

    @property
    def is_empty(self) -> bool:
        return not self._store.has(f"{FOLDER}/studies.parquet") and not self._store.list(f"{FOLDER}/studies")

    def table(self, name: str) -> pa.Table:
        changed, kept, _, _ = _changed(self._store, name)
        return _joined(self._store, name, changed, kept)

    def lacks(self, name: str) -> str:
        return (
            f"{name} of studies in an object store cannot be queried there; `bitbench pull {self._store.url}/STUDY` "
            "copies a study to this machine"
        )


def _changed(store: ObjectStore, table: str) -> tuple[list[StoredObject], pa.Table | None, str | None, dict[str, str]]:
    """Objects of studies that the compacted one does not have as they are; its other rows; its tag; all tags."""
    prefix = f"{FOLDER}/{table}/"
    with ThreadPoolExecutor(2) as both:  # neither waits for the other
        listing = both.submit(store.list, prefix)
        compacted = store.read(f"{FOLDER}/{table}.parquet")
        objects = [stored for stored in listing.result() if _NAME.fullmatch(stored.name.removeprefix(prefix))]
    tags = {stored.name.removeprefix(prefix).removesuffix(".parquet"): stored.etag for stored in objects}
    if compacted is None:
        return objects, None, None, tags
    rows = _table(compacted[0], f"{store.url}/{FOLDER}/{table}.parquet")
    known: dict[str, str] = json.loads((rows.schema.metadata or {}).get(_TAGS, b"{}"))
    current = {name for name, etag in tags.items() if known.get(name) == etag}
    if current != known.keys():
        rows = rows.filter(pc.is_in(rows.column("folder"), value_set=pa.array(sorted(current), pa.string())))
    changed = [stored for stored in objects if stored.name.removeprefix(prefix).removesuffix(".parquet") not in current]
    return changed, rows, compacted[1], tags


def _joined(store: ObjectStore, table: str, changed: list[StoredObject], kept: pa.Table | None) -> pa.Table:
    contents = store.read_all(stored.name for stored in changed)
    parts = [table_schema(table).empty_table(), *([kept] if kept is not None else [])]
    parts += [_table(content, f"{store.url}/{stored.name}") for stored, content in zip(changed, contents, strict=True)]
    whole = pa.concat_tables([part.replace_schema_metadata(None) for part in parts], promote_options="permissive")
    return whole.select(parts[0].column_names)


def _table(content: bytes, where: str) -> pa.Table:
    try:
        return pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError, ValueError) as error:
        cause = str(error).strip().partition("\n")[0]
        raise StoreError(f"{where} is damaged ({cause}); remove it, and the next run of its study writes it") from error


def _bytes(rows: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(rows, out, compression="zstd")
    return out.getvalue()


_DOCUMENTS = ("study.yaml", "lock.json", "roof.json")
_RECORD = re.compile(r"(trials/t|instances/i|quality/q)\d{4,9}\.json", re.ASCII)
_FILE = re.compile(r"profiles/p\d{4,9}\.json|logs/i\d{4,9}\.log", re.ASCII)
_MATERIAL = re.compile(r"materials/(windows-[\w.+-]+\.json)", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}")
_ROWS = {"trials": "requests_file", "quality": "scores_file"}
_KEPT_ROWS = re.compile(r"requests/t\d{4,9}\.parquet|quality/q\d{4,9}\.parquet", re.ASCII)


def open_remote_folder(url: str, home: Path) -> "RemoteFolder":
    """Return the study at s3://BUCKET/…/STUDY."""
    return RemoteFolder(_study_url(url), home)


def pull_remote_study(url: str, into: Path | None) -> StudyFolder:
    """Copy a study from an object store, also one that is still running."""
    store = ObjectStore(_study_url(url))
    folder = StudyFolder(into or Path(store.url.rpartition("/")[2]))
    if store.read("lock.json") is None:
        raise StoreError(
            f"{store.url} contains no study (no lock.json); `bitbench run STUDY --into {store.url}` fills it"
        )
    if folder.path.exists() and any(folder.path.iterdir()):
        raise StoreError(f"{folder.path} is not empty; give another folder")
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
        write_remote_tables(ObjectStore(place), name, {table: study_arrow_table(records, table) for table in TABLES})

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
            _remove(files, name)
    for stored in listed:
        if (material := _MATERIAL.fullmatch(stored.name)) and (found := store.read(stored.name)) is not None:
            files.write(f"quality/{material[1]}", _text(found[0], store, stored.name))
            tags[stored.name] = found[1]
    for kind in ("trials", "instances", "quality"):
        own = [stored.name for stored in listed if stored.name.startswith(f"{kind}/")]
        names = [name for name in own if _RECORD.fullmatch(name)]
        records = [_record(content, store, name) for name, content in zip(names, store.read_all(names), strict=True)]
        lines = "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record, _ in records)
        if lines:
            files.write(f"{kind}.jsonl", lines)
        else:
            _remove(files, f"{kind}.jsonl")
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


def _remove(files: SafeFolder, name: str) -> None:
    """What an earlier copy held, and the store does not."""
    files.remove_matching("", re.compile(re.escape(name)))


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
