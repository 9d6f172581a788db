"""What measures, and what it measures with, needs Linux: docs/platforms.md has the parts one by one."""

import platform

from bitbench.util.errors import PlatformError

SYSTEMS = {"Darwin": "macOS"}  # as people call them


def require_linux() -> None:
    """Raises PlatformError elsewhere, before anything is started or written."""
    if (system := platform.system()) != "Linux":
        raise PlatformError(
            f"bitbench measures on Linux only, and this is {SYSTEMS.get(system, system)}; here it reads, compares and "
            "reports what a Linux machine measured (docs/platforms.md)"
        )
