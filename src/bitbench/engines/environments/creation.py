"""Makes an environment: its packages, what is compiled for it, one import to see that it works, its manifest."""

import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, run

from bitbench.engines.environments.installed import (
    InstalledEnvironment,
    folder_of,
    python_in,
    read_manifest,
    versions_in,
    write_manifest,
)
from bitbench.engines.environments.installer import Installation, choose_installer, source_options
from bitbench.engines.environments.resolution import write_lock
from bitbench.study.environment import Device, Environment, OnStep
from bitbench.util.child_environment import tool_environment
from bitbench.util.child_python import isolated
from bitbench.util.errors import EngineEnvironmentError
from bitbench.util.linux import require_linux
from bitbench.util.safe_files import SafeFolder

_LOG = "bitbench-install.log"


def create(
    environment: Environment,
    home: Path,
    *,
    device: Device,
    compiled: bool = False,
    find_links: Sequence[str] = (),
    index_url: str | None = None,
    installer: str | None = None,
    on_step: OnStep = lambda _: None,
) -> InstalledEnvironment:
    """Makes the environment, or returns the existing one if it was made from the same lock.

    `compiled`: nothing prebuilt is taken, and an existing environment that has something prebuilt is made again.
    Raises EngineEnvironmentError; what was begun is then rebuilt by the next call. Raises PlatformError elsewhere than
    on Linux, since locks list wheels for it alone. The lock of another version than the pinned one is written first,
    unless it exists.
    """
    require_linux()
    if compiled and environment.prebuilt is None:
        raise EngineEnvironmentError(
            f"The environment {environment.name} has nothing prebuilt to compile instead; leave out --compile."
        )
    lock, folder = environment.lock_for(device), folder_of(environment.name, home)
    source_lock = environment.source_lock
    sources = [*source_options(find_links, index_url)]
    chosen = choose_installer(installer)
    if environment.origin is not None and not lock.exists():
        on_step("choosing package versions")
        write_lock(environment, environment.origin, device, chosen, sources)
    lock_hash = hashlib.sha256(lock.read_bytes() + (source_lock.read_bytes() if source_lock else b"")).hexdigest()
    existing = read_manifest(folder)
    if existing and existing.lock_hash == lock_hash and not (compiled and existing.prebuilt):
        return existing
    began = time.monotonic()
    kept = SafeFolder(home)
    kept.remove_folder(f"envs/{folder.name}")
    kept.make_folder(f"envs/{folder.name}")
    log_file = folder / _LOG
    Installation(folder, lock, source_lock, chosen, sources, log_file, on_step).run()
    prebuilt = None
    if environment.prebuilt is not None and device == "cpu" and not compiled:
        prebuilt = environment.prebuilt(folder, log_file)
    if environment.build is not None and prebuilt is None:
        environment.build(folder, log_file, cuda=device == "cuda", on_step=on_step)
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
        versions=versions_in(folder),
    )
    write_manifest(made)
    return made


def _check_imports(environment: Environment, folder: Path, log_file: Path) -> None:
    finished = run(
        isolated(python_in(folder), "-c", environment.import_check),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
        check=False,
        cwd=folder,
        env=tool_environment(),
    )
    if finished.returncode == 0:
        return
    SafeFolder(folder).append(log_file.name, finished.stdout.encode())
    last = finished.stdout.strip().splitlines()[-1:] or ["it printed nothing"]
    raise EngineEnvironmentError(
        f"The environment {environment.name} was installed but cannot be used: {last[0]} (full log: {log_file})."
    )
