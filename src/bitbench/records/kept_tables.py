"""The records of a study as columns, in files of its folder, so that a query over many studies
does not parse them again.

The name of a file contains the hash of its sources. A file with another hash is out of date. A
file may be made by a stranger, so its size and columns are checked first.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bitbench.records.arrow_tables import make_arrow_table, make_table_schema
from bitbench.records.folder import StudyFolder
from bitbench.util.errors import BitbenchError, StoreError
from bitbench.util.files import SafeFolder, read_bytes

KEPT_TABLES = ("studies", "trials", "instances", "quality")
LARGEST_TABLE_BYTES = 2**30  # unpacked
_FOLDER = "tables"
_MADE_FROM = ("lock.json", "instances.jsonl", "quality.jsonl", "trials.jsonl")
_NAME = re.compile(rf"({'|'.join(KEPT_TABLES)})-[0-9a-f]{{32}}\.parquet", re.ASCII)
_COLUMNS = repr(
    [make_table_schema(name) for name in KEPT_TABLES]
).encode()  # of this version of bitbench


def find_kept_table(folder: Path, records_hash: str, name: str) -> Path | None:
    """Return the path of a table. None if it is missing or was made from other records."""
    path = folder / _FOLDER / _format_file_name(records_hash, name)
    if path.is_file():
        return path
    return None


def hash_records(folder: Path) -> str:
    """Return the hash of the files that tables are made from, as they are now."""
    digest = blake2b(_COLUMNS, digest_size=16)
    for name in _MADE_FROM:
        with suppress(FileNotFoundError):
            content = read_bytes(folder / name)
            digest.update(f"{name} {len(content)} ".encode())
            digest.update(content)
    return digest.hexdigest()


def write_kept_tables(folder: StudyFolder) -> None:
    """Write the tables of these records if missing. Do nothing if records cannot be read."""
    if not folder.lock_file.is_file():
        return
    records_hash = hash_records(folder.path)
    names = {name: _format_file_name(records_hash, name) for name in KEPT_TABLES}
    if all((folder.path / _FOLDER / name).is_file() for name in names.values()):
        return
    try:
        records = folder.read()
        tables = {name: make_arrow_table(records, name).drop_columns(["folder"]) for name in names}
    except BitbenchError:
        return  # a report or a query explains the error
    files = SafeFolder(folder.path)
    files.make_folder(_FOLDER)
    files.remove_matching(_FOLDER, _NAME)
    for table, name in names.items():
        with files.open_replacement(f"{_FOLDER}/{name}") as file:
            pq.write_table(tables[table], file, compression="zstd")


def read_kept_table(path: Path, name: str, columns: Sequence[str]) -> pa.Table:
    """Return these columns of a table. Raise StoreError if the file is damaged or another table."""
    expected = make_table_schema(name)
    try:
        schema = pa.schema([expected.field(column) for column in columns])
        file = pq.ParquetFile(path)
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        if sum(group.total_byte_size for group in groups) > LARGEST_TABLE_BYTES:
            raise ValueError(f"it unpacks to more than {LARGEST_TABLE_BYTES // 2**20:,} MiB")
        table = file.read(columns=list(columns), use_threads=False)
        return table.select(list(columns)).cast(schema)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        cause = str(error).strip().partition("\n")[0].rstrip(".")
        raise StoreError(
            f"{path} is damaged and cannot be read: {cause}; remove it, and records are read"
        ) from error


def _format_file_name(records_hash: str, name: str) -> str:
    return f"{name}-{records_hash}.parquet"
