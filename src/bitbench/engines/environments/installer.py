"""One run of pip or uv: a new virtual environment, and the packages of a lock in it."""

import re
import shutil
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import Literal

from bitbench.engines.environments.installed import python_in
from bitbench.study.environment import OnStep
from bitbench.util.child_environment import tool_environment
from bitbench.util.child_python import isolated
from bitbench.util.errors import EngineEnvironmentError
from bitbench.util.safe_files import SafeFolder

Installer = Literal["pip", "uv"]

_COUNTED_TOGETHER = 10  # packages per line of progress
_TELLING = re.compile(r"error|cause|no matching distribution|no space left|could not|failed|×|╰", re.IGNORECASE)
_CPU_TORCH = re.compile(r"(?:matching distribution|no version).*torch==\S+\+cpu", re.IGNORECASE)
_NOISE = re.compile(r"^\s*(WARNING|DEPRECATION|\[notice\])")


def choose_installer(asked_for: str | None) -> Installer:
    """uv where it is found, unless one is asked for."""
    if asked_for == "pip":
        return "pip"
    found = shutil.which("uv") is not None
    if asked_for is None:
        return "uv" if found else "pip"
    if asked_for != "uv":
        raise EngineEnvironmentError(f"{asked_for} is not a known installer; use pip or uv.")
    if not found:
        raise EngineEnvironmentError("uv is not on the PATH; install it, or use --installer pip.")
    return "uv"


def source_options(find_links: Sequence[str], index_url: str | None) -> Iterator[str]:
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
            venv = ["uv", "venv", "--allow-existing", "--no-progress", f"--python={sys.executable}", str(self.folder)]
            install = ["uv", "pip", "install", f"--python={python}", "--no-progress"]
        else:
            venv = isolated(sys.executable, "-m", "venv", self.folder)
            options = ("--progress-bar=off", "--no-input", "--no-compile")
            install = isolated(python, "-m", "pip", "install", *options)
        self._call("create", venv)
        install += ["--require-hashes", "--no-deps", *self.sources]
        self._call("install", [*install, "--only-binary=:all:", "-r", self.lock])
        if self.source_lock is not None:
            self.on_step("building what exists as source only")
            self._call("install", [*install, "--no-build-isolation", "-r", self.source_lock])

    def _call(self, step: str, command: Sequence[str | Path]) -> None:
        recent: deque[str] = deque(maxlen=400)
        collected, total = 0, len(pins(self.lock))
        with (
            SafeFolder(self.log_file.parent).open_to_append(self.log_file.name) as log,
            Popen(
                command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, cwd=self.folder, env=tool_environment()
            ) as process,
        ):
            for line in process.stdout or ():
                log.write(line.encode())
                recent.append(line.rstrip())
                if line.startswith(("Collecting ", "Processing ")):
                    collected += 1
                    if collected % _COUNTED_TOGETHER == 0:
                        self.on_step(f"downloading packages, {collected} of {total}")
                elif line.startswith("Installing collected packages"):
                    self.on_step(f"installing {total} packages")
        if process.returncode != 0:
            raise EngineEnvironmentError(
                f"{self.installer} could not {step} the environment in {self.folder}: {telling(recent)} "
                f"(full log: {self.log_file.name} in that folder). {_next_step(recent)}"
            )


def pins(lock: Path) -> list[str]:
    """`NAME==VERSION` of each requirement of a lock."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    return [line.removesuffix("\\").strip() for line in lines if line[:1].isalnum()]


def _next_step(lines: Sequence[str]) -> str:
    if any(_CPU_TORCH.search(line) for line in lines):
        return "Give a folder or page with the CPU wheels of torch with --find-links."
    return "Use --find-links or --index-url for another package source."


def telling(lines: Sequence[str]) -> str:
    """The last lines that say what went wrong, in one line."""
    said = [line.strip() for line in lines if line.strip() and not _NOISE.match(line)]
    telling = [line for line in said if _TELLING.search(line)]
    return " / ".join((telling or said)[-3:]) or "it printed nothing"
