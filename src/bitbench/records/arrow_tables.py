"""The records of a study as Arrow tables, with the columns of `records.tables`."""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from bitbench.records.folder import StudyRecords
from bitbench.records.quality import QualityRecord
from bitbench.records.strict_reader import strict_reader_schema
from bitbench.records.tables import TABLES
from bitbench.study.base import Json, Record
from bitbench.study.workload import Workload
from bitbench.util.errors import RowsNotKeptError

_SHAPE = ("concurrency", "input_tokens", "output_tokens")


def study_arrow_table(of: StudyRecords, name: str, folder: str = ".") -> pa.Table:
    """Return one of `TABLES`. `folder`: what the column of this name says."""
    if name == "requests":
        return _requests(of, folder)
    rows = [{**row, "folder": folder, "study": of.study.name} for row in _rows(of, name)]
    columns = [
        pa.array([_value(row, column.path, column.arrow_type) for row in rows], field.type)
        for column, field in zip(TABLES[name].columns, table_schema(name), strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=table_schema(name))


def table_schema(name: str) -> pa.Schema:
    return strict_reader_schema(TABLES[name].columns)


def _rows(of: StudyRecords, name: str) -> Iterator[Mapping[str, Json]]:
    """Records as JSON, with what other records say of them."""
    if name == "studies":
        yield from _as_json([of.lock])
    elif name == "trials":
        shapes = {workload.name: _shape(workload) for workload in of.study.workloads}
        for trial in _as_json(of.trials):
            yield {**trial, **shapes.get(trial["point"]["workload"], {})}
    elif name == "instances":
        yield from _as_json(of.instances)
    else:
        for record, row in zip(of.quality, _as_json(of.quality), strict=True):
            yield {**row, "perplexity": _perplexity(of, record)}


def _as_json(records: Iterable[Record]) -> Iterator[dict[str, Json]]:
    return (record.model_dump(mode="json") for record in records)


def _shape(workload: Workload) -> dict[str, int | None]:
    """Null where it is unknown or varies."""
    values = {part: getattr(workload, part) for part in _SHAPE if part not in workload.unknown}
    return {part: value for part, value in values.items() if isinstance(value, int)}


def _perplexity(of: StudyRecords, record: QualityRecord) -> float | None:
    if record.scores_file is None:
        return None
    try:
        scores = of.scores_of(record)
        if record.corpus is not None:
            scores = scores.filter(
                pc.less(scores["window"], record.corpus.windows)
            )  # longer ones come after
        mean = pc.mean(scores["logprob"]).as_py()
    except RowsNotKeptError:
        return None
    return None if mean is None else math.exp(-mean)


def _value(row: Mapping[str, Json], path: str, kind: str) -> Json:
    value = _at(row, path.split("."))
    return _utc(value) if kind == "timestamp" else value


def _at(value: Json, path: list[str]) -> Json:
    """Return what stands at a path; of a list, what stands there in each of its items."""
    if not path or value is None:
        return value
    if isinstance(value, list):
        return [_at(item, path) for item in value]
    return _at(value.get(path[0]), path[1:])


def _utc(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return found.astimezone(UTC).replace(tzinfo=None) if found and found.tzinfo else found


def _requests(of: StudyRecords, folder: str) -> pa.Table:
    schema = table_schema("requests")
    parts = [schema.empty_table()]
    for trial in of.trials:
        try:
            rows = of.requests_of(trial, None)
        except RowsNotKeptError:
            continue
        known = {"folder": folder, "study": of.study.name, "trial": trial.id}
        parts.append(
            pa.Table.from_arrays([_column(rows, field, known) for field in schema], schema=schema)
        )
    return pa.concat_tables(parts)


def _column(
    rows: pa.Table, field: pa.Field, known: Mapping[str, str]
) -> pa.Array | pa.ChunkedArray:
    if field.name in known:
        return pa.array([known[field.name]] * rows.num_rows, field.type)
    return rows.column(field.name)
