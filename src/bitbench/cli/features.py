"""Commands of features, listed from what they declare and imported when they are called."""

from functools import cached_property
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from bitbench.cli.help import PlainCommand
from bitbench.feature import Command, Offer, commands


class FeatureCommand(TyperCommand):
    """Stands for a command whose code is not imported yet."""

    def __init__(self, command: Command, offer: Offer) -> None:
        super().__init__(
            name=command.name, help=command.help, rich_help_panel=command.panel, hidden=command.panel is None
        )
        self._offer = offer

    @cached_property
    def whole(self) -> TyperCommand:
        """The command itself, with its options. Imports it."""
        application = typer.Typer(add_completion=False, rich_markup_mode=None)
        application.command(self.name, cls=PlainCommand)(self._offer.load())
        command = get_command(application)
        assert isinstance(command, TyperCommand)
        return command

    def make_context(self, *given: Any, **named: Any) -> Any:
        return self.whole.make_context(*given, **named)


def feature_commands() -> dict[str, FeatureCommand]:
    """All that are declared, by name."""
    return {name: FeatureCommand(command, offer) for name, (command, offer) in commands().items()}
