"""Quantities as people write and read them. Inside the program: seconds, bytes, fractions."""

import math
import re
import sys
from collections.abc import Mapping

# The pydantic context for files that people write and read: quantities have units.
BY_HAND = {"written": "by hand"}
UNKNOWN = "–"  # printed for an undefined value, never 0.00

# The system calls that wait count milliseconds in 31 bits: 24.8 days.
LONGEST_WAIT_S = 24 * 24 * 3600.0

# Integers, so that 700ms is 0.7 exactly: 700 × 0.001 is a little more.
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
# Possessive, so that a long row of digits is read only once, not once from each digit.
_QUANTITY = re.compile(
    r"\s*((?:[0-9]++(?:\.[0-9]++)?|\.[0-9]++)(?:e-?[0-9]+)?)\s*([a-zµ%]*)\s*", re.IGNORECASE
)


def parse_seconds(value: object) -> float:
    """Parse `"20ms"`, `"5m"`, `"1.5 s"`, or a number of seconds from a program.

    Raise ValueError for any other value, and for a text without a unit, since 200 may mean
    milliseconds.
    """
    number, unit = _parse_quantity(value, _SECONDS, "a duration such as 250ms, 30s, 10m or 2h")
    seconds = number * _SECONDS[unit or "s"]
    if unit in _PER_SECOND:
        seconds = number / _PER_SECOND[unit]  # exact, unlike the product
    if seconds > LONGEST_WAIT_S:
        raise ValueError(
            f"{show_wrong_value(value)} is too long; the longest duration is "
            f"{LONGEST_WAIT_S / 3600:.0f}h"
        )
    if isinstance(value, str) and number and not unit:
        text = value.strip()
        raise ValueError(f"{text} needs a unit; write {text}ms, {text}s or {text}m")
    return seconds


def parse_bytes(value: object) -> int:
    """Parse `"4GiB"`, `"500 MB"`, or a number of bytes from a program.

    Raise ValueError for any other value, and for a text without a unit.
    """
    number, unit = _parse_quantity(value, _BYTES, "a size such as 500MB or 4GiB")
    if unit or number == 0 or not isinstance(value, str):
        return round(number * _BYTES[unit or "b"])
    text = value.strip()
    raise ValueError(f"{text} needs a unit; write {text}GB, {text}MB or {text}B")


def parse_fraction(value: object) -> float:
    """Parse `"2%"` or `0.02`.

    Raise ValueError for any other value, and for a text of 1 or more without a percent sign: 3
    hardly means 300 %.
    """
    number, unit = _parse_quantity(value, {"%": 0.01}, "a share such as 2% or 0.02")
    if unit:
        return number * 0.01
    if isinstance(value, str) and number >= 1:
        text = value.strip()
        raise ValueError(f"{text} needs a percent sign; write {text}% or {number * 100:g}%")
    return number


def _parse_quantity(value: object, units: Mapping[str, float], expected: str) -> tuple[float, str]:
    """Return the number as it is written, and its unit, or "" if it has none."""
    match = None
    if _is_number(value) or isinstance(value, str):
        match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"expected {expected}, got {show_wrong_value(value)}")
    number = float(match[1])
    unit = match[2].lower()
    if unit and unit not in units:
        raise ValueError(
            f"unknown unit {show_wrong_value(unit)} in {show_wrong_value(value)}; "
            f"expected {expected}"
        )
    if not math.isfinite(number * units.get(unit, 1.0)):
        raise ValueError(f"{show_wrong_value(value)} is too large; expected {expected}")
    return number, unit


def format_number_text(value: object) -> object:
    """Return a number of a file as the text that a person wrote, and anything else as it is."""
    if _is_number(value):
        return str(value)
    return value


def format_exact_seconds(seconds: float) -> str:
    """Return a duration as a person would write it. `parse_seconds` gives the same number."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        text = f"{seconds / factor:g}{unit}"
        if seconds >= factor and _QUANTITY.fullmatch(text) and parse_seconds(text) == seconds:
            return text
    return f"{seconds!r}s"


def format_exact_bytes(count: int) -> str:
    return f"{count}B"


def _is_number(value: object) -> bool:
    """Return True for a number that Python can write and convert to a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not _is_huge(value)


def _is_huge(value: object) -> bool:
    return isinstance(value, int) and value.bit_length() > sys.float_info.max_exp


def show_wrong_value(value: object) -> str:
    """Return a wrong value for a message, shortened."""
    text = "a number of hundreds of digits" if _is_huge(value) else repr(value)
    if len(text) <= _LONGEST_SHOWN:
        return text
    return f"{text[:_LONGEST_SHOWN]}…"


def show_seconds(seconds: float | None) -> str:
    """Return a time with three significant digits and a readable unit: `12.3 ms`, `1.24 s`."""
    if seconds is None:
        return UNKNOWN
    if seconds == 0:
        return "0 s"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= factor:
            return f"{show_significant(seconds / factor)} {unit}"
    return f"{show_significant(seconds / 1e-9)} ns"


def show_duration(seconds: float | None) -> str:
    """Return a waiting time: `45 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds is None:
        return UNKNOWN
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def show_about(seconds: float, up_to: float | None = None) -> str:
    """Return a rounded estimate: `45 s`, `12 to 17 min`, `50 s to 3 min`, `5.3 h`, `24 days`."""
    if up_to is None:
        up_to = seconds
    low, low_unit = _round_duration(seconds)
    high, high_unit = _round_duration(up_to)
    if (low, low_unit) == (high, high_unit):
        return f"{low} {low_unit}"
    if low_unit == high_unit:
        return f"{low} to {high} {high_unit}"
    return f"{low} {low_unit} to {high} {high_unit}"


def _round_duration(seconds: float) -> tuple[str, str]:
    if seconds < 100:
        return f"{seconds:.0f}", "s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f}", "min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.2g}", "h"
    return f"{seconds / 86400:,.0f}", "days"


def show_bytes(count: float | None) -> str:
    """Return a size in binary units, as memory is sold: `269 MB` on disk is `257 MiB` here."""
    if count is None:
        return UNKNOWN
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= factor:
            return f"{show_significant(count / factor)} {unit}"
    return f"{count:.0f} B"


def show_percent(fraction: float | None, *, signed: bool = False) -> str:
    """Return a fraction in percent: `12.3 %`, with a sign if `signed`."""
    if fraction is None:
        return UNKNOWN
    sign = "+" if signed else ""
    return f"{fraction:{sign}.1%}".replace("%", " %")


def show_significant(value: float | None, digits: int = 3) -> str:
    """Return a number with significant digits and no exponent: `0.0123`, `4.56`, `1,234`."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    if abs(value) >= 1:
        magnitude = len(str(int(abs(value))))
        return f"{value:,.{max(digits - magnitude, 0)}f}"
    decimals = f"{abs(value):.12f}"[2:]
    leading_zeros = len(decimals) - len(decimals.lstrip("0"))
    return f"{value:.{min(leading_zeros + digits, 12)}f}"
