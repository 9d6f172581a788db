"""What every engine that is an HTTP server shares: start, wait until ready, say why it died (the kernel's memory
killer included), stop.

An engine's own file says the rest: command line, environment variables, endpoint, and how to read its log.
"""

import contextlib
import json
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

from bitbench.engines.processes import (
    PortTaken,
    ProcessEnded,
    launch_logged_process,
    wait_until_listening,
)
from bitbench.ports import NO_ARGUMENTS, NO_KV_CACHE_TYPES, Endpoint, InstanceFailed
from bitbench.records.trial import Failure, InstanceFacts, Outcome
from bitbench.study.base import Json
from bitbench.study.environment import Environment
from bitbench.study.quality import Scoring
from bitbench.study.study import EngineSetup
from bitbench.util import machine_faults
from bitbench.util.child_processes import engine_child_variables
from bitbench.util.text import printable, text_without_key
from bitbench.util.units import show_duration

_VMSTAT = Path("/proc/vmstat")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def count_oom_kills() -> int:
    """A number that grows with each kill on this machine or in our control group; only its growth means anything.

    The machine's count includes the group's, but a container may show only one of them.
    """
    return sum(_counted(path) for path in (_VMSTAT, *_group_files()))


def _group_files() -> Iterator[Path]:
    """Where our own control group counts: cgroup 2 in memory.events, cgroup 1 in memory.oom_control."""
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield _GROUPS / path.lstrip("/") / "memory.events"
        elif "memory" in controllers.split(","):
            yield _GROUPS / "memory" / path.lstrip("/") / "memory.oom_control"


def memory_of_groups() -> Iterator[tuple[int, int]]:
    """The limit and the use, in bytes, of our own control group and of those around it, where there is a limit. What is
    kept of files and can be dropped is not in use."""
    names = {"memory.events": ("memory.max", "memory.current")}
    for events in _group_files():
        limit, used = names.get(events.name, ("memory.limit_in_bytes", "memory.usage_in_bytes"))
        for folder in takewhile(lambda place: place != _GROUPS.parent, events.parents):
            with contextlib.suppress(OSError, ValueError):  # none there, or `max`
                most, taken = (
                    int((folder / name).read_text(encoding="ascii")) for name in (limit, used)
                )
                found = re.search(
                    r"^(?:total_)?inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.M
                )
                yield most, taken - (int(found[1]) if found else 0)


def _counted(path: Path) -> int:
    """0 where the file is missing, or has no such line."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


_SEARCHED_LINES = 2000  # a failed start of vLLM prints about 300, with one traceback per process
_SHOWN_BEFORE, _SHOWN_AFTER = 8, 3  # log lines around the one that says why
# What torch, CUDA, vLLM, SGLang, llama.cpp, C++ and Python say when memory ran out.
_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate memory|not enough memory)"
    r"|OutOfMemoryError|CUDA out of memory|CUDA error: out of memory"
    r"|No available memory for the cache blocks|Failed to load model - not enough GPU memory"
    r"|Free memory on device .* on startup is less than desired GPU memory utilization"
    r"|^RuntimeError: Not enough memory\. Please try to increase|^(RuntimeError: )?(Prefill|Decode) out of memory\."
    r"|KV cache is needed, which is larger than the available KV cache memory"
    r"|failed to allocate (\w+ ){0,2}buffer|unable to allocate \S+ buffer"
    r"|[Cc]annot allocate memory|std::bad_alloc|^MemoryError\b"
)
# What asyncio, the C library and llama.cpp say when another process has the port.
_NO_PORT = re.compile(r"[Aa]ddress already in use|couldn't bind HTTP server socket")
# A process does not do these to itself: a person, a supervisor or the kernel sends them.
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception)\b:? ?.*")
NOTHING = re.compile(r"(?!)")
_FACTS = "bitbench-facts: "  # begins the line in which a server in `workers/` prints its facts


def printed_server_facts(lines: Iterable[str]) -> dict[str, Json]:
    """What a server of our own says of itself in its log; empty where that line is missing."""
    line = next((line for line in lines if line.startswith(_FACTS)), None)
    return {} if line is None else dict(json.loads(line.removeprefix(_FACTS)))


class EngineDefaults:
    """What holds for a `ports.Engine` that says nothing else."""

    environment: str | None = None
    own_environment: Environment | None = None
    needs_model = True
    scoring: Scoring | None = None
    scoring_reads_cache = True
    can_profile = False
    quick_args = NO_ARGUMENTS
    kv_cache_types = NO_KV_CACHE_TYPES

    def can_freeze(self, setup: EngineSetup) -> bool:  # noqa: ARG002
        return True


@dataclass(frozen=True)
class ServerPlan:
    """One server to start. The key may be in `env`, never in `command`, which is recorded."""

    command: Sequence[str]
    env: Mapping[str, str]
    endpoint: Endpoint
    log_file: Path
    read_facts: Callable[[str], InstanceFacts]  # from the log of a server that is ready
    ready_path: str = "/health"  # answers 200 once requests may come, and costs little to ask
    unsupported: re.Pattern[str] = NOTHING  # what the engine says when it cannot run something
    ends_itself: re.Pattern[str] = (
        NOTHING  # what it says before it kills itself: then SIGKILL came from nobody else
    )
    message_of: Callable[[str], str] = (
        str  # a log line without the engine's own time stamps and process names
    )


class ServerInstance:
    """A `ports.Instance` over one server process."""

    def __init__(self, plan: ServerPlan) -> None:
        self._plan = plan
        self._kernel_kills = count_oom_kills()
        variables = engine_child_variables(plan.env)
        self._process = launch_logged_process(plan.command, env=variables, log_file=plan.log_file)
        self._was_stopped = False
        self._death: Failure | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> Endpoint:
        try:
            wait_until_listening(
                self._process, f"{self._plan.endpoint.url}{self._plan.ready_path}", timeout_s
            )
        except ProcessEnded as ended:
            raise InstanceFailed(self._stranger() or self._explain(ended.exit_code)) from None
        except PortTaken as taken:
            raise InstanceFailed(self._replaced_by(taken.holder)) from None
        except TimeoutError:
            lines = self._messages()
            cause = f"It was not ready within {show_duration(timeout_s)} (limits.start)."
            raise InstanceFailed(_failure(Outcome.TIMEOUT, cause, lines, len(lines))) from None
        return self._plan.endpoint

    def facts(self) -> InstanceFacts:
        facts = self._plan.read_facts(
            text_without_key(self._process.log(), self._plan.endpoint.api_key)
        )
        return facts.model_copy(update={"command": _shown_command(self._plan)})

    def failure(self) -> Failure | None:
        exit_code = self._process.exit_code()
        return self._stranger() if exit_code is None else self._explain(exit_code)

    def freeze(self) -> None:
        self._process.freeze()

    def thaw(self) -> None:
        self._process.thaw()

    def stop(self) -> None:
        if self._process.exit_code() is None:
            self._was_stopped = True
        self._process.stop()

    def _messages(self) -> list[str]:
        key = self._plan.endpoint.api_key
        return [
            self._plan.message_of(text_without_key(line, key))
            for line in self._process.log_tail(_SEARCHED_LINES)
        ]

    def _stranger(self) -> Failure | None:
        """A failure where another process listens on its port."""
        try:
            self._process.listens_on(urlsplit(self._plan.endpoint.url).port or 0)
        except PortTaken as taken:
            return self._replaced_by(taken.holder)
        return None

    def _replaced_by(self, holder: str) -> Failure:
        return self._disturbed(f"Not this engine but {holder} listens on its port.")

    def _explain(self, exit_code: int) -> Failure:
        """The cause of an end; found once, since what is around it changes."""
        if self._death is None:
            self._process.wait_for_the_rest()
            self._death = self._cause_of(exit_code)
        return self._death

    def _cause_of(self, exit_code: int) -> Failure:
        """Lack of memory first, then what the engine says it cannot do, what others did to it, and what it said."""
        lines = self._messages()
        if self._was_stopped:
            return _failure(Outcome.CRASHED, "It was stopped by bitbench.", lines, len(lines))
        for outcome, pattern in (
            (Outcome.OOM, _OUT_OF_MEMORY),
            (Outcome.UNSUPPORTED, self._plan.unsupported),
            (Outcome.DISTURBED, _NO_PORT),
        ):
            place = _first(pattern.search, lines)
            if place < len(lines):
                return _failure(outcome, lines[place].strip(), lines, place)
        if count_oom_kills() > self._kernel_kills and not any(
            map(self._plan.ends_itself.search, lines)
        ):
            killed = (
                "It"
                if exit_code == -signal.SIGKILL
                else "It ended after one of this machine's processes"
            )
            return _failure(
                Outcome.OOM,
                f"{killed} was killed by the kernel's out-of-memory killer.",
                lines,
                len(lines),
            )
        if (fault := machine_faults.disk_fault(self._plan.log_file.parent)) is not None:
            return self._disturbed(f"It ended when nothing more could be written: {fault}.")
        return self._crash(exit_code, lines)

    def _crash(self, exit_code: int, lines: Sequence[str]) -> Failure:
        """The first exception is the root; those after it report that another process died."""
        place = _first(_EXCEPTION.match, lines)
        ended = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        if place < len(lines):
            outcome = (
                Outcome.DISTURBED if machine_faults.SAID.search(lines[place]) else Outcome.CRASHED
            )
            return _failure(outcome, f"It ended with {ended}: {lines[place].strip()}", lines, place)
        place = _first(self._plan.ends_itself.search, lines)
        if place < len(lines):
            return _failure(
                Outcome.CRASHED, f"It ended with {ended}: {lines[place].strip()}", lines, place
            )
        if -exit_code in _FROM_OUTSIDE:
            return self._disturbed(
                f"It was killed by {ended} from outside: the kernel reports no lack of memory, and its log no error."
            )
        return _failure(
            Outcome.CRASHED, f"It ended with {ended}; its log gives no reason.", lines, place
        )

    def _disturbed(self, cause: str) -> Failure:
        lines = self._messages()
        return _failure(Outcome.DISTURBED, cause, lines, len(lines))


def _first(matches: Callable[[str], object], lines: Sequence[str]) -> int:
    """The number of the first line that does, or how many there are."""
    return next((number for number, line in enumerate(lines) if matches(line)), len(lines))


def _shown_command(plan: ServerPlan) -> tuple[str, ...]:
    """The command as it would be on any machine: without folders, and the same for every instance."""
    port = str(urlsplit(plan.endpoint.url).port)
    return tuple(re.sub(r"(^|=)/\S*/", r"\1", word).replace(port, "PORT") for word in plan.command)


def _failure(outcome: Outcome, cause: str, lines: Sequence[str], place: int) -> Failure:
    around = lines[max(0, place - _SHOWN_BEFORE) : place + _SHOWN_AFTER]
    return Failure(outcome=outcome, cause=printable(cause), log_lines=tuple(map(printable, around)))
