"""Hardware capabilities: compute capabilities of GPUs, levels of processors, devices of kernels.
Imports nothing slow, so that --help stays quick.
"""

import re
from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

_VERSION = r"(\d{1,2})\.(\d)"
_RANGE = re.compile(rf"(?:>={_VERSION})? ?(?:<{_VERSION})?")


class Capability(NamedTuple):
    """A compute capability of an NVIDIA GPU."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


_LEAST = Capability(0, 0)
_MOST = Capability(100, 0)


class CapabilityRange(NamedTuple):
    """A half-open range of capabilities: `>=8.9 <10.0` contains 8.9 and 9.0."""

    least: Capability
    below: Capability

    def __contains__(self, capability: object) -> bool:
        return isinstance(capability, tuple) and self.least <= capability < self.below

    def overlaps(self, other: "CapabilityRange") -> bool:
        return self.least < other.below and other.least < self.below

    def __str__(self) -> str:
        """Return the range for a table: `from 8.9`, `below 8.0`, `7.5 to below 8.9`."""
        if self.below == _MOST:
            return f"from {self.least}"
        if self.least == _LEAST:
            return f"below {self.below}"
        return f"{self.least} to below {self.below}"


def parse_capability(text: str) -> Capability:
    """Parse a capability such as `8.9`. Raise ValueError if it is not one."""
    match = re.fullmatch(_VERSION, text)
    if match is None:
        raise ValueError(f"{text!r} is not a compute capability; write it as 8.9")
    return Capability(int(match[1]), int(match[2]))


def parse_capability_range(text: str) -> CapabilityRange:
    """Parse `>=8.9`, `<8.0` or `>=8.0 <8.9`. Raise ValueError if the range is wrong or empty."""
    match = _RANGE.fullmatch(text)
    if not text or match is None:
        raise ValueError(
            f"{text!r} is not a range of compute capabilities; write >=8.9, <8.0 or >=8.0 <8.9"
        )
    least = _LEAST
    if match[1]:
        least = Capability(int(match[1]), int(match[2]))
    below = _MOST
    if match[3]:
        below = Capability(int(match[3]), int(match[4]))
    if least >= below:
        raise ValueError(f"{text!r} holds for no compute capability")
    return CapabilityRange(least, below)


class Level(StrEnum):
    """A level of processors. The levels of each architecture are listed from best to worst."""

    AMX = "amx"
    AVX512_BF16 = "avx512_bf16"
    AVX512_VNNI = "avx512_vnni"
    AVX512 = "avx512"
    AVX_VNNI = "avx_vnni"
    AVX2 = "avx2"
    NEON_BF16 = "neon_bf16"
    NEON_DOT = "neon_dot"
    NEON = "neon"

    @property
    def has_bf16(self) -> bool:
        """Return True if the processor has bf16 instructions instead of emulating them."""
        return self in (Level.AMX, Level.AVX512_BF16, Level.NEON_BF16)

    @property
    def shown(self) -> str:
        """Return the name and a remark: `avx512 (no bf16 instructions)`."""
        if self.has_bf16:
            return self.value
        return f"{self.value} (no bf16 instructions)"


# The flags in /proc/cpuinfo that each level needs. The first level with all of its flags counts.
_FLAGS: dict[Level, frozenset[str]] = {
    Level.AMX: frozenset({"amx_tile", "amx_int8", "amx_bf16"}),
    Level.AVX512_BF16: frozenset({"avx512f", "avx512_bf16"}),
    Level.AVX512_VNNI: frozenset({"avx512f", "avx512_vnni"}),
    Level.AVX512: frozenset({"avx512f", "avx512bw", "avx512vl"}),
    Level.AVX_VNNI: frozenset({"avx2", "avx_vnni"}),
    Level.AVX2: frozenset({"avx2", "fma"}),
    Level.NEON_BF16: frozenset({"asimd", "asimddp", "bf16"}),
    Level.NEON_DOT: frozenset({"asimd", "asimddp"}),
    Level.NEON: frozenset({"asimd"}),
}


def find_hardware_level(flags: Collection[str]) -> Level | None:
    """Return the level of a processor. None if its flags are unknown or below all levels."""
    for level, needed in _FLAGS.items():
        if needed <= set(flags):
            return level
    return None


class KernelDevice(StrEnum):
    """A device, as torch spells it."""

    CPU = "cpu"
    CUDA = "cuda"
