"""How the engines of a run come into being: spawned, or forked from a prepared parent that has imported them once.

A parent lives for one block: starts of one parent share addresses and hash seeds, which differ from start to start in
the spawned ones that blocks are to sample. The first start of every config is spawned: it gives time to ready and
memory, and the OpenMP variables that its workers run with, around which a parent must be started (see
docs/measurement.md).
"""

import json
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from bitbench.engines.guardian import descendants
from bitbench.engines.processes import ServerProcess, launch_logged_process
from bitbench.records.trial import StartKind
from bitbench.util.files import SafeFolder

_PARENT = Path(__file__).parent / "workers" / "prepared_parent.py"
# What OpenMP and the loader read once, when torch is loaded.
_OPENMP = (
    *("OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME"),
    *("KMP_TPAUSE", "LD_PRELOAD"),
)
_IMPORT_TIMEOUT_S = 300.0
_ANSWER_TIMEOUT_S = 30.0
_POLL_S = 0.2
_LARGEST_ANSWER = 4096


@dataclass(frozen=True)
class Preparation:
    """What a prepared parent imports for an engine; `hook` completes a forked one, see `workers/prepared_parent.py`."""

    modules: tuple[str, ...]
    hook: Path | None = None


@dataclass(frozen=True)
class StartCommand:
    """A server to start; `key` is its secret, which differs from start to start."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    key: str
    log_file: Path
    preparation: Preparation | None = None  # None: always spawned


class Started(NamedTuple):
    process: ServerProcess
    kind: StartKind = "spawned"
    why_spawned: str | None = None  # where a prepared parent was to be used


class ParentRefused(Exception):
    """A prepared parent cannot be used; the text says why."""


class Starts:
    """The starts of one run. Outside of a block all are spawned."""

    def __init__(self) -> None:
        self._needed: dict[_Key, StartCommand] = {}  # parents of every block, with a command that uses each
        self._parents: dict[_Key, _Parent] | None = None  # of this block
        self._configs: dict[str, ConfigStarts] = {}

    def of(self, config: str) -> "ConfigStarts":
        return self._configs.setdefault(config, ConfigStarts(self))

    @contextmanager
    def block(self) -> Iterator[None]:
        """What starts inside may share parents, which end with it."""
        self._parents = {}
        try:
            yield
        finally:
            for parent in self._parents.values():
                parent.stop()
            self._parents = None

    def parent_of(self, command: StartCommand, openmp: Mapping[str, str]) -> "_Parent | None":
        """One that has imported everything; None outside of a block. All that a block needs import at the same time,
        before anything in it is measured. Raises ParentRefused."""
        if self._parents is None:
            return None
        key = _Key.of(command, openmp)
        self._needed.setdefault(key, command)
        for other, first in self._needed.items():
            if other not in self._parents:
                self._parents[other] = _Parent(other, first)
        for parent in self._parents.values():
            parent.wait()
        return self._parents[key].checked()


class ConfigStarts:
    """The starts of one config, each of them the same command but for port and key."""

    def __init__(self, starts: Starts) -> None:
        self._starts = starts
        self._openmp: dict[str, str] | None = None  # variables of its workers; None: it was not spawned yet
        self._refused: str | None = None  # the reason why it is always spawned

    def start(self, command: StartCommand) -> Started:
        """Starts without waiting for the server; for the imports of a parent it does wait, once in a block."""
        if command.preparation is not None and self._openmp is not None and self._refused is None:
            try:
                if (parent := self._starts.parent_of(command, self._openmp)) is not None:
                    return Started(parent.start(command), "preforked")
            except (ParentRefused, OSError) as error:
                self._refused = str(error)
        process = launch_logged_process(command.words, env=command.env, log_file=command.log_file)
        return Started(process, why_spawned=self._refused)

    def is_ready(self, process: ServerProcess) -> None:
        """Looks at a spawned server that answers: with which OpenMP variables do its workers run?"""
        if self._openmp is not None:
            return
        variables = map(_openmp_variables, {process.pid, *descendants(process.pid)})
        largest, *others = sorted({frozenset(variable.items()) for variable in variables}, key=len, reverse=True)
        if not all(other < largest for other in others):  # what a server sets for all, then more for its workers
            self._refused = "its processes run with different OpenMP variables"
        self._openmp = dict(largest)

    def refuse(self, reason: str) -> None:
        """Spawn it from now on."""
        self._refused = reason


def _openmp_variables(pid: int) -> dict[str, str]:
    """With which a process was executed."""
    with suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        pairs = (entry.partition("=") for entry in entries)
        return {name: value for name, _, value in pairs if name in _OPENMP}
    return {}


@dataclass(frozen=True)
class _Key:
    """Commands with the same key can share a parent: some libraries read their variables when they are imported."""

    interpreter: tuple[str, ...]
    preparation: Preparation
    env: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, command: StartCommand, openmp: Mapping[str, str]) -> "_Key":
        assert command.preparation is not None
        kept = {name: value for name, value in command.env.items() if value != command.key}
        return cls(_interpreter(command), command.preparation, tuple(sorted({**kept, **openmp}.items())))


def _interpreter(command: StartCommand) -> tuple[str, ...]:
    """The words before what it runs, such as `python -I`."""
    python, *others = command.words
    return (python, *takewhile(lambda word: word.startswith("-") and word != "-m", others))


class _Parent:
    def __init__(self, key: _Key, command: StartCommand) -> None:
        hook = str(key.preparation.hook or "-")
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = launch_logged_process(
                [*key.interpreter, str(_PARENT), str(theirs.fileno()), hook, *key.preparation.modules],
                env=dict(key.env),
                log_file=command.log_file.with_name(f"{command.log_file.stem}-parent.log"),
                pass_fds=(theirs.fileno(),),
            )
        self._reason: str | None = None
        self._has_answered = False

    def wait(self) -> None:
        """Until its imports are done, or it has failed."""
        if not self._has_answered:
            self._reason = self._answer(_IMPORT_TIMEOUT_S)
            self._has_answered = True

    def checked(self) -> "_Parent":
        if self._reason is not None:
            raise ParentRefused(self._reason)
        return self

    def start(self, command: StartCommand) -> ServerProcess:
        words = command.words[len(_interpreter(command)) :]
        cpus = sorted(os.sched_getaffinity(0))
        order = {"words": words, "env": dict(command.env), "cpus": cpus, "openmp": _OPENMP}
        ours, theirs = socket.socketpair()
        with theirs, SafeFolder(command.log_file.parent).open_to_append(command.log_file.name) as log:
            socket.send_fds(self._channel, [json.dumps(order).encode()], [log.fileno(), theirs.fileno()])
        if (reason := self._answer(_ANSWER_TIMEOUT_S)) is not None:
            ours.close()
            raise ParentRefused(reason)
        nursery = (self._process.guardian_pid, self._process.pid)
        return ServerProcess(ours, command.log_file, nursery=nursery)

    def stop(self) -> None:
        self._channel.close()
        self._process.stop()

    def _answer(self, timeout_s: float) -> str | None:
        """What it refuses, and why; None: nothing."""
        deadline = time.monotonic() + timeout_s
        while not select.select([self._channel], [], [], _POLL_S)[0]:
            if self._process.exit_code() is not None:
                return self._ended()
            if time.monotonic() > deadline:
                return f"the prepared parent did not answer within {timeout_s:g} s"
        answer = self._channel.recv(_LARGEST_ANSWER)
        refused = json.loads(answer)["refused"] if answer else self._ended()
        return None if refused is None else str(refused)

    def _ended(self) -> str:
        self._process.wait_for_the_rest()
        return f"the prepared parent ended with {self._process.exit_code()}; see {self._process.log_file.name}"
