"""The parts that all engines with an HTTP server share: launch, readiness, cause of an end, stop.

The cause may be the kernel's out-of-memory killer. An engine's own file has the rest: command line,
environment variables, endpoint, and how to read its log.
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
from bitbench.util.child_processes import collect_engine_variables
from bitbench.util.text import format_printable, hide_key
from bitbench.util.units import show_duration

_VMSTAT = Path("/proc/vmstat")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
# By the file that counts a group's events: the files with its limit and its use.
_MEMORY_FILES = {
    "memory.events": ("memory.max", "memory.current"),
    "memory.oom_control": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}
_INACTIVE_FILE = re.compile(r"^(?:total_)?inactive_file (\d+)$", re.MULTILINE)


def count_oom_kills() -> int:
    """Return a counter that grows with each OOM kill on this machine or in our control group.

    Only its growth has a meaning. The machine's count includes the group's, but a container may
    show only one of them.
    """
    return sum(_read_oom_kill_count(path) for path in (_VMSTAT, *_group_files()))


def _group_files() -> Iterator[Path]:
    """Yield the files that count the events of our control group.

    cgroup 2 uses memory.events, cgroup 1 uses memory.oom_control.
    """
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


def iter_group_memory() -> Iterator[tuple[int, int]]:
    """Yield the limit and the use, in bytes, of our control group and its parents.

    Groups without a limit are left out. Cached files that the kernel can drop do not count as use.
    """
    for events in _group_files():
        limit_file, usage_file = _MEMORY_FILES[events.name]
        for folder in takewhile(lambda folder: folder != _GROUPS.parent, events.parents):
            with contextlib.suppress(OSError, ValueError):  # no such file, or no limit: `max`
                limit = int((folder / limit_file).read_text(encoding="ascii"))
                used = int((folder / usage_file).read_text(encoding="ascii"))
                if droppable := _INACTIVE_FILE.search((folder / "memory.stat").read_text()):
                    used -= int(droppable[1])
                yield limit, used


def _read_oom_kill_count(path: Path) -> int:
    """Return the file's number of OOM kills, or 0 if it has none or does not exist."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


_SEARCHED_LINES = 2000  # a failed start of vLLM prints about 300, with one traceback per process
_SHOWN_BEFORE = 8  # log lines before the one with the cause
_SHOWN_AFTER = 3  # from that line on
# Messages of torch, CUDA, vLLM, SGLang, llama.cpp, C++ and Python when memory ran out.
_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate memory|not enough memory)"
    r"|OutOfMemoryError|CUDA out of memory|CUDA error: out of memory"
    r"|No available memory for the cache blocks|Failed to load model - not enough GPU memory"
    r"|Free memory on device .* on startup is less than desired GPU memory utilization"
    r"|^RuntimeError: Not enough memory\. Please try to increase"
    r"|^(RuntimeError: )?(Prefill|Decode) out of memory\."
    r"|KV cache is needed, which is larger than the available KV cache memory"
    r"|failed to allocate (\w+ ){0,2}buffer|unable to allocate \S+ buffer"
    r"|[Cc]annot allocate memory|std::bad_alloc|^MemoryError\b"
)
# Messages of asyncio, the C library and llama.cpp when another process has the port.
_NO_PORT = re.compile(r"[Aa]ddress already in use|couldn't bind HTTP server socket")
# A process does not send these to itself: a person, a supervisor or the kernel does.
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception)\b:? ?.*")
NOTHING = re.compile(r"(?!)")
_FACTS = "bitbench-facts: "  # begins the line in which a server in `workers/` prints its facts


def parse_printed_facts(lines: Iterable[str]) -> dict[str, Json]:
    """Return the facts that a server of ours prints into its log, or {} if that line is missing."""
    for line in lines:
        if line.startswith(_FACTS):
            return dict(json.loads(line.removeprefix(_FACTS)))
    return {}


class EngineDefaults:
    """The defaults of a `ports.Engine`, for engines that do not override them."""

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
    """One server to start. `command` is recorded, so the key may be in `env` but never there."""

    command: Sequence[str]
    env: Mapping[str, str]
    endpoint: Endpoint
    log_file: Path
    read_facts: Callable[[str], InstanceFacts]  # from the log of a server that is ready
    ready_path: str = "/health"  # answers 200 once requests may come, and costs little to ask
    unsupported: re.Pattern[str] = NOTHING  # the engine's messages when it cannot run something
    # The engine's messages before it kills itself: a SIGKILL after one came from nobody else.
    ends_itself: re.Pattern[str] = NOTHING
    # Strips the engine's own time stamps and process names from a log line.
    message_of: Callable[[str], str] = str


class ServerInstance:
    """A `ports.Instance` over one server process."""

    def __init__(self, plan: ServerPlan) -> None:
        self._plan = plan
        self._kernel_kills = count_oom_kills()
        variables = collect_engine_variables(plan.env)
        self._process = launch_logged_process(plan.command, env=variables, log_file=plan.log_file)
        self._was_stopped = False
        self._death: Failure | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> Endpoint:
        url = f"{self._plan.endpoint.url}{self._plan.ready_path}"
        try:
            wait_until_listening(self._process, url, timeout_s)
        except ProcessEnded as ended:
            raise InstanceFailed(
                self._find_stranger() or self._explain_end(ended.exit_code)
            ) from None
        except PortTaken as taken:
            raise InstanceFailed(self._make_port_failure(taken.holder)) from None
        except TimeoutError:
            lines = self._messages()
            cause = f"It was not ready within {show_duration(timeout_s)} (limits.start)."
            raise InstanceFailed(_make_failure(Outcome.TIMEOUT, cause, lines, len(lines))) from None
        return self._plan.endpoint

    def facts(self) -> InstanceFacts:
        log = hide_key(self._process.log(), self._plan.endpoint.api_key)
        facts = self._plan.read_facts(log)
        return facts.model_copy(update={"command": _format_command(self._plan)})

    def failure(self) -> Failure | None:
        exit_code = self._process.exit_code()
        return self._find_stranger() if exit_code is None else self._explain_end(exit_code)

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
            self._plan.message_of(hide_key(line, key))
            for line in self._process.log_tail(_SEARCHED_LINES)
        ]

    def _find_stranger(self) -> Failure | None:
        """Return a failure if another process listens on the engine's port, else None."""
        try:
            self._process.is_listening_on(urlsplit(self._plan.endpoint.url).port or 0)
        except PortTaken as taken:
            return self._make_port_failure(taken.holder)
        return None

    def _make_port_failure(self, holder: str) -> Failure:
        return self._make_disturbance(f"Not this engine but {holder} listens on its port.")

    def _explain_end(self, exit_code: int) -> Failure:
        """Return the cause of the end. It is determined once, since the machine changes later."""
        if self._death is None:
            self._process.wait_for_the_rest()
            self._death = self._find_cause(exit_code)
        return self._death

    def _find_cause(self, exit_code: int) -> Failure:
        """Return why the process ended.

        Lack of memory comes first, then what the engine cannot run, then disturbances from
        outside, and last the engine's own errors.
        """
        lines = self._messages()
        if self._was_stopped:
            return _make_failure(Outcome.CRASHED, "It was stopped by bitbench.", lines, len(lines))
        for outcome, pattern in (
            (Outcome.OOM, _OUT_OF_MEMORY),
            (Outcome.UNSUPPORTED, self._plan.unsupported),
            (Outcome.DISTURBED, _NO_PORT),
        ):
            index = _find_first_index(pattern.search, lines)
            if index < len(lines):
                return _make_failure(outcome, lines[index].strip(), lines, index)
        ended_itself = any(map(self._plan.ends_itself.search, lines))
        if count_oom_kills() > self._kernel_kills and not ended_itself:
            killed = "It ended after one of this machine's processes"
            if exit_code == -signal.SIGKILL:
                killed = "It"
            cause = f"{killed} was killed by the kernel's out-of-memory killer."
            return _make_failure(Outcome.OOM, cause, lines, len(lines))
        if (fault := machine_faults.find_disk_fault(self._plan.log_file.parent)) is not None:
            return self._make_disturbance(f"It ended when nothing more could be written: {fault}.")
        return self._classify_crash(exit_code, lines)

    def _classify_crash(self, exit_code: int, lines: Sequence[str]) -> Failure:
        """Return a failure with the root cause: the first exception in the log.

        Later exceptions report only that another process died.
        """
        ended = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        outcome = Outcome.CRASHED
        index = _find_first_index(_EXCEPTION.match, lines)
        if index < len(lines):
            if machine_faults.SAID.search(lines[index]):
                outcome = Outcome.DISTURBED
        else:
            index = _find_first_index(self._plan.ends_itself.search, lines)
        if index < len(lines):
            cause = f"It ended with {ended}: {lines[index].strip()}"
            return _make_failure(outcome, cause, lines, index)
        if -exit_code in _FROM_OUTSIDE:
            return self._make_disturbance(
                f"It was killed by {ended} from outside: "
                "the kernel reports no lack of memory, and its log no error."
            )
        cause = f"It ended with {ended}; its log gives no reason."
        return _make_failure(outcome, cause, lines, index)

    def _make_disturbance(self, cause: str) -> Failure:
        lines = self._messages()
        return _make_failure(Outcome.DISTURBED, cause, lines, len(lines))


def _find_first_index(matches: Callable[[str], object], lines: Sequence[str]) -> int:
    """Return the index of the first line that matches, or the number of lines if none does."""
    for index, line in enumerate(lines):
        if matches(line):
            return index
    return len(lines)


def _format_command(plan: ServerPlan) -> tuple[str, ...]:
    """Return the command without folders and port: the same on any machine and in any instance."""
    port = str(urlsplit(plan.endpoint.url).port)
    return tuple(re.sub(r"(^|=)/\S*/", r"\1", word).replace(port, "PORT") for word in plan.command)


def _make_failure(outcome: Outcome, cause: str, lines: Sequence[str], index: int) -> Failure:
    """Return a failure that quotes the log lines around `index`."""
    around = lines[max(0, index - _SHOWN_BEFORE) : index + _SHOWN_AFTER]
    return Failure(
        outcome=outcome,
        cause=format_printable(cause),
        log_lines=tuple(map(format_printable, around)),
    )
