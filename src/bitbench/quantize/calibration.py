"""Calibration text: the user's own, or text that every Python contains. Needs no hub."""

import hashlib
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bitbench.study.base import Json
from bitbench.util.errors import QuantizeError
from bitbench.util.units import show_bytes

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".jsonl")
# 64 samples of 512 tokens are about 150 kB. A larger source was most likely chosen by mistake.
LARGEST_SOURCE_BYTES = 256 * 2**20

Document = dict[str, Json]  # {"text": …} or {"messages": [{"role": …, "content": …}, …]}


@dataclass(frozen=True)
class CalibrationText:
    """Documents in a fixed order, with their description and a hash over them."""

    description: str
    documents: tuple[Document, ...]

    @property
    def content_hash(self) -> str:
        return hashlib.sha256(self.format_jsonl().encode()).hexdigest()

    def format_jsonl(self) -> str:
        return "".join(json.dumps(document, sort_keys=True) + "\n" for document in self.documents)

    def format_text(self) -> str:
        """Return plain text for a tool. Conversations are without the model's template."""
        texts = []
        for document in self.documents:
            if "text" in document:
                texts.append(document["text"])
            else:
                texts.append("\n".join(str(message["content"]) for message in document["messages"]))
        return "\n\n".join(texts)


def read_calibration(source: Path | None) -> CalibrationText:
    """Return the text of a file or folder, or the default text.

    Raise QuantizeError if the source contains no text or is too large.
    """
    if source is None:
        return _make_default_text()
    files = _list_text_files(source)
    size_bytes = sum(path.stat().st_size for path in files)
    if size_bytes > LARGEST_SOURCE_BYTES:
        raise QuantizeError(
            f"The calibration text {source} has {show_bytes(size_bytes)}; the limit is "
            f"{show_bytes(LARGEST_SOURCE_BYTES)}, and a few hundred kilobytes are enough: "
            "name a part of it."
        )
    documents: list[Document] = []
    for path in files:
        documents += _iter_documents(path)
    if not documents:
        raise QuantizeError(
            f"The calibration text {source} is empty; name a file with a few pages of text."
        )
    kind = "conversations" if any("messages" in document for document in documents) else "documents"
    return CalibrationText(
        f"{source.name}: {len(documents)} {kind}, {show_bytes(size_bytes)}", tuple(documents)
    )


def _make_default_text() -> CalibrationText:
    """Return the language reference that `help()` shows.

    It is English prose, and the same for one Python version.
    """
    from pydoc_data.topics import topics

    documents = tuple({"text": topics[name]} for name in sorted(topics))
    size_bytes = sum(len(document["text"].encode()) for document in documents)
    description = (
        f"language reference that ships with Python {platform.python_version()} (pydoc topics): "
        f"{len(documents)} documents, {show_bytes(size_bytes)}"
    )
    return CalibrationText(description, documents)


def _list_text_files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise QuantizeError(
            f"No calibration text {source}; name a text file, a folder of them, or a JSONL file."
        )
    files = []
    for path in sorted(source.rglob("*")):
        if path.suffix in TEXT_SUFFIXES and path.is_file():
            files.append(path)
    if not files:
        raise QuantizeError(
            f"The folder {source} contains no text for calibration; "
            f"bitbench reads files that end in {', '.join(TEXT_SUFFIXES)}."
        )
    return files


def _iter_documents(path: Path) -> Iterator[Document]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = "\0"  # the mark of a binary file, which is refused below
    except OSError as error:
        raise QuantizeError(
            f"The calibration text {path} cannot be read: {error.strerror}."
        ) from error
    if "\0" in text:
        raise QuantizeError(
            f"The calibration file {path} is not text; save it as UTF-8 text or JSONL."
        )
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield _parse_document(line, f"{path}:{number}")
    elif text.strip():
        yield {"text": text}


def _parse_document(line: str, where: str) -> Document:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise QuantizeError(
            f"{where}: this line is not JSON ({error}); each line of a JSONL file must be."
        ) from error
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        return {"text": content["text"]}
    messages = content.get("messages") if isinstance(content, dict) else None
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise QuantizeError(
            f'{where}: each line must be {{"text": …}} or '
            '{"messages": [{"role": …, "content": …}, …]}, as text.'
        )
    turns = [{"role": message["role"], "content": message["content"]} for message in messages]
    return {"messages": turns}


def _is_message(message: Json) -> bool:
    if not isinstance(message, dict):
        return False
    return isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
