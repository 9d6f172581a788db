"""A key that must turn up nowhere, the ways in which a server can write it, and the search for it."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq

# With characters that each way of writing treats in its own way; no eight in a row come up by chance.
KEY = 'sk-c4N4ry/Zq+8%7"w\\Lk=XyT1&mB9'
TELLING = 8

WRITTEN: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "capitals": str.upper,
    "percent": lambda text: quote(text, safe=""),
    "all percent": lambda text: "".join(f"%{ord(letter):02X}" for letter in text),
    "JSON": lambda text: json.dumps(text)[1:-1],
    "all JSON": lambda text: "".join(f"\\u{ord(letter):04X}" for letter in text),
    "hexadecimal": lambda text: text.encode().hex(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 of the header": lambda text: base64.b64encode(f"Bearer {text}".encode()).decode(),
    "base64 of a pair": lambda text: base64.urlsafe_b64encode(f"user:{text}!".encode()).decode(),
}


def traces(text: str) -> list[str]:
    """Eight or more characters of the key in a row, written in any of these ways, that the text holds."""
    lowered = text.lower()
    found = set()
    for name, write in WRITTEN.items():
        if name.startswith("base64"):
            whole = write(KEY).rstrip("=")[4:-4].lower()  # its ends depend on what stands beside the key
            spelled = [whole[start : start + 11] for start in range(len(whole) - 10)]
        else:
            spelled = [write(KEY[start : start + TELLING]).lower() for start in range(len(KEY) - TELLING + 1)]
        found |= {part for part in spelled if part in lowered}
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
