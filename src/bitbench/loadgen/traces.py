"""Recorded traces: when requests came and how long they and their answers were.

Three public layouts, recognised by their first line:
- Azure's LLM inference traces: CSV with TIMESTAMP (date and time), ContextTokens, GeneratedTokens
- BurstGPT: CSV with Timestamp (seconds), Model, Request tokens, Response tokens, Total tokens, Log Type
- Mooncake: JSON lines with timestamp (milliseconds), input_length, output_length and, as a rule, hash_ids, which name
  the blocks of 512 tokens that a prompt is made of: where two prompts begin with the same ids, they begin alike
"""

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from bitbench.util.errors import StudyFileError
from bitbench.util.text_file import UnreadableFileError, read_text_file

LARGEST_FILE_BYTES = 2**30  # 20 million requests of 50 bytes, twice as many as a trial may have
MOONCAKE_BLOCK_TOKENS = 512


class TraceRow(NamedTuple):
    at_s: float  # from the first request of the trace
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  # ids of the blocks of MOONCAKE_BLOCK_TOKENS that the prompt begins with


class _Columns(NamedTuple):
    """How a CSV layout calls its columns, and how it writes a time."""

    time: str
    input_tokens: str
    output_tokens: str
    seconds: Callable[[str], float]


def read_trace(path: Path) -> Sequence[TraceRow]:
    """The requests in the order of their times, the first at zero; raises StudyFileError with the line that is wrong.

    Requests without input or output tokens are skipped: BurstGPT records failed ones this way.
    """
    try:
        state = path.stat()
    except OSError as problem:
        raise StudyFileError(f"the trace {path} cannot be read: {problem.strerror}") from problem
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)  # every trial replays it; a changed file is another one
def _read(path: Path, changed_ns: int, size: int) -> Sequence[TraceRow]:  # noqa: ARG001
    try:
        lines = read_text_file(path, largest_bytes=LARGEST_FILE_BYTES).splitlines()
    except UnreadableFileError as problem:
        raise StudyFileError(f"the trace {path} cannot be read: {problem}") from problem
    rows = [row for row in _rows(path, lines) if row.input_tokens and row.output_tokens]
    if not rows:
        raise StudyFileError(f"the trace {path} contains no request with input and output tokens")
    rows.sort(key=lambda row: row.at_s)
    return [row._replace(at_s=row.at_s - rows[0].at_s) for row in rows]


def _rows(path: Path, lines: Sequence[str]) -> Iterator[TraceRow]:
    header = lines[0] if lines else ""
    is_json = header.lstrip().startswith("{")
    layout = None if is_json else _csv_layout(path, header)
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (layout is not None and number == 1):
            continue
        try:
            yield _mooncake_row(line) if layout is None else _csv_row(line, *layout)
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError, csv.Error) as problem:
            missing = f"the field {problem} is missing" if isinstance(problem, KeyError) else str(problem)
            raise StudyFileError(f"the trace {path}, line {number}: {missing}") from problem


def _csv_layout(path: Path, header: str) -> tuple[_Columns, dict[str, int]]:
    names = [name.strip() for name in next(csv.reader([header]), [])]
    for columns in _CSV_LAYOUTS:
        if {columns.time, columns.input_tokens, columns.output_tokens} <= set(names):
            return columns, {name: place for place, name in enumerate(names)}
    known = "; ".join(", ".join(columns[:3]) for columns in _CSV_LAYOUTS)
    raise StudyFileError(
        f"the trace {path}, line 1: unknown header; a CSV trace has the columns {known}, "
        "and a Mooncake trace has a JSON object on each line"
    )


def _csv_row(line: str, columns: _Columns, place: dict[str, int]) -> TraceRow:
    cells = next(csv.reader([line]))
    if len(cells) < len(place):
        raise ValueError(f"{len(cells)} cells, but the header has {len(place)}")
    return TraceRow(
        columns.seconds(cells[place[columns.time]]),
        _tokens(columns.input_tokens, cells[place[columns.input_tokens]]),
        _tokens(columns.output_tokens, cells[place[columns.output_tokens]]),
    )


def _mooncake_row(line: str) -> TraceRow:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise TypeError("not a JSON object")
    blocks = row.get("hash_ids") or []
    if not isinstance(blocks, list) or not all(isinstance(block, int) and block >= 0 for block in blocks):
        raise TypeError("hash_ids is not a list of whole numbers")
    return TraceRow(
        _seconds(str(row["timestamp"])) / 1000,
        _tokens("input_length", row["input_length"]),
        _tokens("output_length", row["output_length"]),
        tuple(blocks),
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a time")
    return value


def _date_seconds(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a date and time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _tokens(name: str, value: str | int) -> int:
    try:
        count = int(value)
    except (ValueError, TypeError, OverflowError):
        count = -1
    if count < 0:
        raise ValueError(f"{name} is {value!r}, not a number of tokens")
    return count


_CSV_LAYOUTS = (
    _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", _date_seconds),  # Azure
    _Columns("Timestamp", "Request tokens", "Response tokens", _seconds),  # BurstGPT
)
