"""Options that hold several values in one text."""

from bitbench.study.capability import Capability, parse_capability
from bitbench.util.errors import UsageError
from bitbench.util.units import parse_seconds


def words(text: str | None) -> tuple[str, ...]:
    """`a, b` as ("a", "b")."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def numbers(text: str, option: str) -> tuple[float, ...]:
    """Positive ones, each once, in their order. Raises UsageError with the option and what it takes."""
    try:
        found = tuple(dict.fromkeys(float(word) for word in words(text)))
    except ValueError:
        found = ()
    if not found or not all(0 < number < float("inf") for number in found):
        raise UsageError(f"{option}: expected numbers such as 1,2,4, got {text!r}")
    return found


def counts(text: str, option: str) -> tuple[int, ...]:
    """Likewise, whole ones."""
    found = numbers(text, option)
    if any(number != int(number) for number in found):
        raise UsageError(f"{option}: expected whole numbers such as 1,2,4, got {text!r}")
    return tuple(int(number) for number in found)


def seconds(text: str, option: str) -> float:
    """`10m`, `90s`."""
    try:
        found = parse_seconds(text)
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from None
    if not 0 < found < float("inf"):
        raise UsageError(f"{option}: expected a time above zero, got {text!r}")
    return found


def compute_capability(text: str, option: str) -> Capability:
    """`8.9`."""
    try:
        return parse_capability(text)
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from None
