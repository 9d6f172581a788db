"""Quantities as people write them, and as they read them. Inside the program: seconds, bytes, fractions."""

import math
import re
import sys
from collections.abc import Mapping

# The context in which pydantic reads what a person wrote, and writes what a person will read: with units.
BY_HAND = {"written": "by hand"}
UNKNOWN = "–"  # what is not defined prints as this, never as 0.00

# The system calls that wait count milliseconds in 31 bits: 24.8 days.
LONGEST_WAIT_S = 24 * 24 * 3600.0

# Whole numbers, so that 700ms are 0.7 exactly: 700 × 0.001 are a little more.
_PER_SECOND = {"ns": 10**9, "us": 10**6, "µs": 10**6, "ms": 10**3}
_SECONDS = {
    **{unit: 1 / count for unit, count in _PER_SECOND.items()},
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
}
_BYTES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_LONGEST_SHOWN = 60  # characters of a wrong value
# Possessive: a long row of digits is read once, not once from each digit.
_QUANTITY = re.compile(
    r"\s*((?:[0-9]++(?:\.[0-9]++)?|\.[0-9]++)(?:e-?[0-9]+)?)\s*([a-zµ%]*)\s*", re.IGNORECASE
)


def parse_seconds(value: object) -> float:
    """`"20ms"`, `"5m"`, `"1.5 s"`; of a program also a number of seconds. A text without a unit is refused: 200 may
    mean milliseconds."""
    number, unit = _parse(value, _SECONDS, "a duration such as 250ms, 30s, 10m or 2h")
    seconds = number / _PER_SECOND[unit] if unit in _PER_SECOND else number * _SECONDS[unit or "s"]
    if seconds > LONGEST_WAIT_S:
        raise ValueError(
            f"{show_wrong_value(value)} is too long; the longest duration is {LONGEST_WAIT_S / 3600:.0f}h"
        )
    if isinstance(value, str) and number and not unit:
        text = value.strip()
        raise ValueError(f"{text} needs a unit; write {text}ms, {text}s or {text}m")
    return seconds


def parse_bytes(value: object) -> int:
    """`"4GiB"`, `"500 MB"`; of a program also a number of bytes. A text without a unit is refused."""
    number, unit = _parse(value, _BYTES, "a size such as 500MB or 4GiB")
    if unit or number == 0 or not isinstance(value, str):
        return round(number * _BYTES[unit or "b"])
    text = value.strip()
    raise ValueError(f"{text} needs a unit; write {text}GB, {text}MB or {text}B")


def parse_fraction(value: object) -> float:
    """`"2%"` or `0.02`. A text that is 1 or more without a percent sign is refused: 3 hardly means 300 %."""
    number, unit = _parse(value, {"%": 0.01}, "a share such as 2% or 0.02")
    if unit:
        return number * 0.01
    if isinstance(value, str) and number >= 1:
        text = value.strip()
        raise ValueError(f"{text} needs a percent sign; write {text}% or {number * 100:g}%")
    return number


def _parse(value: object, units: Mapping[str, float], wanted: str) -> tuple[float, str]:
    """The number as it is written, and its unit; empty where it has none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"expected {wanted}, got {show_wrong_value(value)}")
    match = None if _is_huge(value) else _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"expected {wanted}, got {show_wrong_value(value)}")
    number, unit = match.group(1), match.group(2).lower()
    if unit and unit not in units:
        raise ValueError(
            f"unknown unit {show_wrong_value(unit)} in {show_wrong_value(value)}; expected {wanted}"
        )
    if not math.isfinite(float(number) * units.get(unit, 1.0)):
        raise ValueError(f"{show_wrong_value(value)} is too large; expected {wanted}")
    return float(number), unit


def written_value(value: object) -> object:
    """A number in a file as the text that a person wrote; anything else as it is."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number and not _is_huge(value) else value


def written_seconds(seconds: float) -> str:
    """As a person would write it; `parse_seconds` gives the same number."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        text = f"{seconds / factor:g}{unit}"
        if seconds >= factor and _QUANTITY.fullmatch(text) and parse_seconds(text) == seconds:
            return text
    return f"{seconds!r}s"


def written_bytes(count: int) -> str:
    return f"{count}B"


def _is_huge(value: object) -> bool:
    """A number that Python neither writes nor makes a float of."""
    return isinstance(value, int) and value.bit_length() > sys.float_info.max_exp


def show_wrong_value(value: object) -> str:
    """A wrong value as a message repeats it."""
    shown = "a number of hundreds of digits" if _is_huge(value) else repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"


def show_seconds(seconds: float | None) -> str:
    """Three significant digits and the unit that keeps them readable: `12.3 ms`, `1.24 s`."""
    if seconds is None:
        return UNKNOWN
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= factor:
            return f"{show_significant(seconds / factor)} {unit}"
    return "0 s" if seconds == 0 else f"{show_significant(seconds / 1e-9)} ns"


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


def show_about(seconds: float, up_to: float | None = None) -> str:
    """For estimates, no finer than they are: `45 s`, `12 to 17 min`, `50 s to 3 min`, `5.3 h`, `24 days`."""
    (low, unit), (high, other) = _about(seconds), _about(seconds if up_to is None else up_to)
    if (low, unit) == (high, other):
        return f"{low} {unit}"
    return f"{low} to {high} {unit}" if unit == other else f"{low} {unit} to {high} {other}"


def _about(seconds: float) -> tuple[str, str]:
    if seconds < 100:
        return f"{seconds:.0f}", "s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f}", "min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.2g}", "h"
    return f"{seconds / 86400:,.0f}", "days"


def show_bytes(count: float | None) -> str:
    """Binary units, as memory is sold and limited: `269 MB` on disk is `257 MiB` here."""
    if count is None:
        return UNKNOWN
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= factor:
            return f"{show_significant(count / factor)} {unit}"
    return f"{count:.0f} B"


def show_percent(fraction: float | None, *, signed: bool = False) -> str:
    if fraction is None:
        return UNKNOWN
    return f"{fraction:{'+' if signed else ''}.1%}".replace("%", " %")


def show_significant(value: float | None, digits: int = 3) -> str:
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
