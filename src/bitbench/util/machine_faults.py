"""Faults of this machine, or of what it allows us, never a result of an engine and no bug; a machine without Linux
is one."""

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
    errno.EMFILE: "too many open files; raise `ulimit -n` ({files:,} now), or lower the concurrency",
    errno.ENFILE: "this machine has too many open files; end other programs",
    errno.ENOMEM: "this machine has no memory left; end other programs",
    errno.ENOBUFS: "this machine has no memory left for connections; lower the concurrency",
    errno.EADDRNOTAVAIL: "this machine has no address or port left for another connection; lower the concurrency",
}
# What a process says that met one of them, in the C library's words.
SAID = re.compile(
    "|".join(
        os.strerror(number)
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE)
    ),
    re.IGNORECASE,
)
_PROBE_BYTES = 65_536  # more than a page, which may still be free on a full disk


def explain_machine_fault(error: OSError) -> str | None:
    """What is wrong with the machine and what to do, with the file it is about; None where the error is another."""
    sentence = _OF_FILES.get(error.errno or 0) or explain_machine_lack(error)
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    return None if sentence is None else where + sentence


def explain_machine_lack(error: OSError) -> str | None:
    """Likewise, but only where this machine has too little of something: other errors may be another machine's."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    sentence = _OF_RESOURCES.get(error.errno or 0)
    return None if sentence is None else sentence.format(files=files)


def disk_fault(folder: Path) -> str | None:
    """Why nothing more can be written to this folder; None where it can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return explain_machine_fault(OSError(error.errno, error.strerror, str(folder)))
    return None


NATIVE_ADVICE = "install bitbench's wheel, or g++ or clang++ and bitbench again"
SYSTEMS = {"Darwin": "macOS"}  # as people call them


def require_native() -> None:
    """Raise PlatformError where nothing can be measured, before anything is started or written."""
    require_linux()
    if find_spec("bitbench._native") is None:
        raise PlatformError(
            f"bitbench was installed without its native part, which measures; {NATIVE_ADVICE}"
        )


def require_linux() -> None:
    """Raise PlatformError elsewhere."""
    if (system := platform.system()) != "Linux":
        raise PlatformError(
            f"bitbench measures on Linux only, and this is {SYSTEMS.get(system, system)}; here it reads, compares and "
            "reports what a Linux machine measured (docs/platforms.md)"
        )
