"""The files that workloads name: texts and traces.

They are read and checked before anything starts, and hashed so that a later run notices a change.
"""

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

Messages = list[dict[str, str]]  # role and content, as the chat endpoint takes them
Text = str | Messages

# ShareGPT's conversations, the largest texts in use, have two thirds of this. For a trace it is 20
# million requests of 50 bytes, twice as many as a trial may have.
LARGEST_FILE_BYTES = 2**30

_PARAGRAPH_END = re.compile(r"\n\s*\n")
_HUMAN = ("human", "user")


Item = TypeVar("Item")


def _read_once(
    path: Path, kind: str, parse: Callable[[Path, str], Sequence[Item]]
) -> Sequence[Item]:
    """Return the parsed items of a file, from a cache if the file has not changed.

    Raise StudyFileError if it cannot be read.
    """
    try:
        state = path.stat()
        items: Sequence[Item] = _read(path, parse, state.st_mtime_ns, state.st_size)
    except OSError as problem:
        raise StudyFileError(f"the {kind} {path} cannot be read: {problem.strerror}") from problem
    except UnreadableFileError as problem:
        raise StudyFileError(f"the {kind} {path} cannot be read: {problem}") from problem
    return items


@lru_cache(maxsize=8)  # every trial reads the files of its workload
def _read(
    path: Path,
    parse: Callable[[Path, str], Json],
    changed_ns: int,  # noqa: ARG001
    size: int,  # noqa: ARG001
) -> Json:
    return parse(path, read_text_file(path, largest_bytes=LARGEST_FILE_BYTES))


def read_texts(path: Path) -> Sequence[Text]:
    """Return every prompt of the file, in order. Raise StudyFileError with the wrong line or item.

    The layout follows from the content. JSON lines have objects with `prompt`, `text`, `messages`
    or ShareGPT's `conversations`. A JSON list has such objects, too, as ShareGPT is published. Any
    other content is plain text with a prompt per paragraph.
    """
    return _read_once(path, "texts", _parse_texts)


def _parse_texts(path: Path, content: str) -> Sequence[Text]:
    texts = []
    for position, item in _iter_items(path, content):
        try:
            text = _parse_text(item)
        except (TypeError, KeyError) as problem:
            raise StudyFileError(f"the texts {path}, {position}: {problem}") from problem
        if text:
            texts.append(text)
    if not texts:
        raise StudyFileError(f"the texts {path} contain no prompt")
    return texts


def _iter_items(path: Path, content: str) -> Iterator[tuple[str, Json]]:
    """Yield each item with a name for its position, such as `line 3`."""
    start = content.lstrip()[:1]
    if start == "[":
        try:
            items = json.loads(content)
        except (ValueError, RecursionError) as problem:
            raise StudyFileError(
                f"the texts {path} start like a JSON list but are not valid JSON: {problem}"
            ) from problem
        for number, item in enumerate(items, start=1):
            yield f"item {number}", item
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
        for number, paragraph in enumerate(_PARAGRAPH_END.split(content), start=1):
            yield f"paragraph {number}", paragraph.strip()


def _parse_text(item: Json) -> Text | None:
    """Return the prompt of an item.

    Return None if it asks nothing, such as a conversation that begins with an answer.
    """
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
        return _parse_messages(item["messages"])
    if "conversations" in item:
        return _find_first_question(item["conversations"])
    raise TypeError("no field `prompt`, `text`, `messages` or `conversations`")


def _parse_messages(messages: Json) -> Messages | None:
    """Return the messages up to the last question, without the answer to it."""
    turns = _parse_turns(messages, "messages", "role", "content")
    while turns and turns[-1][0] != "user":
        turns.pop()
    return [{"role": role, "content": content} for role, content in turns] or None


def _find_first_question(conversations: Json) -> str | None:
    turns = _parse_turns(conversations, "conversations", "from", "value")
    if not turns or turns[0][0] not in _HUMAN:
        return None
    return turns[0][1]


def _parse_turns(items: Json, name: str, role_key: str, text_key: str) -> list[tuple[str, str]]:
    """Return the role and text of each item. Raise TypeError if an item lacks one."""
    problem = f"`{name}` is not a list of objects with `{role_key}` and `{text_key}`"
    if not isinstance(items, list):
        raise TypeError(problem)
    turns: list[tuple[str, str]] = []
    for item in items:
        if not isinstance(item, dict):
            raise TypeError(problem)
        role = item.get(role_key)
        text = item.get(text_key)
        if not isinstance(role, str) or not isinstance(text, str):
            raise TypeError(problem)
        turns.append((role, text))
    return turns


MOONCAKE_BLOCK_TOKENS = 512


class TraceRow(NamedTuple):
    """A request of a trace."""

    at_s: float  # from the first request of the trace
    input_tokens: int
    output_tokens: int
    # Ids of the blocks of MOONCAKE_BLOCK_TOKENS that the prompt begins with.
    blocks: tuple[int, ...] = ()


def read_trace(path: Path) -> Sequence[TraceRow]:
    """Return the requests in order of time, the first at zero.

    The layout is Mooncake's: JSON lines with timestamp (milliseconds), input_length, output_length
    and usually hash_ids. These name the blocks of 512 tokens that a prompt consists of. Prompts
    that begin with the same ids begin with the same tokens. Requests without input or output tokens
    are skipped. Raise StudyFileError with the line that is wrong.
    """
    return _read_once(path, "trace", _parse_trace)


def _parse_trace(path: Path, content: str) -> Sequence[TraceRow]:
    rows: list[TraceRow] = []
    for row in _iter_rows(path, content.splitlines()):
        if row.input_tokens and row.output_tokens:
            rows.append(row)
    if not rows:
        raise StudyFileError(f"the trace {path} contains no request with input and output tokens")
    rows.sort(key=lambda row: row.at_s)
    first_s = rows[0].at_s
    return [row._replace(at_s=row.at_s - first_s) for row in rows]


def _iter_rows(path: Path, lines: Sequence[str]) -> Iterator[TraceRow]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _parse_mooncake_row(line)
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as problem:
            cause = str(problem)
            if isinstance(problem, KeyError):
                cause = f"the field {problem} is missing"
            raise StudyFileError(f"the trace {path}, line {number}: {cause}") from problem


def _parse_mooncake_row(line: str) -> TraceRow:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise TypeError("not a JSON object")
    blocks = row.get("hash_ids") or []
    if not isinstance(blocks, list):
        raise TypeError("hash_ids is not a list of whole numbers")
    for block in blocks:
        if not isinstance(block, int) or block < 0:
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
    """Raise StudyFileError with the field of the study for the first file that cannot be used."""
    for index, workload in enumerate(workloads):
        for location, _ in workload.files:
            try:
                if isinstance(workload.arrival, Trace):
                    read_input_trace(workload, folder)
                else:
                    read_usable_texts(workload, folder)
            except StudyFileError as error:
                raise StudyFileError(str(error), ("workloads", index, *location)) from error


def hash_input_files(workloads: Sequence[Workload], folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its name in the study."""
    names: set[str] = set()
    for workload in workloads:
        names.update(name for _, name in workload.files)
    hashes = {}
    for name in sorted(names):
        with (folder / name).open("rb") as file:
            hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def read_usable_texts(workload: Workload, folder: Path) -> Sequence[Text]:
    """Return the prompts of a workload. Raise StudyFileError if its API does not take them."""
    assert workload.text is not None
    path = folder / workload.text.file
    texts = read_texts(path)
    if workload.api is not Api.CHAT and not all(isinstance(text, str) for text in texts):
        raise StudyFileError(f"the texts {path} contain `messages`, which need `api: chat`")
    return texts


def read_input_trace(workload: Workload, folder: Path) -> Sequence[TraceRow]:
    """Return the part of the trace that the workload replays."""
    assert isinstance(workload.arrival, Trace)
    rows = read_trace(folder / workload.arrival.file)
    if workload.duration is not None:
        end_s = workload.duration * workload.arrival.speed
        return [row for row in rows if row.at_s < end_s]
    if workload.requests is not None and len(rows) < workload.requests:
        raise StudyFileError(
            f"the trace {workload.arrival.file} has {len(rows)} requests, "
            f"but the workload needs {workload.requests}"
        )
    return rows[: workload.requests]
