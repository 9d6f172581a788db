"""Values that a person gave: made, or refused in one sentence."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from bitbench.study.objective import Objective, Objectives
from bitbench.util.errors import UsageError

T = TypeVar("T")


def checked(make: Callable[[], T], *, about: str = "") -> T:
    """The value, or UsageError with the first thing that is wrong with it.

    `about` is what the person calls the value, such as an option; without it the field that is wrong is named.
    """
    try:
        return make()
    except ValidationError as invalid:
        first = invalid.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(_sentence(about or field, first["msg"].removeprefix("Value error, "))) from None
    except ValueError as problem:
        raise UsageError(_sentence(about, str(problem))) from None


def checked_objectives(given: str | Mapping[str, str | float] | None, *, about: str = "--slo") -> tuple[Objective, ...]:
    """From `ttft_p99=200ms,tpot_p99=20ms`, or from names and limits in seconds."""
    if given is None:
        return ()
    return checked(lambda: TypeAdapter[tuple[Objective, ...]](Objectives).validate_python(given), about=about)


def _sentence(about: str, problem: str) -> str:
    return f"{about}: {problem}" if about else problem
