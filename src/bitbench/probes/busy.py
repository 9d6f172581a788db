"""Is somebody else using this machine? Then figures are not the engine's alone."""

import psutil

LOOK_S = 1.0
# The kernel, a desktop and ourselves take a few percent; a tenth of a core is somebody's work.
BUSY_CORES = 0.1


def cores_in_use(look_s: float = LOOK_S) -> float:
    """How many cores were busy while we looked and did nothing ourselves."""
    return float(psutil.cpu_percent(interval=look_s)) / 100 * (psutil.cpu_count() or 1)
