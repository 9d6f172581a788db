"""Prompts that people wrote, from a file on this machine.

The layout is recognised by the content: JSON lines whose objects have `prompt`, `text`, `messages` or ShareGPT's
`conversations`; one JSON list of such objects, as ShareGPT is published; or plain text, a prompt per paragraph.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from bitbench.study.base import Json
from bitbench.study.prompts import TextPrompts
from bitbench.util.errors import StudyFileError
from bitbench.util.text_file import UnreadableFileError, read_text_file

Messages = list[dict[str, str]]  # as the chat endpoint takes them: role and content
Text = str | Messages

LARGEST_FILE_BYTES = 2**30  # ShareGPT's conversations, the largest in use, have two thirds of it

_PARAGRAPH_END = re.compile(r"\n\s*\n")
_HUMAN = ("human", "user")


def read_texts(path: Path) -> Sequence[Text]:
    """Every prompt of the file, in its order; raises StudyFileError with the place that is wrong."""
    try:
        state = path.stat()
    except OSError as problem:
        raise StudyFileError(f"the texts {path} cannot be read: {problem.strerror}") from problem
    return _read(path, state.st_mtime_ns, state.st_size)


def choose_texts(texts: Sequence[Text], wanted: TextPrompts) -> list[Text]:
    """Those that are long enough, cut to what is allowed. Of messages, the last one decides and is cut."""
    chosen = []
    for text in texts:
        words = text if isinstance(text, str) else text[-1]["content"]
        if len(words) >= wanted.min_characters:
            cut = words[: wanted.max_characters]
            chosen.append(cut if isinstance(text, str) else [*text[:-1], {**text[-1], "content": cut}])
    return chosen


@lru_cache(maxsize=4)  # every trial takes from it; a changed file is another one
def _read(path: Path, changed_ns: int, size: int) -> Sequence[Text]:  # noqa: ARG001
    try:
        content = read_text_file(path, largest_bytes=LARGEST_FILE_BYTES)
    except UnreadableFileError as problem:
        raise StudyFileError(f"the texts {path} cannot be read: {problem}") from problem
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
        for number, line in enumerate(content.splitlines(), start=1):
            if line.strip():
                try:
                    yield f"line {number}", json.loads(line)
                except (ValueError, RecursionError) as problem:
                    raise StudyFileError(f"the texts {path}, line {number}: not JSON: {problem}") from problem
    else:
        paragraphs = _PARAGRAPH_END.split(content)
        yield from ((f"paragraph {number}", text.strip()) for number, text in enumerate(paragraphs, start=1))


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
        isinstance(item, dict) and isinstance(item.get(who), str) and isinstance(item.get(what), str) for item in items
    ):
        raise TypeError(f"`{name}` is not a list of objects with `{who}` and `{what}`")
    return [(item[who], item[what]) for item in items]
