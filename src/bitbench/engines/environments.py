"""Virtual environments in `<home>/envs/NAME`: read from their manifests, and made by pip or uv from a lock.

The description of one is `bitbench.study.environment.Environment`; nothing here knows an engine by name.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from bitbench.engines.processes import run_logged_tool, run_tool
from bitbench.study.environment import Device, Environment, OnStep
from bitbench.util.child_processes import isolated_command
from bitbench.util.errors import EngineEnvironmentError
from bitbench.util.files import SafeFolder, read_bytes
from bitbench.util.machine_faults import require_linux

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
    prebuilt: str | None = (
        None  # programs that a package brought: which version, for which processors
    )
    versions: dict[str, str] = field(default_factory=dict)


def installed_environments(
    home: Path, known: Iterable[str] = ()
) -> tuple[InstalledEnvironment, ...]:
    """Those on disk and those that are `known` and could be made; `complete` tells them apart."""
    on_disk = {path.name for path in (home / "envs").glob("*") if path.is_dir()}
    folders = [environment_folder(name, home) for name in sorted({*known, *on_disk})]
    return tuple(
        read_environment_manifest(path) or InstalledEnvironment(path.name, path, complete=False)
        for path in folders
    )


def is_foreign_environment(name: str) -> bool:
    """Whether it is the path of an environment that somebody else made, or of its python."""
    return Path(name).is_absolute()


def environment_python(name: str, home: Path) -> Path:
    """The interpreter of an environment; raises EngineEnvironmentError where there is none."""
    if is_foreign_environment(name):
        return _python_at(Path(name))
    folder = environment_folder(name, home)
    if read_environment_manifest(folder):
        return python_in(folder)
    state = "is incomplete" if folder.exists() else "is not installed"
    raise EngineEnvironmentError(
        f"The environment {name} {state} in {folder}; create it with: bitbench env create {name}"
    )


def versions(name: str, home: Path) -> dict[str, str]:
    """Package versions of an environment; raises EngineEnvironmentError where there is none."""
    python = environment_python(name, home)
    return _versions_in(
        python.parent.parent if is_foreign_environment(name) else environment_folder(name, home)
    )


def _python_at(place: Path) -> Path:
    """The python of a foreign environment, not the one that its link leads to: that one has other packages."""
    python = python_in(place) if place.is_dir() else place
    if python.is_file() and os.access(python, os.X_OK):
        return python
    raise EngineEnvironmentError(f"{place} is no virtual environment, and no python of one.")


def environment_folder(name: str, home: Path) -> Path:
    return home.absolute() / "envs" / name


def python_in(folder: Path) -> Path:
    return folder / "bin" / "python"


def _versions_in(folder: Path) -> dict[str, str]:
    """From the names of the packages' metadata folders."""
    names = sorted(path.stem for path in folder.glob("lib/python*/site-packages/*.dist-info"))
    pairs = (name.rpartition("-") for name in names)
    return {_plain_name(package): version for package, _, version in pairs}


def _plain_name(package: str) -> str:
    """As locks and manifests spell it."""
    return package.lower().replace("_", "-")


def read_environment_manifest(folder: Path) -> InstalledEnvironment | None:
    """None also where the Python that it was made with has been removed, as by an update of the system."""
    if python_in(folder).is_symlink() and not python_in(folder).exists():
        return None
    try:
        content = json.loads(read_bytes(folder / _MANIFEST))
        return InstalledEnvironment(**content | {"path": folder})
    except (OSError, ValueError, TypeError):  # TypeError: written by another version of bitbench
        return None


def write_environment_manifest(made: InstalledEnvironment) -> None:
    content = asdict(made) | {"path": str(made.path)}
    SafeFolder(made.path).write(_MANIFEST, json.dumps(content, indent=2) + "\n")


Installer = Literal["pip", "uv"]

_RECENT_LINES = 400
_TELLING = re.compile(
    r"error|cause|no matching distribution|no space left|could not|failed|×|╰", re.IGNORECASE
)
_CPU_TORCH = re.compile(r"(?:matching distribution|no version).*torch==\S+\+cpu", re.IGNORECASE)
_NOISE = re.compile(r"^\s*(WARNING|DEPRECATION|\[notice\])")


def _source_options(find_links: Sequence[str], index_url: str | None) -> Iterator[str]:
    """Where packages come from, as both installers spell it; they work in another folder than we do."""
    for place in find_links:
        yield f"--find-links={_absolute(place)}"
    if index_url:
        yield f"--index-url={_absolute(index_url)}"


def _absolute(place: str) -> str:
    return place if ":/" in place else str(Path(place).expanduser().absolute())


@dataclass(frozen=True)
class Installation:
    """What the installer says goes to the log; the rest of its settings are the user's own."""

    folder: Path
    lock: Path
    source_lock: Path | None
    installer: Installer
    sources: Sequence[str]
    log_file: Path
    on_step: OnStep

    def run(self) -> None:
        """Only what was hashed gets in, and a wheel runs no code when it is installed.

        Raises EngineEnvironmentError with the lines that say why.
        """
        self.on_step(f"creating a virtual environment with {self.installer}")
        python = python_in(self.folder)
        if self.installer == "uv":
            venv = [
                "uv",
                "venv",
                "--allow-existing",
                "--no-progress",
                f"--python={sys.executable}",
                str(self.folder),
            ]
            install = ["uv", "pip", "install", f"--python={python}", "--no-progress"]
        else:
            venv = isolated_command(sys.executable, "-m", "venv", self.folder)
            options = ("--progress-bar=off", "--no-input", "--no-compile")
            install = isolated_command(python, "-m", "pip", "install", *options)
        self._call("create", venv)
        self.on_step("installing packages")
        install += ["--require-hashes", "--no-deps", *self.sources]
        self._call("install", [*install, "--only-binary=:all:", "-r", self.lock])
        if self.source_lock is not None:
            self.on_step("building what exists as source only")
            self._call("install", [*install, "--no-build-isolation", "-r", self.source_lock])

    def _call(self, step: str, command: Sequence[str | Path]) -> None:
        with SafeFolder(self.log_file.parent).open_to_append(self.log_file.name) as log:
            code = run_logged_tool(command, log, folder=self.folder)
        if code != 0:
            recent = (
                read_bytes(self.log_file).decode(errors="replace").splitlines()[-_RECENT_LINES:]
            )
            raise EngineEnvironmentError(
                f"{self.installer} could not {step} the environment in {self.folder}: {_installer_errors(recent)} "
                f"(full log: {self.log_file.name} in that folder). {_next_step(recent)}"
            )


def _next_step(lines: Sequence[str]) -> str:
    if any(_CPU_TORCH.search(line) for line in lines):
        return "Give a folder or page with the CPU wheels of torch with --find-links."
    return "Use --find-links or --index-url for another package source."


def _installer_errors(lines: Sequence[str]) -> str:
    """The last lines that say what went wrong, in one line."""
    said = [line.strip() for line in lines if line.strip() and not _NOISE.match(line)]
    telling = [line for line in said if _TELLING.search(line)]
    return " / ".join((telling or said)[-3:]) or "it printed nothing"


_LOG = "bitbench-install.log"


def make_environment(
    environment: Environment,
    home: Path,
    *,
    device: Device,
    find_links: Sequence[str] = (),
    index_url: str | None = None,
    on_step: OnStep = lambda _: None,
) -> InstalledEnvironment:
    """Makes the environment, or returns the existing one if it was made from the same lock.

    Raises EngineEnvironmentError; what was begun is then rebuilt by the next call. Raises PlatformError elsewhere than
    on Linux, since locks list wheels for it alone.
    """
    require_linux()
    lock, folder = environment.lock_for(device), environment_folder(environment.name, home)
    source_lock = environment.source_lock
    sources = [*_source_options(find_links, index_url)]
    chosen: Installer = "pip" if shutil.which("uv") is None else "uv"
    lock_hash = hashlib.sha256(
        lock.read_bytes() + (source_lock.read_bytes() if source_lock else b"")
    ).hexdigest()
    existing = read_environment_manifest(folder)
    if existing and existing.lock_hash == lock_hash:
        return existing
    began = time.monotonic()
    kept = SafeFolder(home)
    kept.remove_folder(f"envs/{folder.name}")
    kept.make_folder(f"envs/{folder.name}")
    log_file = folder / _LOG
    Installation(folder, lock, source_lock, chosen, sources, log_file, on_step).run()
    prebuilt = (
        environment.finish(folder, log_file, device=device)
        if environment.finish is not None
        else None
    )
    on_step("importing it once")
    _check_imports(environment, folder, log_file)
    made = InstalledEnvironment(
        name=environment.name,
        path=folder,
        complete=True,
        lock=lock.name,
        lock_hash=lock_hash,
        installer=chosen,
        python=".".join(map(str, sys.version_info[:3])),
        seconds=round(time.monotonic() - began, 1),
        size_bytes=sum(path.lstat().st_size for path in folder.rglob("*")),
        prebuilt=prebuilt,
        versions=_versions_in(folder),
    )
    write_environment_manifest(made)
    return made


def _check_imports(environment: Environment, folder: Path, log_file: Path) -> None:
    finished = run_tool(
        isolated_command(python_in(folder), "-c", environment.import_check), folder=folder
    )
    if finished.returncode == 0:
        return
    SafeFolder(folder).append(log_file.name, finished.stdout.encode())
    last = finished.stdout.strip().splitlines()[-1:] or ["it printed nothing"]
    raise EngineEnvironmentError(
        f"The environment {environment.name} was installed but cannot be used: {last[0]} (full log: {log_file})."
    )
