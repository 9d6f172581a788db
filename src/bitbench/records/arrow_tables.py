"""The records of a study as Arrow tables, with the columns of `records.tables`."""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from bitbench.records.folder import StudyRecords
from bitbench.records.quality import QualityRecord
from bitbench.records.strict_reader import make_arrow_schema
from bitbench.records.tables import TABLES
from bitbench.study.base import Json, Record
from bitbench.study.workload import Workload
from bitbench.util.errors import RowsNotKeptError

_SHAPE = ("concurrency", "input_tokens", "output_tokens")


def make_arrow_table(records: StudyRecords, name: str, folder: str = ".") -> pa.Table:
    """Return one of `TABLES`. `folder` is the content of the column with this name."""
    if name == "requests":
        return _read_requests(records, folder)
    schema = make_table_schema(name)
    constants = {"folder": folder, "study": records.study.name}
    rows = [{**row, **constants} for row in _iter_rows(records, name)]
    columns = []
    for column, field in zip(TABLES[name].columns, schema, strict=True):
        values = [_convert_value(row, column.path, column.arrow_type) for row in rows]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def make_table_schema(name: str) -> pa.Schema:
    """Return the schema of one of `TABLES`."""
    return make_arrow_schema(TABLES[name].columns)


def _iter_rows(records: StudyRecords, name: str) -> Iterator[Mapping[str, Json]]:
    """Yield records as JSON, joined with fields that other records contain."""
    if name == "studies":
        yield from _iter_json([records.lock])
    elif name == "trials":
        shapes = {workload.name: _collect_shape(workload) for workload in records.study.workloads}
        for trial in _iter_json(records.trials):
            yield {**trial, **shapes.get(trial["point"]["workload"], {})}
    elif name == "instances":
        yield from _iter_json(records.instances)
    else:
        for record, row in zip(records.quality, _iter_json(records.quality), strict=True):
            yield {**row, "perplexity": _compute_perplexity(records, record)}


def _iter_json(records: Iterable[Record]) -> Iterator[dict[str, Json]]:
    return (record.model_dump(mode="json") for record in records)


def _collect_shape(workload: Workload) -> dict[str, int | None]:
    """Return the concurrency and lengths, without those that are unknown or vary."""
    shape: dict[str, int | None] = {}
    for part in _SHAPE:
        value = getattr(workload, part)
        if part not in workload.unknown and isinstance(value, int):
            shape[part] = value
    return shape


def _compute_perplexity(records: StudyRecords, record: QualityRecord) -> float | None:
    if record.scores_file is None:
        return None
    try:
        scores = records.scores_of(record)
    except RowsNotKeptError:
        return None
    if record.corpus is not None:
        # Windows of other lengths come after the windows of `window_tokens`.
        scores = scores.filter(pc.less(scores["window"], record.corpus.windows))
    mean = pc.mean(scores["logprob"]).as_py()
    if mean is None:
        return None
    return math.exp(-mean)


def _convert_value(row: Mapping[str, Json], path: str, arrow_type: str) -> Json:
    value = _find_value(row, path.split("."))
    if arrow_type == "timestamp":
        return _parse_time(value)
    return value


def _find_value(value: Json, path: list[str]) -> Json:
    """Return the value at a path. For a list, return the values of all its items."""
    if not path or value is None:
        return value
    if isinstance(value, list):
        return [_find_value(item, path) for item in value]
    return _find_value(value.get(path[0]), path[1:])


def _parse_time(text: str | None) -> datetime | None:
    """Parse a time, without its zone and in UTC if it has a zone. None if it is not a time."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        return time
    return time.astimezone(UTC).replace(tzinfo=None)


def _read_requests(records: StudyRecords, folder: str) -> pa.Table:
    schema = make_table_schema("requests")
    tables = [schema.empty_table()]
    for trial in records.trials:
        try:
            rows = records.requests_of(trial, None)
        except RowsNotKeptError:
            continue
        constants = {"folder": folder, "study": records.study.name, "trial": trial.id}
        columns = [_make_column(rows, field, constants) for field in schema]
        tables.append(pa.Table.from_arrays(columns, schema=schema))
    return pa.concat_tables(tables)


def _make_column(
    rows: pa.Table, field: pa.Field, constants: Mapping[str, str]
) -> pa.Array | pa.ChunkedArray:
    if field.name in constants:
        return pa.array([constants[field.name]] * rows.num_rows, field.type)
    return rows.column(field.name)
