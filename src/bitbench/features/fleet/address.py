"""`--on`: where the blocks of a study run."""

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bitbench.features.fleet.channel import NODE, Channel, PipeChannel, Roster, Seat
from bitbench.util.child_environment import bitbench_environment
from bitbench.util.child_python import own
from bitbench.util.errors import UsageError

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
        from bitbench.features.fleet.ray_cluster import RayRoster

        return RayRoster(rest, without_token=without_token)
    raise UsageError(f"--on {address}: give one of {FORMS}")


def _local(count: int) -> FixedRoster:
    """So many blocks at once on this machine: for engines that leave it idle, and to try a fleet."""
    if not 1 <= count <= MOST_LOCAL:
        raise UsageError(f"--on local:{count}: give a number from 1 to {MOST_LOCAL}")
    names = [f"local-{number}" for number in range(1, count + 1)]
    return FixedRoster(tuple(_seat(name, own(NODE, name), bitbench_environment()) for name in names))


def _ssh(hosts: Sequence[str]) -> FixedRoster:
    """bitbench must be installed there; BITBENCH_SSH_NODE is how its node program is started."""
    seats = []
    for host in hosts:
        if not _SSH_HOST.fullmatch(host):
            raise UsageError(f"--on ssh://: {host!r} is no host; write [USER@]HOST[:PORT], several with commas between")
        place, _, port = host.partition(":")
        remote = shlex.split(os.environ.get("BITBENCH_SSH_NODE", f"python3 -P -m {NODE}"))
        options = ["-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6"]
        command = ["ssh", *options, *(["-p", port] if port else []), place, shlex.join(remote)]
        seats.append(_seat(place, command, dict(os.environ)))
    return FixedRoster(tuple(seats))


def _seat(name: str, command: Sequence[str], environment: Mapping[str, str]) -> Seat:
    def connect(on_arrival: Callable[[], None]) -> Channel:
        return PipeChannel(command, environment, on_arrival)

    return Seat(name, name, connect)
