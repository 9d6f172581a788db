"""Reading a study needs nothing that only Linux has: docs/platforms.md says so, of systems on which no test runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bitbench.util.errors import ExitCode

EXAMPLES = Path(__file__).parents[2] / "examples"

# Runs in a process of its own. What is taken away: the native part, symbols of libc, names in modules, /proc and /sys.
ELSEWHERE = """
import builtins, ctypes, fcntl, io, os, platform, socket, sys

platform.system = lambda: "Darwin"

OF_LINUX = (os, "sched_getaffinity"), (os, "pidfd_open"), (os, "O_PATH"), (fcntl, "F_SETPIPE_SZ"), (socket, "TCP_INFO")
for module, name in OF_LINUX:
    if hasattr(module, name):
        delattr(module, name)
sys.modules["bitbench._native"] = None

class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("timerfd_create", "timerfd_settime", "prctl"):
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = Library

def without_kernel_files(function):
    def called(path=".", *rest, **named):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(2, "not on this system", path)
        return function(path, *rest, **named)
    return called

for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "listdir"), (os, "scandir")):
    setattr(module, name, without_kernel_files(getattr(module, name)))

from bitbench.cli import main
main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(EXAMPLES / "gallery" / "twins", folder / "twins")
    shutil.copy(EXAMPLES / "first-look.yaml", folder)
    shutil.copy(EXAMPLES / "null-tour.yaml", folder)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "report twins",
        "report twins --format csv",
        "recommend twins",
        "compare twins twins",
        "query . 'SELECT 1'",
        "history . --point vllm-a",
        "export twins --to prometheus",
        "schema",
        "recipes",
        "plan first-look.yaml",
    ],
)
def test_commands_that_read_need_no_linux(place: Path, command: str) -> None:
    words = (
        [word.strip("'") for word in command.split(maxsplit=2)]
        if "query" in command
        else command.split()
    )
    done = elsewhere(place, *words)
    assert done.returncode == ExitCode.DONE, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "run null-tour.yaml",
        "load http://127.0.0.1:9",
        "quick",
        "env create transformers",
    ],
)
def test_commands_that_measure_say_in_a_sentence_that_they_need_linux(
    place: Path, command: str
) -> None:
    files = set(place.iterdir())
    done = elsewhere(place, *command.split())
    assert done.returncode == ExitCode.UNAVAILABLE, done.stderr
    assert done.stderr.startswith(
        "error: bitbench measures on Linux only, and this is macOS; here it reads,"
    )
    assert len(done.stderr.splitlines()) == 1
    assert set(place.iterdir()) == files


def elsewhere(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *words],
        cwd=place,
        env={**os.environ, "BITBENCH_HOME": str(place / "home")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
