"""What every engine that is an HTTP server shares: start, wait until ready, say why it died, stop.

An engine's own file says the rest: command line, environment variables, endpoint, and how to read its log.
"""

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bitbench.core.ports import Endpoint, InstanceFailed
from bitbench.core.quotation import printable, without_key
from bitbench.core.recorded.trial import Failure, InstanceFacts, Outcome
from bitbench.engines.processes import ProcessEnded, spawn, wait_until_healthy
from bitbench.ground.child_environment import engine_environment
from bitbench.ground.units import show_duration

_SEARCHED_LINES = 2000  # a failed start of vLLM prints about 300, with one traceback per process
_SHOWN_BEFORE, _SHOWN_AFTER = 8, 3  # log lines around the one that says why
# What torch, CUDA, vLLM, llama.cpp, C++ and Python say when memory ran out.
_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate memory|not enough memory)"
    r"|OutOfMemoryError|CUDA out of memory|CUDA error: out of memory"
    r"|No available memory for the cache blocks"
    r"|KV cache is needed, which is larger than the available KV cache memory"
    r"|failed to allocate (\w+ ){0,2}buffer|unable to allocate \S+ buffer"
    r"|[Cc]annot allocate memory|std::bad_alloc|^MemoryError\b"
)
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception)\b:? ?.*")
NOTHING = re.compile(r"(?!)")


@dataclass(frozen=True)
class ServerPlan:
    """One server to start. Secrets may be in `env`, never in `command`, which is recorded."""

    command: Sequence[str]
    env: Mapping[str, str]
    endpoint: Endpoint
    log_file: Path
    read_facts: Callable[[str], InstanceFacts]  # from the log of a server that is ready
    unsupported: re.Pattern[str] = NOTHING  # what the engine says when it cannot run something
    message_of: Callable[[str], str] = str  # a log line without the engine's own time stamps and process names


class ServerInstance:
    """A `core.ports.Instance` over one server process."""

    def __init__(self, plan: ServerPlan) -> None:
        self._plan = plan
        self._kernel_kills = _count_kernel_kills()
        self._process = spawn(plan.command, env=engine_environment(plan.env), log_file=plan.log_file)
        self._was_stopped = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> Endpoint:
        try:
            wait_until_healthy(self._process, f"{self._plan.endpoint.url}/health", timeout_s)
        except ProcessEnded as ended:
            raise InstanceFailed(self._explain(ended.exit_code)) from None
        except TimeoutError:
            lines = self._messages()
            cause = f"It was not ready within {show_duration(timeout_s)} (limits.start)."
            raise InstanceFailed(_failure(Outcome.TIMEOUT, cause, lines, len(lines))) from None
        return self._plan.endpoint

    def facts(self) -> InstanceFacts:
        facts = self._plan.read_facts(without_key(self._process.log(), self._plan.endpoint.api_key))
        return facts.model_copy(update={"command": shown_command(self._plan)})

    def failure(self) -> Failure | None:
        exit_code = self._process.exit_code()
        return None if exit_code is None else self._explain(exit_code)

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
        return [self._plan.message_of(without_key(line, key)) for line in self._process.log_tail(_SEARCHED_LINES)]

    def _explain(self, exit_code: int) -> Failure:
        """The cause of an end: lack of memory first, then what the engine says it cannot do, then what it said."""
        lines = self._messages()
        if self._was_stopped:
            return _failure(Outcome.CRASHED, "It was stopped by bitbench.", lines, len(lines))
        for outcome, pattern in (
            (Outcome.OOM, _OUT_OF_MEMORY),
            (Outcome.UNSUPPORTED, self._plan.unsupported),
        ):
            place = next((number for number, line in enumerate(lines) if pattern.search(line)), None)
            if place is not None:
                return _failure(outcome, lines[place].strip(), lines, place)
        if exit_code == -signal.SIGKILL:
            cause = "It was killed by signal 9, most likely by the kernel's out-of-memory killer."
            return _failure(Outcome.OOM, cause, lines, len(lines))
        if _count_kernel_kills() > self._kernel_kills:
            cause = "It ended after the kernel's out-of-memory killer killed one of this machine's processes."
            return _failure(Outcome.OOM, cause, lines, len(lines))
        ended = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        # The first exception is the root; those after it report that another process died.
        place = next((number for number, line in enumerate(lines) if _EXCEPTION.match(line)), len(lines))
        said = f": {lines[place].strip()}" if place < len(lines) else "; its log gives no reason."
        return _failure(Outcome.CRASHED, f"It ended with {ended}{said}", lines, place)


def shown_command(plan: ServerPlan) -> tuple[str, ...]:
    """The command as it would be on any machine: without folders, and the same for every instance."""
    port = str(urlsplit(plan.endpoint.url).port)
    return tuple(re.sub(r"(^|=)/\S*/", r"\1", word).replace(port, "PORT") for word in plan.command)


def _failure(outcome: Outcome, cause: str, lines: Sequence[str], place: int) -> Failure:
    around = lines[max(0, place - _SHOWN_BEFORE) : place + _SHOWN_AFTER]
    return Failure(outcome=outcome, cause=printable(cause), log_lines=tuple(printable(line) for line in around))


def _count_kernel_kills() -> int:
    """How many processes the out-of-memory killer has ended on this machine since it was started."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
