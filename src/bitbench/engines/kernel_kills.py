"""How often the kernel's out-of-memory killer struck: the evidence without which a `kill -9` is somebody else's."""

from collections.abc import Iterator
from pathlib import Path

_VMSTAT = Path("/proc/vmstat")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def count_kernel_kills() -> int:
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


def _counted(path: Path) -> int:
    """0 where the file is missing, or has no such line."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
