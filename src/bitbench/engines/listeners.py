"""Who listens on a port of this machine, as the kernel says under /proc."""

import contextlib
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

_LISTENING = "0A"  # TCP_LISTEN of the kernel's tcp_states.h
_ADDRESS, _STATE, _INODE = 1, 3, 9  # fields of a line in /proc/net/tcp


def _kernel_hex(address: bytes) -> str:
    """As /proc/net/tcp writes it: words of 32 bits, each as a number of this machine."""
    words = (address[place : place + 4] for place in range(0, len(address), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


_LOOPBACK = (
    _kernel_hex(socket.inet_aton("127.0.0.1")),
    _kernel_hex(socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1")),
)
_ANY_ADDRESS = (_kernel_hex(bytes(4)), _kernel_hex(bytes(16)))


def listening_sockets(port: int) -> set[str]:
    """The sockets, by inode, one of which gets what connects to this port of 127.0.0.1: those of the address itself,
    or, where it has none, those of all addresses. Several share it where they asked for that (SO_REUSEPORT)."""
    found: dict[str, set[str]] = defaultdict(set)
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # a kernel without IPv6
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                address, _, hex_port = fields[_ADDRESS].partition(":")
                if fields[_STATE] == _LISTENING and int(hex_port, 16) == port:
                    found[address].add(fields[_INODE])
    return _at(found, _LOOPBACK) or _at(found, _ANY_ADDRESS)


def _at(found: Mapping[str, set[str]], addresses: Iterable[str]) -> set[str]:
    return {inode for address in addresses for inode in found.get(address, ())}


def sockets_of(pids: Iterable[int]) -> set[str]:
    """The inodes of all sockets that these processes have open."""
    return {inode for pid in pids for inode in _sockets(pid)}


def describe_holders(inodes: set[str]) -> str:
    """`process 123 (python3)`: who has one of these sockets open, as far as this user may see it."""
    for path in Path("/proc").glob("[0-9]*"):
        if inodes & _sockets(int(path.name)):
            with contextlib.suppress(OSError):
                return f"process {path.name} ({(path / 'comm').read_text(encoding='utf-8', errors='replace').strip()})"
    return "a process of another user"


def _sockets(pid: int) -> set[str]:
    """Empty where it is gone, or another user's."""
    found = set()
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # closed in the meantime
                target = os.readlink(entry.path)  # noqa: PTH115 - it is no path: "socket:[4711]"
                if target.startswith("socket:["):
                    found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found
