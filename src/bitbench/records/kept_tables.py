"""The records of a study as columns, in files beside them, so that a query over many studies parses none of them again.

The name of a file holds the hash of what it was made from: a file whose name does not fit is out of date, whatever
wrote to the folder meanwhile. What it holds may be a stranger's, so its size and columns are looked at first.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bitbench.records.arrow_tables import study_arrow_table, table_schema
from bitbench.records.folder import StudyFolder
from bitbench.util.errors import BitbenchError, StoreError
from bitbench.util.files import SafeFolder, read_bytes

KEPT_TABLES = ("studies", "trials", "instances", "quality")
LARGEST_TABLE_BYTES = 2**30  # unpacked
_PLACE = "tables"
_MADE_FROM = ("lock.json", "instances.jsonl", "quality.jsonl", "trials.jsonl")
_NAME = re.compile(rf"({'|'.join(KEPT_TABLES)})-[0-9a-f]{{32}}\.parquet", re.ASCII)
_COLUMNS = repr(
    [table_schema(name) for name in KEPT_TABLES]
).encode()  # of this version of bitbench


def find_kept_table(folder: Path, records_hash: str, name: str) -> Path | None:
    """None where it is missing or was made from other records."""
    path = folder / _PLACE / _file_name(records_hash, name)
    return path if path.is_file() else None


def hash_records(folder: Path) -> str:
    """Of the files that tables are made from, as they are now."""
    found = blake2b(_COLUMNS, digest_size=16)
    for name in _MADE_FROM:
        with suppress(FileNotFoundError):
            content = read_bytes(folder / name)
            found.update(f"{name} {len(content)} ".encode())
            found.update(content)
    return found.hexdigest()


def write_kept_tables(folder: StudyFolder) -> None:
    """Keep tables of these records, unless they are there. Records that cannot be read have none."""
    if not folder.lock_file.is_file():
        return
    records_hash = hash_records(folder.path)
    names = {name: _file_name(records_hash, name) for name in KEPT_TABLES}
    if all((folder.path / _PLACE / name).is_file() for name in names.values()):
        return
    try:
        records = folder.read()
        tables = {name: study_arrow_table(records, name).drop_columns(["folder"]) for name in names}
    except BitbenchError:
        return  # a report or a query says what is wrong with them
    files = SafeFolder(folder.path)
    files.make_folder(_PLACE)
    files.remove_matching(_PLACE, _NAME)
    for table, name in names.items():
        with files.replacing(f"{_PLACE}/{name}") as file:
            pq.write_table(tables[table], file, compression="zstd")


def read_kept_table(path: Path, name: str, columns: Sequence[str]) -> pa.Table:
    """These columns of a table. Raises StoreError where the file is damaged, or no such table."""
    expected = table_schema(name)
    try:
        file = pq.ParquetFile(path)
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        if sum(group.total_byte_size for group in groups) > LARGEST_TABLE_BYTES:
            raise ValueError(f"it unpacks to more than {LARGEST_TABLE_BYTES // 2**20:,} MiB")
        found = file.read(columns=list(columns), use_threads=False)
        return found.select(list(columns)).cast(
            pa.schema([expected.field(column) for column in columns])
        )
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        cause = str(error).strip().partition("\n")[0].rstrip(".")
        raise StoreError(
            f"{path} is damaged and cannot be read: {cause}; remove it, and records are read"
        ) from error


def _file_name(records_hash: str, name: str) -> str:
    return f"{name}-{records_hash}.parquet"
