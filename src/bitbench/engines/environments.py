"""Virtual environments in `<home>/envs/NAME`: read from their manifests, made by pip or uv.

Their description is `bitbench.study.environment.Environment`. Nothing here refers to an engine.
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
from bitbench.util.child_processes import make_isolated_command
from bitbench.util.errors import EngineEnvironmentError
from bitbench.util.files import SafeFolder, read_bytes
from bitbench.util.machine_faults import require_linux

_MANIFEST = "bitbench-environment.json"  # written last: without it, the creation was interrupted


@dataclass(frozen=True)
class InstalledEnvironment:
    """A virtual environment. `complete` is False if it does not exist or was interrupted."""

    name: str
    path: Path
    complete: bool
    lock: str | None = None  # file name of the lock it was made from
    lock_hash: str | None = None
    installer: str | None = None
    python: str | None = None
    seconds: float | None = None  # duration of its creation
    size_bytes: int | None = None
    prebuilt: str | None = None  # version and processors of the programs that a package contains
    versions: dict[str, str] = field(default_factory=dict)


def list_environments(home: Path, possible: Iterable[str] = ()) -> tuple[InstalledEnvironment, ...]:
    """Return the environments on disk, and possible ones that do not exist yet.

    `complete` is False for an environment that is missing or interrupted.
    """
    names = set(possible)
    for path in (home / "envs").glob("*"):
        if path.is_dir():
            names.add(path.name)
    folders = [get_environment_folder(name, home) for name in sorted(names)]
    return tuple(
        read_environment_manifest(path) or InstalledEnvironment(path.name, path, complete=False)
        for path in folders
    )


def is_foreign_environment(name: str) -> bool:
    """Return True for the path of an environment that somebody else made, or of its Python."""
    return Path(name).is_absolute()


def environment_python(name: str, home: Path) -> Path:
    """Return an environment's interpreter, or raise EngineEnvironmentError if it is missing."""
    if is_foreign_environment(name):
        return _find_foreign_python(Path(name))
    folder = get_environment_folder(name, home)
    if read_environment_manifest(folder):
        return get_python_path(folder)
    state = "is incomplete" if folder.exists() else "is not installed"
    raise EngineEnvironmentError(
        f"The environment {name} {state} in {folder}; create it with: bitbench env create {name}"
    )


def versions(name: str, home: Path) -> dict[str, str]:
    """Return an environment's package versions, or raise EngineEnvironmentError."""
    python = environment_python(name, home)
    if is_foreign_environment(name):
        return _read_package_versions(python.parent.parent)
    return _read_package_versions(get_environment_folder(name, home))


def _find_foreign_python(path: Path) -> Path:
    """Return the Python of a foreign environment.

    Its link is not followed: the interpreter behind it has other packages.
    """
    python = get_python_path(path) if path.is_dir() else path
    if python.is_file() and os.access(python, os.X_OK):
        return python
    raise EngineEnvironmentError(f"{path} is no virtual environment, and no python of one.")


def get_environment_folder(name: str, home: Path) -> Path:
    return home.absolute() / "envs" / name


def get_python_path(folder: Path) -> Path:
    return folder / "bin" / "python"


def _read_package_versions(folder: Path) -> dict[str, str]:
    """Return the package versions from the names of the packages' metadata folders."""
    versions_by_name = {}
    metadata = folder.glob("lib/python*/site-packages/*.dist-info")
    for path in sorted(metadata, key=lambda path: path.stem):
        package, _, version = path.stem.rpartition("-")
        versions_by_name[_normalize_package_name(package)] = version
    return versions_by_name


def _normalize_package_name(package: str) -> str:
    """Return a package's name in the spelling of locks and manifests."""
    return package.lower().replace("_", "-")


def read_environment_manifest(folder: Path) -> InstalledEnvironment | None:
    """Return an environment's manifest, or None if it has none that can be read.

    None also if its Python has been removed, for example by an update of the system.
    """
    if get_python_path(folder).is_symlink() and not get_python_path(folder).exists():
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


def _iter_source_options(find_links: Sequence[str], index_url: str | None) -> Iterator[str]:
    """Yield the package sources as absolute paths: the installers run in another folder.

    Both installers accept these options.
    """
    for link in find_links:
        yield f"--find-links={_make_absolute(link)}"
    if index_url:
        yield f"--index-url={_make_absolute(index_url)}"


def _make_absolute(source: str) -> str:
    return source if ":/" in source else str(Path(source).expanduser().absolute())


@dataclass(frozen=True)
class Installation:
    """One run of an installer. Its output goes to the log, and the user's settings apply."""

    folder: Path
    lock: Path
    source_lock: Path | None
    installer: Installer
    sources: Sequence[str]
    log_file: Path
    on_step: OnStep

    def run(self) -> None:
        """Install the lock's packages. Only hashed files are accepted, and wheels run no code.

        Raise EngineEnvironmentError with the lines that contain the reason.
        """
        self.on_step(f"creating a virtual environment with {self.installer}")
        python = get_python_path(self.folder)
        if self.installer == "uv":
            venv = ["uv", "venv", "--allow-existing", "--no-progress"]
            venv += [f"--python={sys.executable}", str(self.folder)]
            install = ["uv", "pip", "install", f"--python={python}", "--no-progress"]
        else:
            venv = make_isolated_command(sys.executable, "-m", "venv", self.folder)
            options = ("--progress-bar=off", "--no-input", "--no-compile")
            install = make_isolated_command(python, "-m", "pip", "install", *options)
        self._run_step("create", venv)
        self.on_step("installing packages")
        install += ["--require-hashes", "--no-deps", *self.sources]
        self._run_step("install", [*install, "--only-binary=:all:", "-r", self.lock])
        if self.source_lock is not None:
            self.on_step("building what exists as source only")
            self._run_step("install", [*install, "--no-build-isolation", "-r", self.source_lock])

    def _run_step(self, step: str, command: Sequence[str | Path]) -> None:
        with SafeFolder(self.log_file.parent).open_to_append(self.log_file.name) as log:
            code = run_logged_tool(command, log, folder=self.folder)
        if code == 0:
            return
        lines = read_bytes(self.log_file).decode(errors="replace").splitlines()
        recent = lines[-_RECENT_LINES:]
        raise EngineEnvironmentError(
            f"{self.installer} could not {step} the environment in {self.folder}: "
            f"{_format_installer_errors(recent)} (full log: {self.log_file.name} in that folder). "
            f"{_suggest_next_step(recent)}"
        )


def _suggest_next_step(lines: Sequence[str]) -> str:
    if any(_CPU_TORCH.search(line) for line in lines):
        return "Give a folder or page with the CPU wheels of torch with --find-links."
    return "Use --find-links or --index-url for another package source."


def _format_installer_errors(lines: Sequence[str]) -> str:
    """Return the last lines with an error, or the last lines at all, joined into one."""
    lines = [line.strip() for line in lines if line.strip() and not _NOISE.match(line)]
    errors = [line for line in lines if _TELLING.search(line)]
    return " / ".join((errors or lines)[-3:]) or "it printed nothing"


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
    """Make the environment, or return the existing one if it was made from the same lock.

    Raise EngineEnvironmentError, after which the next call rebuilds it. Raise PlatformError on
    systems other than Linux: locks list wheels only for Linux.
    """
    require_linux()
    lock = environment.lock_for(device)
    source_lock = environment.source_lock
    lock_content = lock.read_bytes()
    if source_lock:
        lock_content += source_lock.read_bytes()
    lock_hash = hashlib.sha256(lock_content).hexdigest()
    folder = get_environment_folder(environment.name, home)
    existing = read_environment_manifest(folder)
    if existing and existing.lock_hash == lock_hash:
        return existing
    began = time.monotonic()
    sources = [*_iter_source_options(find_links, index_url)]
    safe_home = SafeFolder(home)
    safe_home.remove_folder(f"envs/{folder.name}")
    safe_home.make_folder(f"envs/{folder.name}")
    log_file = folder / _LOG
    chosen: Installer = "pip" if shutil.which("uv") is None else "uv"
    Installation(folder, lock, source_lock, chosen, sources, log_file, on_step).run()
    prebuilt = None
    if environment.finish is not None:
        prebuilt = environment.finish(folder, log_file, device=device)
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
        versions=_read_package_versions(folder),
    )
    write_environment_manifest(made)
    return made


def _check_imports(environment: Environment, folder: Path, log_file: Path) -> None:
    finished = run_tool(
        make_isolated_command(get_python_path(folder), "-c", environment.import_check),
        folder=folder,
    )
    if finished.returncode == 0:
        return
    SafeFolder(folder).append(log_file.name, finished.stdout.encode())
    last = finished.stdout.strip().splitlines()[-1:] or ["it printed nothing"]
    raise EngineEnvironmentError(
        f"The environment {environment.name} was installed but cannot be used: "
        f"{last[0]} (full log: {log_file})."
    )
