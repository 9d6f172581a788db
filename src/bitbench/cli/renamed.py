"""Choices of which some had another name before: that one is still accepted, and no longer listed."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

import typer

Choice = TypeVar("Choice", bound=StrEnum)


def listed(choices: type[StrEnum]) -> str:
    """`<csv|json>`, as the help of other choices shows them."""
    return f"<{'|'.join(choice.value for choice in choices)}>"


def parser_of(choices: type[Choice], old_names: Mapping[str, Choice]) -> Callable[[str], Choice]:
    known = {choice.value: choice for choice in choices}

    def parse(name: str) -> Choice:
        found = known.get(name) or old_names.get(name)
        if found is None:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, known))}.")
        return found

    return parse
