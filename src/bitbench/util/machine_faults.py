"""Faults of this machine, including a system without Linux. They are neither results of an engine
nor bugs.
"""

import errno
import os
import platform
import re
import resource
import tempfile
from importlib.util import find_spec
from pathlib import Path

from bitbench.util.errors import PlatformError

_FULL = "the disk is full; free some space"
_FORBIDDEN = "permission denied; give another folder, or change its permissions"
_OF_FILES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would be larger than this shell allows; raise `ulimit -f`",
    errno.EROFS: "the file system is read-only; give another folder",
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EIO: "the disk or its connection fails; the kernel's log (`dmesg`) says more",
}
_OF_RESOURCES = {
    errno.EMFILE: (
        "too many open files; raise `ulimit -n` ({files:,} now), or lower the concurrency"
    ),
    errno.ENFILE: "this machine has too many open files; end other programs",
    errno.ENOMEM: "this machine has no memory left; end other programs",
    errno.ENOBUFS: "this machine has no memory left for connections; lower the concurrency",
    errno.EADDRNOTAVAIL: (
        "this machine has no address or port left for another connection; lower the concurrency"
    ),
}
_IN_LOGS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE)
# The messages of the C library for these faults, as a process writes them to its log.
SAID = re.compile("|".join(map(os.strerror, _IN_LOGS)), re.IGNORECASE)
_PROBE_BYTES = 65_536  # more than a page, which may still be free on a full disk


def explain_machine_fault(error: OSError) -> str | None:
    """Return the file, the fault of the machine and the remedy. None for any other error."""
    sentence = _OF_FILES.get(error.errno or 0) or explain_machine_lack(error)
    if sentence is None or not isinstance(error.filename, str | bytes):
        return sentence
    return f"{os.fsdecode(error.filename)}: {sentence}"


def explain_machine_lack(error: OSError) -> str | None:
    """Return the remedy if this machine lacks a resource, or None.

    Other errors may be faults of another machine.
    """
    sentence = _OF_RESOURCES.get(error.errno or 0)
    if sentence is None:
        return None
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sentence.format(files=files)


def find_disk_fault(folder: Path) -> str | None:
    """Return the reason why a folder cannot be written to, or None."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return explain_machine_fault(OSError(error.errno, error.strerror, str(folder)))
    return None


NATIVE_ADVICE = "install bitbench's wheel, or g++ or clang++ and bitbench again"
SYSTEMS = {"Darwin": "macOS"}  # as people call them


def require_native() -> None:
    """Raise PlatformError if nothing can be measured here. Call it before anything starts."""
    require_linux()
    if find_spec("bitbench._native") is None:
        raise PlatformError(
            f"bitbench was installed without its native part, which measures; {NATIVE_ADVICE}"
        )


def require_linux() -> None:
    """Raise PlatformError on any other system."""
    if (system := platform.system()) != "Linux":
        raise PlatformError(
            f"bitbench measures on Linux only, and this is {SYSTEMS.get(system, system)}; here it "
            "reads, compares and reports what a Linux machine measured (docs/platforms.md)"
        )
