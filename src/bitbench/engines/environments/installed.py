"""Environments as they lie on disk, read from their manifests without starting their Python."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bitbench.util.errors import EngineEnvironmentError
from bitbench.util.safe_files import SafeFolder, read_bytes

_MANIFEST = "bitbench-environment.json"  # written last: a folder without it was interrupted


@dataclass(frozen=True)
class InstalledEnvironment:
    """`complete` is False where there is none yet, or an interrupted one."""

    name: str
    path: Path
    complete: bool
    lock: str | None = None  # file name of the lock it was made from
    lock_hash: str | None = None
    installer: str | None = None
    python: str | None = None
    seconds: float | None = None  # that its creation took
    size_bytes: int | None = None
    prebuilt: str | None = None  # what was taken instead of compiling it: which version, for which processors
    versions: dict[str, str] = field(default_factory=dict)


def list_environments(home: Path, known: Iterable[str] = ()) -> tuple[InstalledEnvironment, ...]:
    """Those on disk and those that are `known` and could be made; `complete` tells them apart."""
    on_disk = {path.name for path in (home / "envs").glob("*") if path.is_dir()}
    folders = [folder_of(name, home) for name in sorted({*known, *on_disk})]
    return tuple(read_manifest(path) or InstalledEnvironment(path.name, path, complete=False) for path in folders)


def is_foreign(name: str) -> bool:
    """Whether it is the path of an environment that somebody else made, or of its python."""
    return Path(name).is_absolute()


def python_of(name: str, home: Path) -> Path:
    """The interpreter of an environment; raises EngineEnvironmentError where there is none."""
    if is_foreign(name):
        return _python_at(Path(name))
    folder = folder_of(name, home)
    if read_manifest(folder):
        return python_in(folder)
    state = "is incomplete" if folder.exists() else "is not installed"
    raise EngineEnvironmentError(
        f"The environment {name} {state} in {folder}; create it with: bitbench env create {name}"
    )


def versions(name: str, home: Path) -> dict[str, str]:
    """Package versions of an environment; raises EngineEnvironmentError where there is none."""
    python = python_of(name, home)
    return versions_in(python.parent.parent if is_foreign(name) else folder_of(name, home))


def _python_at(place: Path) -> Path:
    """The python of a foreign environment, not the one that its link leads to: that one has other packages."""
    python = python_in(place) if place.is_dir() else place
    if python.is_file() and os.access(python, os.X_OK):
        return python
    raise EngineEnvironmentError(f"{place} is no virtual environment, and no python of one.")


def folder_of(name: str, home: Path) -> Path:
    return home.absolute() / "envs" / name


def python_in(folder: Path) -> Path:
    return folder / "bin" / "python"


def versions_in(folder: Path) -> dict[str, str]:
    """From the names of the packages' metadata folders."""
    names = sorted(path.stem for path in folder.glob("lib/python*/site-packages/*.dist-info"))
    pairs = (name.rpartition("-") for name in names)
    return {plain_name(package): version for package, _, version in pairs}


def plain_name(package: str) -> str:
    """As locks and manifests spell it."""
    return package.lower().replace("_", "-")


def read_manifest(folder: Path) -> InstalledEnvironment | None:
    try:
        content = json.loads(read_bytes(folder / _MANIFEST))
        return InstalledEnvironment(**content | {"path": folder})
    except (OSError, ValueError, TypeError):  # TypeError: written by another version of bitbench
        return None


def write_manifest(made: InstalledEnvironment) -> None:
    content = asdict(made) | {"path": str(made.path)}
    SafeFolder(made.path).write(_MANIFEST, json.dumps(content, indent=2) + "\n")
