"""The files that workloads name, texts and traces: read, checked before anything starts, and hashed so that a
changed one is noticed."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from bitbench.study.base import Json
from bitbench.study.workload import Api, Trace, Workload
from bitbench.util.errors import StudyFileError
from bitbench.util.files import UnreadableFileError, read_text_file

Messages = list[dict[str, str]]  # as the chat endpoint takes them: role and content
Text = str | Messages

# ShareGPT's conversations, the largest texts in use, have two thirds of it; as a trace it is 20 million requests of 50
# bytes, twice as many as a trial may have.
LARGEST_FILE_BYTES = 2**30

_PARAGRAPH_END = re.compile(r"\n\s*\n")
_HUMAN = ("human", "user")


Item = TypeVar("Item")


def _read_once(
    path: Path, what: str, parse: Callable[[Path, str], Sequence[Item]]
) -> Sequence[Item]:
    try:
        state = path.stat()
        items: Sequence[Item] = _read(path, parse, state.st_mtime_ns, state.st_size)
    except OSError as problem:
        raise StudyFileError(f"the {what} {path} cannot be read: {problem.strerror}") from problem
    except UnreadableFileError as problem:
        raise StudyFileError(f"the {what} {path} cannot be read: {problem}") from problem
    return items


@lru_cache(maxsize=8)  # every trial takes from it; a changed file is another one
def _read(path: Path, parse: Callable[[Path, str], Json], changed_ns: int, size: int) -> Json:  # noqa: ARG001
    return parse(path, read_text_file(path, largest_bytes=LARGEST_FILE_BYTES))


def read_texts(path: Path) -> Sequence[Text]:
    """Every prompt of the file, in its order; raises StudyFileError with the place that is wrong.

    The layout is recognised by the content: JSON lines whose objects have `prompt`, `text`, `messages` or ShareGPT's
    `conversations`; one JSON list of such objects, as ShareGPT is published; or plain text, a prompt per paragraph.
    """
    return _read_once(path, "texts", _parse_texts)


def _parse_texts(path: Path, content: str) -> Sequence[Text]:
    texts = []
    for where, item in _items(path, content):
        try:
            text = _text(item)
        except (TypeError, KeyError) as problem:
            raise StudyFileError(f"the texts {path}, {where}: {problem}") from problem
        if text:
            texts.append(text)
    if not texts:
        raise StudyFileError(f"the texts {path} contain no prompt")
    return texts


def _items(path: Path, content: str) -> Iterator[tuple[str, Json]]:
    """Each with the words for its place."""
    start = content.lstrip()[:1]
    if start == "[":
        try:
            whole = json.loads(content)
        except (ValueError, RecursionError) as problem:
            raise StudyFileError(
                f"the texts {path} start like a JSON list but are not valid JSON: {problem}"
            ) from problem
        yield from ((f"item {number}", item) for number, item in enumerate(whole, start=1))
    elif start == "{":
        for number, line in enumerate(content.split("\n"), start=1):
            if line.strip():
                try:
                    yield f"line {number}", json.loads(line)
                except (ValueError, RecursionError) as problem:
                    raise StudyFileError(
                        f"the texts {path}, line {number}: not JSON: {problem}"
                    ) from problem
    else:
        paragraphs = _PARAGRAPH_END.split(content)
        yield from (
            (f"paragraph {number}", text.strip()) for number, text in enumerate(paragraphs, start=1)
        )


def _text(item: Json) -> Text | None:
    """None for an item that asks nothing, such as a conversation that begins with an answer."""
    if isinstance(item, str):
        return item
    if not isinstance(item, dict):
        raise TypeError("neither a text nor an object")
    for name in ("prompt", "text"):
        if name in item:
            if not isinstance(item[name], str):
                raise TypeError(f"`{name}` is not a text")
            return str(item[name])
    if "messages" in item:
        return _messages(item["messages"])
    if "conversations" in item:
        return _first_question(item["conversations"])
    raise TypeError("no field `prompt`, `text`, `messages` or `conversations`")


def _messages(messages: Json) -> Messages | None:
    """Up to the last question: what comes after it would be the answer."""
    known = _turns(messages, "messages", "role", "content")
    while known and known[-1][0] != "user":
        known.pop()
    return [{"role": role, "content": content} for role, content in known] or None


def _first_question(turns: Json) -> str | None:
    known = _turns(turns, "conversations", "from", "value")
    return known[0][1] if known and known[0][0] in _HUMAN else None


def _turns(items: Json, name: str, who: str, what: str) -> list[tuple[str, str]]:
    if not isinstance(items, list) or not all(
        isinstance(item, dict)
        and isinstance(item.get(who), str)
        and isinstance(item.get(what), str)
        for item in items
    ):
        raise TypeError(f"`{name}` is not a list of objects with `{who}` and `{what}`")
    return [(item[who], item[what]) for item in items]


MOONCAKE_BLOCK_TOKENS = 512


class TraceRow(NamedTuple):
    at_s: float  # from the first request of the trace
    input_tokens: int
    output_tokens: int
    blocks: tuple[
        int, ...
    ] = ()  # ids of the blocks of MOONCAKE_BLOCK_TOKENS that the prompt begins with


def read_trace(path: Path) -> Sequence[TraceRow]:
    """The requests in the order of their times, the first at zero; raises StudyFileError with the line that is wrong.

    Mooncake's layout: JSON lines with timestamp (milliseconds), input_length, output_length and, as a rule, hash_ids,
    which name the blocks of 512 tokens that a prompt is made of: where two begin with the same ids, they begin alike.
    Requests without input or output tokens are skipped.
    """
    return _read_once(path, "trace", _parse_trace)


def _parse_trace(path: Path, content: str) -> Sequence[TraceRow]:
    rows = [
        row for row in _rows(path, content.splitlines()) if row.input_tokens and row.output_tokens
    ]
    if not rows:
        raise StudyFileError(f"the trace {path} contains no request with input and output tokens")
    rows.sort(key=lambda row: row.at_s)
    return [row._replace(at_s=row.at_s - rows[0].at_s) for row in rows]


def _rows(path: Path, lines: Sequence[str]) -> Iterator[TraceRow]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _mooncake_row(line)
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as problem:
            missing = (
                f"the field {problem} is missing" if isinstance(problem, KeyError) else str(problem)
            )
            raise StudyFileError(f"the trace {path}, line {number}: {missing}") from problem


def _mooncake_row(line: str) -> TraceRow:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise TypeError("not a JSON object")
    blocks = row.get("hash_ids") or []
    if not isinstance(blocks, list) or not all(
        isinstance(block, int) and block >= 0 for block in blocks
    ):
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


def _tokens(name: str, value: str | int) -> int:
    try:
        count = int(value)
    except (ValueError, TypeError, OverflowError):
        count = -1
    if count < 0:
        raise ValueError(f"{name} is {value!r}, not a number of tokens")
    return count


def check_input_files(workloads: Sequence[Workload], folder: Path) -> None:
    """Raises StudyFileError, with the field that names the file, for the first that cannot be used."""
    for index, workload in enumerate(workloads):
        for field, _ in workload.files:
            try:
                if isinstance(workload.arrival, Trace):
                    input_trace_rows(workload, folder)
                else:
                    usable_texts(workload, folder)
            except StudyFileError as error:
                raise StudyFileError(str(error), ("workloads", index, *field)) from error


def hash_input_files(workloads: Sequence[Workload], folder: Path) -> dict[str, str]:
    """SHA-256 of each file by the name that the study gives it."""
    hashes = {}
    for name in sorted({name for workload in workloads for _, name in workload.files}):
        with (folder / name).open("rb") as file:
            hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def usable_texts(workload: Workload, folder: Path) -> Sequence[Text]:
    assert workload.text is not None
    path = folder / workload.text.file
    texts = read_texts(path)
    if workload.api is not Api.CHAT and not all(isinstance(text, str) for text in texts):
        raise StudyFileError(f"the texts {path} contain `messages`, which need `api: chat`")
    return texts


def input_trace_rows(workload: Workload, folder: Path) -> Sequence[TraceRow]:
    """The part of the trace that the workload replays."""
    assert isinstance(workload.arrival, Trace)
    rows = read_trace(folder / workload.arrival.file)
    if workload.duration is not None:
        return [row for row in rows if row.at_s < workload.duration * workload.arrival.speed]
    if workload.requests is not None and len(rows) < workload.requests:
        raise StudyFileError(
            f"the trace {workload.arrival.file} has {len(rows)} requests, but the workload needs {workload.requests}"
        )
    return rows[: workload.requests]
