"""What hardware can compute: compute capabilities of GPUs, levels of processors, devices of kernels. Without imports
that take time, so that --help stays quick."""

import re
from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

_VERSION = r"(\d{1,2})\.(\d)"
_RANGE = re.compile(rf"(?:>={_VERSION})? ?(?:<{_VERSION})?")


class Capability(NamedTuple):
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


_LEAST, _MOST = Capability(0, 0), Capability(100, 0)


class CapabilityRange(NamedTuple):
    """Half open: `>=8.9 <10.0` holds for 8.9 and 9.0."""

    least: Capability
    below: Capability

    def __contains__(self, capability: object) -> bool:
        return isinstance(capability, tuple) and self.least <= capability < self.below

    def overlaps(self, other: "CapabilityRange") -> bool:
        return self.least < other.below and other.least < self.below

    def __str__(self) -> str:
        """For a table: `from 8.9`, `below 8.0`, `7.5 to below 8.9`."""
        if self.below == _MOST:
            return f"from {self.least}"
        return (
            f"below {self.below}" if self.least == _LEAST else f"{self.least} to below {self.below}"
        )


def parse_capability(text: str) -> Capability:
    """`8.9`; raises ValueError."""
    found = re.fullmatch(_VERSION, text)
    if found is None:
        raise ValueError(f"{text!r} is not a compute capability; write it as 8.9")
    return Capability(int(found[1]), int(found[2]))


def parse_capability_range(text: str) -> CapabilityRange:
    """`>=8.9`, `<8.0` or `>=8.0 <8.9`; raises ValueError."""
    found = _RANGE.fullmatch(text)
    if not text or found is None:
        raise ValueError(
            f"{text!r} is not a range of compute capabilities; write >=8.9, <8.0 or >=8.0 <8.9"
        )
    least = Capability(int(found[1]), int(found[2])) if found[1] else _LEAST
    below = Capability(int(found[3]), int(found[4])) if found[3] else _MOST
    if least >= below:
        raise ValueError(f"{text!r} holds for no compute capability")
    return CapabilityRange(least, below)


class Level(StrEnum):
    """Each kind of processors from the best to the least."""

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
        """Whether it multiplies bfloat16 by instructions of its own, not by several others in their place."""
        return self in (Level.AMX, Level.AVX512_BF16, Level.NEON_BF16)

    @property
    def shown(self) -> str:
        """`avx512 (no bf16 instructions)`"""
        return self.value if self.has_bf16 else f"{self.value} (no bf16 instructions)"


# By flags of /proc/cpuinfo; the first level that has all of its own is the processor's.
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


def hardware_level(flags: Collection[str]) -> Level | None:
    """None where the flags are unknown, or of a processor below all levels."""
    return next((level for level, needed in _FLAGS.items() if needed <= set(flags)), None)


class KernelDevice(StrEnum):
    """As torch spells it."""

    CPU = "cpu"
    CUDA = "cuda"
