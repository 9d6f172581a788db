"""The table that torch's profiler prints: columns of fixed width, with the totals below it."""

import re
from dataclasses import dataclass

from bitbench.util.units import parse_bytes, parse_seconds

_TOTAL = re.compile(r"Self (CPU|CUDA) time total: (\S+)")
_DEVICE = re.compile(r"^- Device: (.+)$")


@dataclass(frozen=True)
class OperatorRow:
    name: str
    calls: int
    self_cpu_s: float
    self_cpu_share: float
    cpu_total_s: float
    self_device_s: float | None
    self_memory_bytes: int | None


@dataclass(frozen=True)
class ProfileTable:
    device: str | None
    rows: tuple[OperatorRow, ...]
    self_cpu_s: float | None
    self_device_s: float | None


def read_profile(lines: list[str]) -> ProfileTable | None:
    """None where there is no such table."""
    place = next((place for place, line in enumerate(lines) if "Self CPU %" in line), None)
    if place is None:
        return None
    titles = re.split(r"\s{2,}", lines[place].strip())
    rows = [row for line in lines[place + 1 :] if (row := _row(line, titles))]
    totals = {match.group(1): parse_seconds(match.group(2)) for line in lines if (match := _TOTAL.search(line))}
    devices = [match.group(1).strip() for line in lines[:place] if (match := _DEVICE.match(line))]
    return ProfileTable(devices[-1] if devices else None, tuple(rows), totals.get("CPU"), totals.get("CUDA"))


def _row(line: str, titles: list[str]) -> OperatorRow | None:
    cells = re.split(r"\s{2,}", line.strip())
    if len(cells) != len(titles) or not cells[-1].isdigit():
        return None
    row = dict(zip(titles, cells, strict=True))
    return OperatorRow(
        name=row["Name"],
        calls=int(row["# of Calls"]),
        self_cpu_s=parse_seconds(row["Self CPU"]),
        self_cpu_share=float(row["Self CPU %"].rstrip("%")) / 100,
        cpu_total_s=parse_seconds(row["CPU total"]),
        self_device_s=parse_seconds(row["Self CUDA"]) if "Self CUDA" in row else None,
        self_memory_bytes=_bytes(row["Self CPU Mem"]) if "Self CPU Mem" in row else None,
    )


def _bytes(text: str) -> int:
    """torch writes `13.36 Mb` for MiB, and a minus for what was freed."""
    sign = -1 if text.startswith("-") else 1
    return sign * parse_bytes(re.sub(r"([KMG])b$", r"\1iB", text.lstrip("-")))
