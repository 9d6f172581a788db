"""Options that hold several values in one text."""

from bitbench.ground.errors import BitbenchError
from bitbench.ground.units import parse_seconds


def words(text: str | None) -> tuple[str, ...]:
    """`a, b` as ("a", "b")."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def numbers(text: str, option: str, error: type[BitbenchError]) -> tuple[float, ...]:
    """Positive ones, each once, in their order. Raises `error` with the option and what it takes."""
    try:
        found = tuple(dict.fromkeys(float(word) for word in words(text)))
    except ValueError:
        found = ()
    if not found or not all(0 < number < float("inf") for number in found):
        raise error(f"{option}: expected numbers such as 1,2,4, got {text!r}")
    return found


def counts(text: str, option: str, error: type[BitbenchError]) -> tuple[int, ...]:
    """Likewise, whole ones."""
    found = numbers(text, option, error)
    if any(number != int(number) for number in found):
        raise error(f"{option}: expected whole numbers such as 1,2,4, got {text!r}")
    return tuple(int(number) for number in found)


def seconds(text: str, option: str, error: type[BitbenchError]) -> float:
    """`10m`, `90s`; a bare number could be minutes as well, so it is refused."""
    if text.strip().replace(".", "", 1).isdigit():
        raise error(f"{option}: {text} needs a unit; write {text}s or {text}m")
    try:
        found = parse_seconds(text)
    except ValueError as problem:
        raise error(f"{option}: {problem}") from None
    if not 0 < found < float("inf"):
        raise error(f"{option}: expected a time above zero, got {text!r}")
    return found
