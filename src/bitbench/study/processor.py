"""The level of a processor: which instructions for matrix products it has, and which it lacks."""

from collections.abc import Collection
from enum import StrEnum


class Instructions(StrEnum):
    """Products in a small type, done by instructions of the processor and not by several others in their place."""

    BF16 = "bf16"
    INT8 = "int8"


MISSING = {Instructions.BF16: "no bf16 instructions", Instructions.INT8: "no int8 dot products"}


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
    def features(self) -> frozenset[Instructions]:
        return _FEATURES.get(self, frozenset())

    @property
    def lacks(self) -> tuple[Instructions, ...]:
        return tuple(feature for feature in Instructions if feature not in self.features)

    @property
    def shown(self) -> str:
        """`avx512 (no bf16 instructions, no int8 dot products)`"""
        missing = ", ".join(MISSING[feature] for feature in self.lacks)
        return f"{self.value} ({missing})" if missing else self.value


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
_FEATURES: dict[Level, frozenset[Instructions]] = {
    Level.AMX: frozenset(Instructions),
    Level.AVX512_BF16: frozenset(Instructions),  # no processor has it without VNNI
    Level.AVX512_VNNI: frozenset({Instructions.INT8}),
    Level.AVX_VNNI: frozenset({Instructions.INT8}),
    Level.NEON_BF16: frozenset(Instructions),
    Level.NEON_DOT: frozenset({Instructions.INT8}),
}


def level_of(flags: Collection[str]) -> Level | None:
    """None where the flags are unknown, or of a processor below all levels."""
    return next((level for level, needed in _FLAGS.items() if needed <= set(flags)), None)
