"""What a stranger's folder may hold where bitbench writes: links, pipes. Nothing behind them may change.

The paths are not listed here: a command runs once in a clean place, and each path that it wrote is then replaced, so
that a new path is covered by itself.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bitbench.util.errors import BitbenchError

Trap = Callable[[Path, Path], None]
LONGEST_S = 60
NAMED = {"study", "home"}  # folders that a person points to, whose own links are followed
# In a folder that a link leads to: names that bitbench itself gives, and one that it does not.
BAIT = (
    "mine.txt",
    "t00001.parquet",
    "q0001.parquet",
    "trials-interactive.svg",
    "lock.json",
    "i0001.log",
    "report.md",
)


class Hanging(BaseException):
    """No Exception, so that nothing takes it for an answer."""


@dataclass(frozen=True)
class Command:
    """`prepare` fills a place as it is before the command; `run` raises BitbenchError where the command refuses."""

    name: str
    prepare: Callable[[Path], None]
    run: Callable[[Path], None]


def link_to_file(path: Path, outside: Path) -> None:
    path.symlink_to(_file_outside(path, outside))


def link_to_folder(path: Path, outside: Path) -> None:
    folder = outside / "folder"
    if path.is_dir():
        shutil.move(path, folder)
    else:
        path.unlink(missing_ok=True)
        folder.mkdir()
    for name in BAIT:
        if not (folder / name).exists():
            (folder / name).write_text("untouched\n")
    path.symlink_to(folder)


def dangling_link(path: Path, outside: Path) -> None:
    _remove(path)
    path.symlink_to(outside / "missing")


def link_to_device(path: Path, outside: Path) -> None:
    _remove(path)
    path.symlink_to("/dev/zero")


def pipe(path: Path, outside: Path) -> None:
    _remove(path)
    os.mkfifo(path)


KINDS = (link_to_file, link_to_folder, dangling_link, link_to_device, pipe)


def paths_written(command: Command, place: Path) -> list[str]:
    """Files that the command made, changed or deleted, what an unfinished one may be called, and their folders."""
    place.mkdir()
    command.prepare(place)
    before = _inodes(place)
    command.run(place)
    after = _inodes(place)
    files = [name for name in {*before, *after} if before.get(name) != after.get(name)]
    folders = {str(above) for name in files for above in Path(name).parents if str(above) != "."}
    return sorted({*files, *(f"{name}.partial" for name in files), *folders} - NAMED)


def harms(command: Command, place: Path, traps: Sequence[tuple[str, Trap]]) -> dict[str, str]:
    """What went wrong, by trap and path; each is tried in a fresh place."""
    found = {}
    for number, (path, plant) in enumerate(traps):
        if (said := _harm(command, place / str(number), path, plant)) is not None:
            found[f"{plant.__name__} at {path}"] = said
        shutil.rmtree(place / str(number))
    return found


def _harm(command: Command, place: Path, name: str, plant: Trap) -> str | None:
    """What went wrong with something planted at one path; None where nothing did."""
    inside, outside = place / "in", place / "outside"
    inside.mkdir(parents=True)
    outside.mkdir()
    command.prepare(inside)
    (inside / name).parent.mkdir(parents=True, exist_ok=True)
    plant(inside / name, outside)
    before = _contents(outside)
    try:
        with _deadline():
            command.run(inside)
    except BitbenchError as error:
        if "\n" in str(error):
            return f"it answers in several lines: {error}"
    except Hanging:
        return "it hangs"
    except Exception as error:
        return f"unexpected {type(error).__name__}: {error}"
    if _contents(outside) != before:
        return "what is outside has changed"
    return None


def _file_outside(path: Path, outside: Path) -> Path:
    """What was there, moved away: read through a link it is still as it should be, so that writing is reached."""
    target = outside / "file"
    if path.is_file():
        shutil.move(path, target)
    else:
        _remove(path)
        target.write_text("untouched\n")
    return target


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _inodes(place: Path) -> dict[str, tuple[int, ...]]:
    states = ((path, path.lstat()) for path in place.rglob("*") if not path.is_dir())
    return {
        str(path.relative_to(place)): (state.st_ino, state.st_size, state.st_mtime_ns)
        for path, state in states
    }


def _contents(outside: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(outside)): path.read_bytes() if path.is_file() else None
        for path in outside.rglob("*")
    }


@contextmanager
def _deadline() -> Iterator[None]:
    def end(*_: object) -> None:
        raise Hanging

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
