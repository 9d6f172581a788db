"""Published studies of somebody who changes what is in them, or makes an archive by hand."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from bitbench.features.publish.archive import MANIFEST

Files = dict[str, bytes]


def files_of(archive: Path) -> Files:
    with tarfile.open(archive) as opened:
        found = {entry.name.partition("/")[2]: opened.extractfile(entry) for entry in opened}
        return {name: content.read() for name, content in found.items() if content is not None}


def write_archive(into: Path, files: Files) -> Path:
    entries = [(tarfile.TarInfo(f"study/{name}"), content) for name, content in files.items()]
    return write_entries(into, entries)


def write_entries(into: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(into, "w:gz") as archive:
        for entry, content in entries:
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return into


def forged(archive: Path, into: Path, change: Callable[[Files], object]) -> Path:
    """Other contents, with a manifest in which all hashes are right again."""
    files = files_of(archive)
    manifest = json.loads(files.pop(MANIFEST))
    change(files)
    manifest["files"] = {name: sha256(content).hexdigest() for name, content in files.items()}
    return write_archive(into, {MANIFEST: json.dumps(manifest).encode(), **files})


def edited(name: str, edit: Callable[[str], str]) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        before = files[name].decode()
        files[name] = edit(before).encode()
        assert files[name] != before.encode(), "nothing was changed"

    return change


def bomb(into: Path, stated: int, *, kind: bytes) -> Path:
    """Some kilobytes with one entry of so many zeros, or of a hundred million where nobody reads on."""
    entry = tarfile.TarInfo("study/trials.jsonl")
    entry.size, entry.type = stated, kind
    zeros = bytes(2**20)
    with gzip.open(into, "wb") as packed:
        packed.write(entry.tobuf())
        for _ in range(min(stated // len(zeros), 100)):
            packed.write(zeros)
    return into
