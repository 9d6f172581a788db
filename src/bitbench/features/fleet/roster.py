"""`--on`: which machines there are, named one by one or by a Ray cluster, and how each is reached.

Ray places and carries, and decides nothing: an actor is never restarted and no call is retried, since a block that
ran twice without a word would be in the records twice. Whether a machine is alive is our own question too: Ray
notices a cut cable after seven minutes.
"""

import contextlib
import os
import re
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from bitbench.features.fleet.channel import (
    NODE,
    Channel,
    ChannelClosed,
    Inbox,
    Message,
    PipeChannel,
    Roster,
    Seat,
    decode_channel_message,
    encode_channel_message,
)
from bitbench.util.child_processes import NOWHERE, bitbench_child_variables, bitbench_command
from bitbench.util.errors import FleetError, UsageError

LISTEN_S = 5.0  # so long a call waits for something to arrive: an idle machine is asked twelve times a minute
CALL_S = 20.0  # after which a call is given up and made again; whoever is silent for a minute is lost anyway
_CANNOT = "Ray is not installed here; install it with: pip install 'bitbench[fleet]'"
# Ray would hide all GPUs from an actor that asks it for none.
_ENVIRONMENT = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayRoster:
    """`address`: HEAD:PORT of a cluster whose node this process runs on, with `?resource=NAME` or `?label=NAME=VALUE`
    for a class of machines."""

    def __init__(self, address: str, *, without_token: bool) -> None:
        place, _, asked = address.partition("?")
        self._resource, self._label = _wanted(asked)
        if os.environ.get("RAY_AUTH_MODE") != "token" and not without_token:
            raise FleetError(
                "without a token anybody who reaches a Ray cluster can run code on it; start it with "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, and set both here, or accept it with --insecure-cluster"
            )
        self._ray = _ray()
        try:
            with contextlib.chdir(NOWHERE):  # Ray's workers import from the folder that it was started in
                self._ray.init(address=place, log_to_driver=False, logging_level="error", ignore_reinit_error=True)
        except Exception as error:  # Ray has a dozen, some of them only RuntimeError
            raise FleetError(f"the Ray cluster at {place} cannot be reached: {_why(error)}") from error

    def seats(self) -> Sequence[Seat]:
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        fitting = [node for node in alive if self._fits(node)]
        if not fitting:
            raise FleetError(f"no node of the Ray cluster has {self._asked}; {_offers(alive)}")
        names = Counter(node["NodeManagerHostname"] for node in fitting)
        return [self._seat(node, is_alone=names[node["NodeManagerHostname"]] == 1) for node in fitting]

    def close(self) -> None:
        self._ray.shutdown()

    @property
    def _asked(self) -> str:
        if self._resource:
            return f"the resource {self._resource}"
        return f"the label {self._label[0]}={self._label[1]}" if self._label else "any resources"

    def _fits(self, node: Mapping[str, Any]) -> bool:
        if self._resource and not node["Resources"].get(self._resource):
            return False
        return self._label is None or node.get("Labels", {}).get(self._label[0]) == self._label[1]

    def _seat(self, node: Mapping[str, Any], *, is_alone: bool) -> Seat:
        host = str(node["NodeManagerHostname"])
        name = host if is_alone else f"{host}-{node['NodeManagerAddress']}"

        def connect(on_arrival: Callable[[], None]) -> Channel:
            return _RayChannel(self._ray, str(node["NodeID"]), on_arrival)

        return Seat(name, str(node["NodeID"]), connect)


class Relay:
    """The actor: a node program on its machine, whose pipes it serves."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._channel = PipeChannel(bitbench_command(NODE), bitbench_child_variables(), self._arrived.set)

    def send(self, frame: bytes) -> None:
        self._channel.send(decode_channel_message(frame))

    def receive(self, wait_s: float) -> list[bytes]:
        """What has arrived; waits for the first."""
        found: list[bytes] = []
        while not found:
            self._arrived.clear()
            while (arrived := self._channel.receive()) is not None:
                found.append(encode_channel_message(arrived))
            if not found and not self._arrived.wait(wait_s):
                break
        return found

    def close(self) -> None:
        self._channel.close()


class _RayChannel:
    """A `fleet.channel.Channel`. What is lost on the way is asked for again by whoever waits for it."""

    def __init__(self, ray: Any, node_id: str, on_arrival: Callable[[], None]) -> None:
        self._ray, self._on_arrival = ray, on_arrival
        self._inbox = Inbox()
        self._is_closed = threading.Event()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._actor = (
            ray.remote(Relay)
            .options(
                num_cpus=0,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
                runtime_env={"env_vars": _ENVIRONMENT},
            )
            .remote()
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, sent: Message) -> None:
        if self._inbox.end is not None:
            raise self._inbox.end
        self._actor.send.remote(encode_channel_message(sent))  # how it went is seen by what comes back

    def receive(self) -> Message | None:
        return self._inbox.receive()

    def close(self) -> None:
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        with contextlib.suppress(Exception):  # it may be gone, or out of reach
            self._ray.get(self._actor.close.remote(), timeout=CALL_S)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)

    def _listen(self) -> None:
        errors = self._ray.exceptions
        while not self._is_closed.is_set():
            try:
                for frame in self._ray.get(self._actor.receive.remote(LISTEN_S), timeout=LISTEN_S + CALL_S):
                    self._inbox.put(decode_channel_message(frame))
            except (errors.GetTimeoutError, errors.ActorUnavailableError):
                self._is_closed.wait(1.0)  # it may come back; how long that is waited for is not decided here
                continue
            except Exception as error:
                self._inbox.put(ChannelClosed(f"its actor is gone: {_first_line(error)}"))
                self._on_arrival()
                return
            self._on_arrival()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise FleetError(_CANNOT) from None
    return ray


def _wanted(asked: str) -> tuple[str | None, tuple[str, str] | None]:
    fields = parse_qs(asked, keep_blank_values=True)
    label = fields.pop("label", [""])[0]
    resource = fields.pop("resource", [""])[0]
    if fields or (label and "=" not in label):
        raise UsageError(f"--on ray://…?{asked}: write ?resource=NAME or ?label=NAME=VALUE")
    name, _, value = label.partition("=")
    return resource or None, (name, value) if label else None


def _offers(nodes: Sequence[Mapping[str, Any]]) -> str:
    if not nodes:
        return "no node is alive"
    there = sorted({name for node in nodes for name in node["Resources"] if not name.startswith("node:")})
    return f"there are {', '.join(there)} on {len(nodes)} node{'s' if len(nodes) > 1 else ''}"


def _why(failed: BaseException) -> str:
    """Ray hides a refused token behind a connection that failed."""
    error: BaseException | None = failed
    while error is not None:
        if type(error).__name__ == "AuthenticationError":
            return "it refuses the token; RAY_AUTH_TOKEN_PATH must name a file with the token that it was started with"
        error = error.__cause__ or error.__context__
    return _first_line(failed)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


MOST_LOCAL = 64
_LOCAL = re.compile(r"local:(\d{1,3})", re.ASCII)
_SSH_HOST = re.compile(r"(?:[\w.-]+@)?[\w][\w.-]*(?::\d{1,5})?", re.ASCII)
FORMS = "local:N, ssh://HOST,HOST or ray://HEAD:PORT"


@dataclass(frozen=True)
class FixedRoster:
    """Machines that were named one by one."""

    fixed: tuple[Seat, ...]

    def seats(self) -> Sequence[Seat]:
        return self.fixed

    def close(self) -> None:
        """Nothing is kept open beside the channels."""


def roster_of(address: str, *, without_token: bool = False) -> Roster:
    """Raises UsageError for what is none of the forms. `without_token`: a Ray cluster that is open to all will do."""
    scheme, _, rest = address.partition("://")
    if found := _LOCAL.fullmatch(address):
        return _local(int(found[1]))
    if scheme == "ssh" and rest:
        return _ssh(rest.split(","))
    if scheme == "ray" and rest:
        return RayRoster(rest, without_token=without_token)
    raise UsageError(f"--on {address}: give one of {FORMS}")


def _local(count: int) -> FixedRoster:
    """So many blocks at once on this machine: for engines that leave it idle, and to try a fleet."""
    if not 1 <= count <= MOST_LOCAL:
        raise UsageError(f"--on local:{count}: give a number from 1 to {MOST_LOCAL}")
    names = [f"local-{number}" for number in range(1, count + 1)]
    return FixedRoster(tuple(_seat(name, bitbench_command(NODE, name), bitbench_child_variables()) for name in names))


def _ssh(hosts: Sequence[str]) -> FixedRoster:
    """bitbench must be installed there; BITBENCH_SSH_NODE is how its node program is started."""
    seats = []
    named = Counter(host.partition(":")[0] for host in hosts)
    for host in hosts:
        if not _SSH_HOST.fullmatch(host):
            raise UsageError(f"--on ssh://: {host!r} is no host; write [USER@]HOST[:PORT], several with commas between")
        place, _, port = host.partition(":")
        remote = shlex.split(os.environ.get("BITBENCH_SSH_NODE", f"python3 -P -m {NODE}"))
        options = ["-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6"]
        command = ["ssh", *options, *(["-p", port] if port else []), place, shlex.join(remote)]
        name = place if named[place] == 1 else host  # machines behind one address differ in their port
        seats.append(_seat(name, command, dict(os.environ)))
    return FixedRoster(tuple(seats))


def _seat(name: str, command: Sequence[str], environment: Mapping[str, str]) -> Seat:
    def connect(on_arrival: Callable[[], None]) -> Channel:
        return PipeChannel(command, environment, on_arrival)

    return Seat(name, name, connect)
