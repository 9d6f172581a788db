"""Quantities as people write them, and as they read them. Inside the program: seconds, bytes, fractions."""

import re
from collections.abc import Mapping

# The context in which pydantic reads what a person wrote, and writes what a person will read: with units.
BY_HAND = {"written": "by hand"}
UNKNOWN = "–"  # what is not defined prints as this, never as 0.00

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*([a-zµ%]*)\s*", re.IGNORECASE)


def parse_seconds(value: object) -> float:
    """`"20ms"`, `"5m"`, `"1.5 s"`; of a program also a number of seconds. A text without a unit is refused: 200 may
    mean milliseconds."""
    number, unit = _parse(value, _SECONDS, "a duration such as 250ms, 30s, 10m or 2h")
    if unit or number == 0 or not isinstance(value, str):
        return number * _SECONDS[unit or "s"]
    text = value.strip()
    raise ValueError(f"{text} needs a unit; write {text}ms, {text}s or {text}m")


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
        raise ValueError(f"expected {wanted}, got {value!r}")
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"expected {wanted}, got {value!r}")
    number, unit = match.group(1), match.group(2).lower()
    if unit and unit not in units:
        raise ValueError(f"unknown unit {unit!r} in {value!r}; expected {wanted}")
    return float(number), unit


def written_seconds(seconds: float) -> str:
    """As a person would write it; `parse_seconds` gives the same number."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        text = f"{seconds / factor:g}{unit}"
        if seconds >= factor and _QUANTITY.fullmatch(text) and parse_seconds(text) == seconds:
            return text
    return f"{seconds!r}s"


def written_bytes(count: int) -> str:
    return f"{count}B"


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
