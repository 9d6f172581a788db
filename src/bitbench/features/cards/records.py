"""The records of a study as the parts of a card, and back. A stranger's parts are read as strictly as a folder."""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bitbench.features.cards.types import CardError, PartName
from bitbench.records.lock import LOCK_FORMAT, Lock
from bitbench.records.parquet_footer import group_sizes
from bitbench.records.profile import PROFILE_FORMAT, OperatorProfile
from bitbench.records.quality import QUALITY_FORMAT, SCORE_COLUMNS, QualityRecord
from bitbench.records.requests import REQUEST_COLUMNS, RequestColumn
from bitbench.records.roof import ROOF_FORMAT, MachineRoof
from bitbench.records.strict_reader import Line, R, arrow_schema, parse, read_from, refuse_strangers
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import RECORD_FORMAT, InstanceRecord, TrialRecord
from bitbench.study.base import Record
from bitbench.util.errors import RowsNotKeptError

OWNER = "record"  # the column that says of which trial, or measurement, a row is
GROUP_ROWS = 20_000  # of trials that share a row group: a card of many small ones stays small, and is read in pieces
MOST_ROWS = 20_000_000
MOST_GROUP_VALUES = 100_000_000  # in all columns of a row group, single token times included
LARGEST_GROUP_BYTES = 2**30
_ID = re.compile(r"[tqp]\d{4,9}", re.ASCII)  # as the writer of a folder gives them
_ASK_AGAIN = "ask for the card again"


def pack(of: StudyRecords, *, rows: bool, cleaned: Callable[[pa.Table], pa.Table]) -> dict[PartName, bytes]:
    """Every part that comes from records. `cleaned` is asked for the rows of each record before they are written."""
    parts = {PartName.LOCK: _document(of.lock)}
    if of.roof is not None:
        parts[PartName.ROOF] = _document(of.roof)
    lines = (
        (PartName.INSTANCES, of.instances),
        (PartName.TRIALS, of.trials),
        (PartName.QUALITY, of.quality),
        (PartName.PROFILES, of.profiles),
    )
    parts |= {name: b"".join(map(_document, records)) for name, records in lines if records}
    if rows:
        requests = _rows(_kept(of.trials, lambda trial: cleaned(of.requests_of(trial, None))), REQUEST_COLUMNS)
        scores = _rows(_kept([record for record in of.quality if record.scores_file], of.scores_of), SCORE_COLUMNS)
        found = {PartName.REQUESTS: requests, PartName.SCORES: scores}
        parts |= {name: content for name, content in found.items() if content is not None}
    return parts


def unpack(parts: Mapping[PartName, bytes], name: str) -> StudyRecords:
    """Raises StoreError with the part and line where something is damaged; `name`: of the card, for messages."""
    if PartName.LOCK not in parts:
        raise CardError(f"{name} has no {PartName.LOCK.value}; {_ASK_AGAIN}")
    lock = _one(parts, PartName.LOCK, Lock, LOCK_FORMAT, name)
    trials = _lines(parts, PartName.TRIALS, TrialRecord, RECORD_FORMAT, name)
    refuse_strangers(lock.plan, trials, Path(name))
    instances = _lines(parts, PartName.INSTANCES, InstanceRecord, RECORD_FORMAT, name)
    quality = _lines(parts, PartName.QUALITY, QualityRecord, QUALITY_FORMAT, name)
    profiles = _lines(parts, PartName.PROFILES, OperatorProfile, PROFILE_FORMAT, name)
    _refuse_foreign_names(trials, name)
    _refuse_foreign_names(quality, name)
    _refuse_foreign_names(profiles, name)
    requests = RowsPart(parts.get(PartName.REQUESTS), REQUEST_COLUMNS, f"{PartName.REQUESTS.value} in {name}")
    scores = RowsPart(parts.get(PartName.SCORES), SCORE_COLUMNS, f"{PartName.SCORES.value} in {name}")
    return StudyRecords(
        name=name,
        lock=lock,
        trials=trials,
        instances=instances,
        quality=quality,
        profiles=profiles,
        roof=_one(parts, PartName.ROOF, MachineRoof, ROOF_FORMAT, name) if PartName.ROOF in parts else None,
        requests_of=requests.of,
        scores_of=scores.of,
    )


def _refuse_foreign_names(records: Sequence[Line], name: str) -> None:
    """An id becomes a file's name where the card is unpacked, and a record names its own rows."""
    for record in records:
        own = record.id
        if not _ID.fullmatch(own):
            raise CardError(f"a record in {name} has the id {own[:40]!r}, which bitbench does not give; {_ASK_AGAIN}")
        rows = getattr(record, "requests_file", None), getattr(record, "scores_file", None)
        if any(file not in (None, f"requests/{own}.parquet", f"quality/{own}.parquet") for file in rows):
            raise CardError(f"record {own} in {name} names rows of another record; {_ASK_AGAIN}")


class RowsPart:
    """Rows of many records in one Parquet file, read a row group at a time."""

    def __init__(self, content: bytes | None, columns: Sequence[RequestColumn], where: str) -> None:
        self._columns, self._where = columns, where
        self._places: dict[str, tuple[int, int, int]] = {}  # row group, first row in it, rows
        if content is None:
            return
        try:
            self._file = pq.ParquetFile(io.BytesIO(content))
            self._check_size(content)
            self._find_owners()
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise self._damaged(error) from error
        self._group = lru_cache(maxsize=1)(self._read_group)

    def of(self, record: TrialRecord | QualityRecord, columns: Sequence[str] | None = None) -> pa.Table:
        if record.id not in self._places:
            raise RowsNotKeptError(f"the rows of {record.id} are not in {self._where}")
        group, start, rows = self._places[record.id]
        found = self._group(group).slice(start, rows)
        return found if columns is None else found.select([name for name in columns if name in found.column_names])

    def _check_size(self, content: bytes) -> None:
        """Before anything is unpacked: a few bytes can stand for billions of rows."""
        for group in group_sizes(content):
            if group.values > MOST_GROUP_VALUES or group.unpacked_bytes > LARGEST_GROUP_BYTES:
                raise ValueError(f"a row group has more than {MOST_GROUP_VALUES:,} values")
        if self._file.metadata.num_rows > MOST_ROWS:
            raise ValueError(f"it has more than {MOST_ROWS:,} rows")

    def _find_owners(self) -> None:
        for group in range(self._file.metadata.num_row_groups):
            owners = self._file.read_row_group(group, columns=[OWNER]).column(OWNER).to_pylist()
            start = 0
            for place in range(1, len(owners) + 1):
                if place < len(owners) and owners[place] == owners[start]:
                    continue
                if type(owners[start]) is not str or owners[start] in self._places:
                    raise ValueError(f"rows of {owners[start]} lie in several places")
                self._places[owners[start]] = (group, start, place - start)
                start = place

    def _read_group(self, group: int) -> pa.Table:
        try:
            table = self._file.read_row_group(group).drop_columns([OWNER])
            expected = {field.name: field for field in arrow_schema(self._columns)}
            return table.cast(pa.schema([expected[field.name] for field in table.schema]))
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CardError:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        return CardError(f"{self._where} cannot be read: {cause[:200]}; {_ASK_AGAIN}")


def _kept(records: Sequence[Line], rows_of: Callable[[Line], pa.Table]) -> Iterator[tuple[str, pa.Table]]:
    """The rows of those records that have some."""
    for record in records:
        with suppress(RowsNotKeptError):
            yield record.id, rows_of(record)


def _rows(of: Iterable[tuple[str, pa.Table]], columns: Sequence[RequestColumn]) -> bytes | None:
    """None where there is no row; a record without any has none to be recomputed from."""
    schema = arrow_schema(columns)
    schema = schema.insert(0, pa.field(OWNER, pa.string()))
    out = io.BytesIO()
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:

        def flush() -> None:
            if waiting:
                whole = pa.concat_tables(waiting)
                writer.write_table(whole, row_group_size=max(1, whole.num_rows))
                waiting.clear()

        for record_id, table in of:
            waiting.append(_owned(table, record_id, schema))
            if sum(table.num_rows for table in waiting) >= GROUP_ROWS:
                flush()
        flush()
    return out.getvalue() if pq.ParquetFile(io.BytesIO(out.getvalue())).metadata.num_rows else None


def _owned(table: pa.Table, record_id: str, schema: pa.Schema) -> pa.Table:
    owners = pa.array([record_id] * table.num_rows, pa.string())
    return table.append_column(OWNER, owners).select(schema.names).cast(schema)


def _document(record: Record) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def _one(parts: Mapping[PartName, bytes], part: PartName, kind: type[R], newest: int, name: str) -> R:
    return parse(parts[part], kind, newest, f"{part.value} in {name}", _ASK_AGAIN)


def _lines(parts: Mapping[PartName, bytes], part: PartName, kind: type[Line], newest: int, name: str) -> list[Line]:
    numbered = enumerate(parts.get(part, b"").splitlines(keepends=True), start=1)
    return read_from(numbered, kind, newest, lambda number: f"{part.value}:{number} in {name}", _ASK_AGAIN)
