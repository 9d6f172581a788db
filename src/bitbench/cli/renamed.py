"""Choices of which some had another name before: that one is still accepted, and no longer listed."""

from collections.abc import Mapping
from enum import StrEnum

import click


class RenamedChoice(click.Choice[str]):
    def __init__(self, choices: type[StrEnum], old_names: Mapping[str, str]) -> None:
        super().__init__([choice.value for choice in choices])
        self._old_names = old_names

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(self._old_names.get(value, value), param, ctx)
