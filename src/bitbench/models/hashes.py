"""sha256 of large files, computed once: remembered in the home folder by path, size and time of the last change."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from bitbench.util.safe_files import SafeFolder, read_bytes

_CACHE = "models/hashes.json"


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_hashes(files: Iterable[Path], home: Path) -> dict[Path, str]:
    """Two links to one file are hashed once."""
    cache = _read(home / _CACHE)
    known, found = dict(cache), {}
    for path in files:
        state = path.stat()
        key = f"{path.resolve()}|{state.st_size}|{state.st_mtime_ns}"
        if key not in known:
            known[key] = hash_file(path)
        found[path] = known[key]
    if known != cache:
        SafeFolder(home).write(_CACHE, json.dumps(known, indent=1))
    return found


def _read(cache_file: Path) -> dict[str, str]:
    try:
        content: dict[str, str] = json.loads(read_bytes(cache_file))
    except (OSError, ValueError):
        return {}
    return content
