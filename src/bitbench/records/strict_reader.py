"""The strict reader of records on disk. Its errors name the file, the line, the damage and the
remedy.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError
from pydantic_core import from_json

from bitbench.records.lock import Lock
from bitbench.records.profile import OperatorProfile
from bitbench.records.quality import QualityRecord
from bitbench.records.tables import RequestColumn, TableColumn
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.study.base import RECORDED, Record
from bitbench.study.plan import Plan
from bitbench.util.errors import NotComparableError, RowsNotKeptError, StoreError
from bitbench.util.files import open_to_read
from bitbench.util.text import format_printable
from bitbench.util.units import show_bytes

R = TypeVar("R", bound=Record)
Line = TypeVar("Line", TrialRecord, InstanceRecord, QualityRecord, OperatorProfile)

LARGEST_RECORD_BYTES = 256 * 2**20  # of a line, or of a file that is one record
_ARROW_TYPES = {
    "timestamp": pa.timestamp("us"),
    "list<string>": pa.list_(pa.string()),
    "list<float64>": pa.list_(pa.float64()),
    "list<float32>": pa.list_(pa.float32()),
    "list<int32>": pa.list_(pa.int32()),
}


def read_lines(path: Path, kind: type[Line], newest: int) -> list[Line]:
    """Return every record of a file in its order, or none if the file is missing.

    Raise StoreError for a damaged line or a repeated id.
    """
    advice = "remove that line to continue without it"
    records: dict[str, Line] = {}
    for number, raw in _complete_lines(path):
        where = f"{path.name}:{number} in {path.parent}"
        record = parse_record(raw, kind, newest, where, advice)
        if record.id in records:
            cause = f"the id {format_printable(record.id)} occurs twice"
            raise StoreError(f"{where} is damaged and cannot be read: {cause}; {advice}")
        records[record.id] = record
    return list(records.values())


def parse_next_record_number(ids: Iterable[str]) -> int:
    """Return the number after the highest of `t00001`, `t00002`, …, even if some are missing."""
    highest = 0
    for record_id in ids:
        digits = record_id[1:]
        if digits.isascii() and digits.isdigit():
            highest = max(highest, int(digits))
    return highest + 1


def _complete_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield complete lines with their numbers.

    A line without an end is still being written, or its process was killed, so it is skipped.
    """
    try:
        with open_to_read(path) as file:
            number = 0
            while line := file.readline(LARGEST_RECORD_BYTES + 1):
                number += 1
                if line.endswith(b"\n") or len(line) > LARGEST_RECORD_BYTES:
                    yield number, line
    except FileNotFoundError:
        return
    except OSError as error:
        raise _make_unreadable_error(path, error) from error


def read_record_file(path: Path, kind: type[R], newest: int, advice: str) -> R:
    """Read a file that is one record. `advice` says how to handle a damaged file."""
    try:
        with open_to_read(path) as file:
            raw = file.read(min(os.fstat(file.fileno()).st_size, LARGEST_RECORD_BYTES) + 1)
    except OSError as error:
        raise _make_unreadable_error(path, error) from error
    return parse_record(raw, kind, newest, str(path), advice)


def read_rows_strictly(
    path: Path, kinds: Sequence[RequestColumn], names: Sequence[str] | None, whose: str
) -> pa.Table:
    """Read the rows of a record, all columns or only `names`. `whose` is like `trial t00001`.

    Raise RowsNotKeptError if the file is missing, and StoreError if it is damaged.
    """
    schema = make_arrow_schema(kinds)
    if names is None:
        names = schema.names
    later = {kind.name for kind in kinds if kind.is_later}
    try:
        with open_to_read(path) as file:
            parquet = pq.ParquetFile(file)
            missing = later.difference(parquet.schema_arrow.names)
            table = parquet.read(columns=[name for name in names if name not in missing])
            for name in missing:
                column = schema.field(name)
                table = table.append_column(column, pa.nulls(table.num_rows, column.type))
            fields = [schema.field(name) for name in names]
            return table.select(list(names)).cast(pa.schema(fields))
    except FileNotFoundError:
        raise RowsNotKeptError(f"the rows of {whose} were not kept: {path} is missing") from None
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise StoreError(
            f"{path} is damaged and cannot be read: {_get_first_line(error)}; "
            f"remove it to continue without the rows of {whose}"
        ) from error


def make_arrow_schema(columns: Iterable[RequestColumn | TableColumn]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    fields = []
    for column in columns:
        arrow_type = _ARROW_TYPES.get(column.arrow_type, column.arrow_type)
        fields.append((column.name, arrow_type))
    return pa.schema(fields)


class NewerFormatError(ValueError):
    """A record of a newer bitbench."""


def parse_record(raw: bytes, kind: type[R], newest: int, where: str, advice: str) -> R:
    """Parse a record. Raise StoreError with its position, the damage and the remedy."""
    try:
        return _check_record(raw, kind, newest)
    except NewerFormatError as error:
        raise StoreError(
            f"{where} was written by a newer bitbench ({error}); update bitbench"
        ) from error
    except ValueError as error:
        raise StoreError(
            f"{where} is damaged and cannot be read: {_describe_damage(error)}; {advice}"
        ) from error


def _check_record(raw: bytes, kind: type[R], newest: int) -> R:
    """Parse and check a record. Raise ValueError, which `_describe_damage` puts into words."""
    if len(raw) > LARGEST_RECORD_BYTES:
        raise ValueError(f"it has more than {show_bytes(LARGEST_RECORD_BYTES)}")
    content = from_json(raw, allow_inf_nan=False)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    version = content.get("format", newest)
    if type(version) is not int:
        raise ValueError("`format` is not a whole number")
    if version > newest:
        raise NewerFormatError(f"record format {version}, this one knows {newest}")
    record = kind.model_validate(content, context=RECORDED)
    started_at = getattr(record, "started_at", None)
    if started_at is not None:
        datetime.fromisoformat(started_at)  # durations of a study are counted from it
    return record


def refuse_reading_mixed_machines(lock: Lock, folder: Path) -> None:
    """Raise NotComparableError if machines differ in class, since results would mix them."""
    for name, facts in lock.hosts.items():
        if differing := lock.host.differences(facts):
            raise NotComparableError(
                f"{folder} has records of machines of different classes: {name} differs in "
                f"{', '.join(differing)}; "
                "run the study on machines of one class, into another folder"
            )


def refuse_reading_unplanned_points(
    plan: Plan, trials: Iterable[TrialRecord], folder: Path
) -> None:
    """Raise StoreError for a point whose engine, variant or workload is not in the plan."""
    engines = {setup.name for setup in plan.study.engines}
    variants = {variant.name for variant in plan.variants}
    workloads = {workload.name for workload in plan.study.workloads}
    points = [("lock.json", point) for point in plan.points]
    points += [("lock.json", refusal.point) for refusal in plan.refusals]
    points += [(f"trials.jsonl, trial {trial.id},", trial.point) for trial in trials]
    for source, point in points:
        config = point.config
        if config.engine in engines and config.variant in variants and point.workload in workloads:
            continue
        raise StoreError(
            f"{source} in {folder} is about {point.name}, which the study in lock.json does not "
            "have; restore lock.json or remove what does not belong to it"
        )


def _describe_damage(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}"
    return _get_first_line(error)


def _get_first_line(error: Exception) -> str:
    message = str(error).strip() or type(error).__name__
    return message.splitlines()[0].rstrip(".")


def _make_unreadable_error(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} cannot be read ({error.strerror}); make it readable, or restore it from a copy"
    )
