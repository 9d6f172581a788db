"""Which files of a hub's repository are a model, and whether one is what the hub says it is."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from bitbench.models.folder import MANIFEST
from bitbench.models.hub_reference import HubReference
from bitbench.util.errors import ModelError

# Of the repository's own folder; what lies below it are other forms of the same model. No pickles, and no code.
_BESIDE_WEIGHTS = ("*.json", "*.jinja", "*.tiktoken", "tokenizer.model", "*.model.v3", "merges.txt", "vocab.txt")
_WEIGHTS = ("model*.safetensors", "*.safetensors")  # the first that fits: others beside it are copies or adapters
_SAFE_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*/)*[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
_MOST_NAMED = 12  # GGUF files in a sentence


@dataclass(frozen=True)
class HubFile:
    name: str  # its path in the repository
    size_bytes: int
    sha256: str | None = None  # of a large file
    git_hash: str | None = None  # of a small one


def listed_files(listed: Sequence[Mapping[str, object]]) -> list[HubFile]:
    """As a hub lists them. Raises ValueError, without the hub's words: they may repeat what it was sent."""
    files = []
    for entry in listed:
        name, size = entry["name"], entry["size_bytes"]
        sha256, git_hash = _hash(entry["sha256"], 64), _hash(entry["git_hash"], 40)
        if not isinstance(name, str) or not isinstance(size, int) or size < 0:
            raise ValueError("a name or a size is none")
        files.append(HubFile(name, size, sha256, git_hash))
    if len({file.name for file in files}) != len(files):
        raise ValueError("a file is in it twice")
    return files


def _hash(said: object, digits: int) -> str | None:
    if said is None or (isinstance(said, str) and re.fullmatch(rf"[0-9a-f]{{{digits}}}", said)):
        return said
    raise ValueError("a hash is none")


def choose_files(files: Sequence[HubFile], reference: HubReference) -> tuple[HubFile, ...]:
    """The weights with what is needed to load them, or the GGUF file that the reference names; raises ModelError."""
    usual = [file for file in files if _SAFE_NAME.fullmatch(file.name) and file.name != MANIFEST]  # ours, not theirs
    if reference.file is not None:
        return _chosen_gguf(usual, reference)
    top = [file for file in usual if "/" not in file.name]
    for pattern in _WEIGHTS:
        if weights := [file for file in top if fnmatch(file.name, pattern)]:
            return (*weights, *(file for file in top if any(fnmatch(file.name, like) for like in _BESIDE_WEIGHTS)))
    if any(file.name.endswith(".gguf") for file in usual):
        raise ModelError(f"{reference} is a GGUF repository; {_advice(usual, reference)}")
    raise ModelError(
        f"{reference} has no .safetensors file; bitbench downloads no pickled weights, which can run code. "
        "Look for a repository with safetensors."
    )


def find_damage(file: HubFile, path: Path, sha256: str) -> str | None:
    """What tells this file from the hub's, or None. `sha256` is that of its content."""
    if file.sha256 is not None:
        return None if sha256 == file.sha256 else f"its sha256 is {sha256}, the hub's is {file.sha256}"
    if file.git_hash is None:
        return None
    found = _git_hash(path)
    return None if found == file.git_hash else f"its git hash is {found}, the hub's is {file.git_hash}"


def _chosen_gguf(files: Sequence[HubFile], reference: HubReference) -> tuple[HubFile, ...]:
    ggufs = [file for file in files if file.name.endswith(".gguf")]
    matching = [file for file in ggufs if _is_meant(file.name, reference.file or "")]
    whole = {file.name.removesuffix(PurePosixPath(file.name).name) + _without_part(file.name) for file in matching}
    if len(whole) != 1:
        problem = "several GGUF files match" if matching else "no GGUF file matches"
        raise ModelError(f"{problem} {reference}; {_advice(matching or ggufs, reference)}")
    return tuple(sorted(matching, key=lambda file: file.name))


def _is_meant(name: str, wanted: str) -> bool:
    whole = _without_part(name)
    is_type = re.search(rf"(?:^|[-_.]){re.escape(wanted)}$", whole, re.IGNORECASE) is not None
    return is_type or wanted in (name, PurePosixPath(name).name)


def _without_part(name: str) -> str:
    """One name for all files that a large model is split into."""
    return _SPLIT.sub("", PurePosixPath(name).stem)


def _advice(files: Sequence[HubFile], reference: HubReference) -> str:
    names = sorted({_without_part(file.name) for file in files if file.name.endswith(".gguf")})
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    listed = ", ".join(names[:_MOST_NAMED]) or "none"
    return f"name one of its files as {reference.repository}:TYPE (it has {listed}{more})."


def _git_hash(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
