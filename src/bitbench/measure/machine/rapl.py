"""Energy of the processors by their own counters (RAPL), as Linux shows them in /sys/class/powercap.

Most virtual machines have none, and only root may read them unless somebody allowed more: then it is unknown.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
# A counter begins again at its range. The smallest in use, 65 kJ, lasts 65 s at 1 kW, more than any package takes.
READ_PERIOD_S = 10.0


@dataclass(frozen=True)
class EnergyZone:
    """A counter of microjoules. Raises OSError or ValueError where it cannot be read."""

    folder: Path

    def read(self, file: str = "energy_uj") -> int:
        return int((self.folder / file).read_text())

    def growth(self, before: int, now: int) -> int:
        """Since it was read before, less than one range ago."""
        return now - before if now >= before else now - before + self.read("max_energy_range_uj")


def energy_zones(root: Path = POWERCAP) -> tuple[EnergyZone, ...]:
    """Of every package, and of its memory where that has a counter; none where one of them cannot be read.

    Cores and graphics are counted with their package, and `psys` counts packages again.
    """
    found = []
    try:
        for folder in sorted(root.glob("intel-rapl:*")):
            if (folder / "name").read_text().strip().startswith(("package-", "dram")):
                zone = EnergyZone(folder)
                zone.read(), zone.read("max_energy_range_uj")
                found.append(zone)
    except (OSError, ValueError):
        return ()
    return tuple(found)


class EnergyMeter:
    """Around what is measured. Afterwards `energy_j` and `power_w` are known; None where a counter cannot be read."""

    def __init__(self, zones: Sequence[EnergyZone]) -> None:
        self._zones = zones
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="energy-meter", daemon=True)
        self._last: list[int] = []
        self._total_uj = 0
        self._is_broken = not zones
        self.energy_j: float | None = None
        self.power_w: float | None = None

    def __enter__(self) -> "EnergyMeter":
        self._began_s = time.monotonic()
        if self._zones:
            self._read()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._zones:
            return
        self._done.set()
        self._thread.join()
        self._read()
        if not self._is_broken:
            self.energy_j = self._total_uj / 1e6
            self.power_w = self.energy_j / (time.monotonic() - self._began_s)

    def _watch(self) -> None:
        while not self._done.wait(READ_PERIOD_S):
            self._read()

    def _read(self) -> None:
        try:
            now = [zone.read() for zone in self._zones]
            steps = zip(self._zones, self._last, now, strict=True) if self._last else ()
            self._total_uj += sum(zone.growth(before, after) for zone, before, after in steps)
            self._last = now
        except (OSError, ValueError):
            self._is_broken = True


def meter_energy(root_pid: int | None) -> EnergyMeter:
    """For an engine with this process at its root; of nothing where it is not on this machine."""
    return EnergyMeter(energy_zones() if root_pid is not None else ())
