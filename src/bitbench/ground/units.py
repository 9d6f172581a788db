"""Quantities as people write them, and as they read them. Inside the program: seconds, bytes, fractions."""

import math
import re
import sys

UNKNOWN = "–"  # what is not defined prints as this, never as 0.00

# The system calls that wait count milliseconds in 31 bits: 24.8 days.
LONGEST_WAIT_S = 24 * 24 * 3600.0

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_LONGEST_SHOWN = 60  # characters of a wrong value that a message repeats
# Possessive: a long row of digits is read once, not once from each digit.
_QUANTITY = re.compile(r"\s*((?:[0-9]++(?:\.[0-9]++)?|\.[0-9]++)(?:e-?[0-9]+)?)\s*([a-zµ%]*)\s*", re.IGNORECASE)


def parse_seconds(value: object) -> float:
    """`"20ms"`, `"5m"`, `"1.5 s"` or a plain number of seconds."""
    seconds = _parse(value, _SECONDS, "s", "a duration such as 250ms, 30s, 10m or 2h")
    if seconds > LONGEST_WAIT_S:
        raise ValueError(f"{_shown(value)} is too long; the longest duration is {LONGEST_WAIT_S / 3600:.0f}h")
    return seconds


def parse_bytes(value: object) -> int:
    """`"4GiB"`, `"500 MB"` or a plain number of bytes."""
    return round(_parse(value, _BYTES, "b", "a size such as 500MB, 4GiB or 1073741824"))


def parse_fraction(value: object) -> float:
    """`"2%"` or `0.02`."""
    return _parse(value, {"%": 0.01, "": 1.0}, "", "a share such as 2% or 0.02")


def _parse(value: object, factors: dict[str, float] | dict[str, int], bare: str, wanted: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"expected {wanted}, got {_shown(value)}")
    match = None if _is_huge(value) else _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"expected {wanted}, got {_shown(value)}")
    number, unit = match.groups()
    unit = unit.lower() or bare
    if unit not in factors:
        raise ValueError(f"unknown unit {_shown(unit)} in {_shown(value)}; expected {wanted}")
    quantity = float(number) * factors[unit]
    if not math.isfinite(quantity):
        raise ValueError(f"{_shown(value)} is too large; expected {wanted}")
    return quantity


def _is_huge(value: object) -> bool:
    """A number that Python neither writes nor makes a float of."""
    return isinstance(value, int) and value.bit_length() > sys.float_info.max_exp


def _shown(value: object) -> str:
    shown = "a number of hundreds of digits" if _is_huge(value) else repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"


def show_seconds(seconds: float | None) -> str:
    """Three significant digits and the unit that keeps them readable: `12.3 ms`, `1.24 s`."""
    if seconds is None:
        return UNKNOWN
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= factor:
            return f"{significant(seconds / factor)} {unit}"
    return "0 s" if seconds == 0 else f"{significant(seconds / 1e-9)} ns"


def show_duration(seconds: float | None) -> str:
    """For waiting times: `45 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds is None:
        return UNKNOWN
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def show_bytes(count: float | None) -> str:
    """Binary units, as memory is sold and limited: `269 MB` on disk is `257 MiB` here."""
    if count is None:
        return UNKNOWN
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= factor:
            return f"{significant(count / factor)} {unit}"
    return f"{count:.0f} B"


def show_percent(fraction: float | None, *, signed: bool = False) -> str:
    if fraction is None:
        return UNKNOWN
    return f"{fraction:{'+' if signed else ''}.1%}".replace("%", " %")


def significant(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent: `0.0123`, `4.56`, `1,234`."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    if magnitude:
        return f"{value:,.{max(digits - magnitude, 0)}f}"
    leading_zeros = len(re.match(r"0*", f"{abs(value):.12f}"[2:]).group())  # type: ignore[union-attr]
    return f"{value:.{min(leading_zeros + digits, 12)}f}"
