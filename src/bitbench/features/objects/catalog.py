"""What `bitbench query` reads of studies in an object store: their tables, compacted.

PLACE/.catalog/TABLE/STUDY.parquet    written by whoever wrote the study, when it stops
PLACE/.catalog/TABLE.parquet          all of them in one object, with the tag that each had

A query lists the first, reads the second, and reads of the first only those that changed since: what it answers is
always complete, and for a thousand studies it takes two requests.
"""

import importlib.util
import io
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bitbench.features.objects.store import ObjectChangedError, ObjectExistsError, ObjectStore, StoredObject
from bitbench.records.arrow_tables import table_schema
from bitbench.util.errors import StoreError

TABLES = ("studies", "trials", "instances", "quality")
FOLDER = ".catalog"
COMPACTED_FROM = 50  # studies that a query has to read one by one: beyond it, whoever ends a study compacts
_TAGS = b"bitbench.tags"
_NAME = re.compile(r"[^/]+\.parquet")


def write_tables(store: ObjectStore, name: str, tables: Mapping[str, pa.Table]) -> None:
    """The tables of one study, by its name at this place."""
    for table, rows in tables.items():
        write_table(store, table, name, rows)
    if len(_changed(store, "studies")[0]) >= COMPACTED_FROM:
        compact(store)


def write_table(store: ObjectStore, table: str, name: str, rows: pa.Table) -> None:
    place = rows.schema.get_field_index("folder")
    named = rows.set_column(place, "folder", pa.array([name] * rows.num_rows, pa.string()))
    store.write(f"{FOLDER}/{table}/{name}.parquet", _bytes(named))


def compact(store: ObjectStore) -> None:
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


def open_catalog(place: str) -> "ObjectCatalog | None":
    """Return that of studies that bitbench wrote there; None where other means have to read what lies there."""
    if importlib.util.find_spec("obstore") is None:
        return None
    catalog = ObjectCatalog(place)
    return None if catalog.is_empty else catalog


class ObjectCatalog:
    """`is_empty`: no study below this place has written its tables, such as a folder that was copied there."""

    def __init__(self, place: str) -> None:
        self._store = ObjectStore(place)

    @property
    def is_empty(self) -> bool:
        return not self._store.has(f"{FOLDER}/studies.parquet") and not self._store.list(f"{FOLDER}/studies")

    def table(self, name: str) -> pa.Table:
        if name not in TABLES:
            raise StoreError(
                f"{name} of studies in an object store cannot be queried there; `bitbench pull "
                f"{self._store.url}/STUDY` copies a study to this machine"
            )
        changed, kept, _, _ = _changed(self._store, name)
        return _joined(self._store, name, changed, kept)


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
