"""A key that must turn up nowhere, the ways in which a server can write it, and the search for it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq

# With characters that each way of writing treats in its own way; no eight in a row come up by chance.
KEY = "sk-c4N4ry_Zq+8%7wLk=XyT1&mB9"
TELLING = 8

WRITTEN: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "percent": lambda text: quote(text, safe=""),
}


def traces(text: str) -> list[str]:
    """Eight or more characters of the key in a row, written in any of these ways, that the text holds."""
    found = set()
    for write in WRITTEN.values():
        spelled = [write(KEY[start : start + TELLING]) for start in range(len(KEY) - TELLING + 1)]
        found |= {part for part in spelled if part in text}
    return sorted(found)


def traces_below(folder: Path) -> dict[str, list[str]]:
    """In the names and the contents of all files; tables are unpacked."""
    found = {str(path): traces(text) for path in sorted(folder.rglob("*")) for text in _texts(path)}
    return {name: parts for name, parts in found.items() if parts}


def _texts(path: Path) -> Iterator[str]:
    yield str(path)
    if path.is_file():
        yield path.read_bytes().decode("latin-1")
        if path.suffix == ".parquet":
            yield str(pq.read_table(path).to_pylist())
