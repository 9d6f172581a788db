"""Records as they lie on disk: what is damaged is named by file and line, with what to do about it."""

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
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
from bitbench.util.text import printable
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
    """Return every record of a file, in its order; none where the file does not exist. An id occurs once."""
    advice = "remove that line to continue without it"
    found: dict[str, Line] = {}
    for number, raw in _complete_lines(path):
        where = f"{path.name}:{number} in {path.parent}"
        record = parse_record(raw, kind, newest, where, advice)
        if record.id in found:
            cause = f"the id {printable(record.id)} occurs twice"
            raise StoreError(f"{where} is damaged and cannot be read: {cause}; {advice}")
        found[record.id] = record
    return list(found.values())


def parse_next_record_number(ids: Iterable[str]) -> int:
    """The number after the highest of `t00001`, `t00002`, …: also where a line between them was removed."""
    return 1 + max(
        (int(number[1:]) for number in ids if number[1:].isascii() and number[1:].isdigit()),
        default=0,
    )


def _complete_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers. One that does not end is still being written, or was torn by a kill: it is no
    record."""
    try:
        with open_to_read(path) as file:
            for number, line in enumerate(
                iter(lambda: file.readline(LARGEST_RECORD_BYTES + 1), b""), start=1
            ):
                if line.endswith(b"\n") or len(line) > LARGEST_RECORD_BYTES:
                    yield number, line
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(path, error) from error


def read_record_file(path: Path, kind: type[R], newest: int, advice: str) -> R:
    """A file that is one record. `advice`: what to do where it is damaged."""
    try:
        with open_to_read(path) as file:
            raw = file.read(min(os.fstat(file.fileno()).st_size, LARGEST_RECORD_BYTES) + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    return parse_record(raw, kind, newest, str(path), advice)


def read_rows_strictly(
    path: Path, kinds: Sequence[RequestColumn], names: Sequence[str] | None, whose: str
) -> pa.Table:
    """Rows of a record; only the columns of these names where some are given. `whose`: `trial
    t00001`."""
    schema = strict_reader_schema(kinds)
    wanted = schema.names if names is None else list(names)
    try:
        with open_to_read(path) as file:
            kept = pq.ParquetFile(file)
            later = [
                kind.name
                for kind in kinds
                if kind.is_later and kind.name not in kept.schema_arrow.names
            ]
            table = kept.read(columns=[name for name in wanted if name not in later])
            for name in later:
                table = table.append_column(
                    schema.field(name), pa.nulls(table.num_rows, schema.field(name).type)
                )
            return table.select(wanted).cast(pa.schema([schema.field(name) for name in wanted]))
    except FileNotFoundError:
        raise RowsNotKeptError(f"the rows of {whose} were not kept: {path} is missing") from None
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise StoreError(
            f"{path} is damaged and cannot be read: {_first_line(error)}; remove it to continue without the rows of "
            f"{whose}"
        ) from error


def strict_reader_schema(columns: Iterable[RequestColumn | TableColumn]) -> pa.Schema:
    return pa.schema(
        [
            (column.name, _ARROW_TYPES.get(column.arrow_type, column.arrow_type))
            for column in columns
        ]
    )


class NewerFormatError(ValueError):
    """A record of a bitbench that came after this one."""


def parse_record(raw: bytes, kind: type[R], newest: int, where: str, advice: str) -> R:
    """Raises StoreError with the place, what is wrong there, and what to do."""
    try:
        return _checked_record(raw, kind, newest)
    except NewerFormatError as error:
        raise StoreError(
            f"{where} was written by a newer bitbench ({error}); update bitbench"
        ) from error
    except ValueError as error:
        raise StoreError(
            f"{where} is damaged and cannot be read: {_cause_of_damage(error)}; {advice}"
        ) from error


def _checked_record(raw: bytes, kind: type[R], newest: int) -> R:
    """A record from disk; raises ValueError, of which `_cause_of_damage` makes words."""
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
    if (
        started_at := getattr(record, "started_at", None)
    ) is not None:  # durations of a study are counted from it
        datetime.fromisoformat(started_at)
    return record


def refuse_reading_mixed_machines(lock: Lock, folder: Path) -> None:
    """Figures of machines that differ would be averaged as if they were one's."""
    for name, facts in lock.hosts.items():
        if differing := lock.host.differences(facts):
            raise NotComparableError(
                f"{folder} has records of machines of different classes: {name} differs in {', '.join(differing)}; "
                "run the study on machines of one class, into another folder"
            )


def refuse_reading_unplanned_points(
    plan: Plan, trials: Iterable[TrialRecord], folder: Path
) -> None:
    """Raises StoreError for a point whose engine, variant or workload is nowhere in the plan."""
    engines = {setup.name for setup in plan.study.engines}
    variants = {variant.name for variant in plan.variants}
    workloads = {workload.name for workload in plan.study.workloads}
    planned = (
        ("lock.json", point)
        for point in (*plan.points, *(refusal.point for refusal in plan.refusals))
    )
    recorded = ((f"trials.jsonl, trial {trial.id},", trial.point) for trial in trials)
    for place, point in chain(planned, recorded):
        config = point.config
        if config.engine in engines and config.variant in variants and point.workload in workloads:
            continue
        raise StoreError(
            f"{place} in {folder} is about {point.name}, which the study in lock.json does not have; restore lock.json "
            "or remove what does not belong to it"
        )


def _cause_of_damage(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} cannot be read ({error.strerror}); make it readable, or restore it from a copy"
    )
