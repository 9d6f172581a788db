"""What `--help` prints: commands and options in panels, on one screen; and commands that are imported when they are
called. Without rich, so that it stays quick."""

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command, get_group

from bitbench.feature import Command, Offer, Panel

WORDS = {
    "int": "N",
    "INTEGER": "N",
    "float": "NUMBER",
    "FLOAT": "NUMBER",
    "path": "PATH",
    "str": "TEXT",
}
REFERENCE = "docs/cli.md"
_ARGUMENTS, _OPTIONS = "Arguments", "Options"


class PlainCommand(TyperCommand):
    """Options in the panels that they name (`rich_help_panel`); hidden ones are named in the last line."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [self.options_metavar or "", *help_usages(self)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_panels(self, ctx, formatter)


class PlainGroup(TyperGroup):
    """Commands in the order of their panels, before the options; hidden ones are named in the last line."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _write_panels(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        shown = [(name, command) for name, command in self.commands.items() if not command.hidden]
        wide = max((len(_panel_of(command)) for _, command in shown), default=0)
        rows, last = [], ""
        for name, command in shown:
            panel = _panel_of(command)
            rows.append(
                (
                    f"{panel if panel != last else '':<{wide}} {name}".rstrip(),
                    command.get_short_help_str(1000),
                )
            )
            last = panel
        with formatter.section("Commands"):
            formatter.write_dl(rows if wide else [(name.strip(), text) for name, text in rows])


class PlainTyper(typer.Typer):
    """A group of such commands."""

    def __init__(self, **named: Any) -> None:
        super().__init__(
            **{"cls": PlainGroup, "rich_markup_mode": None, "no_args_is_help": True, **named}
        )

    def command(self, name: str | None = None, **named: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": PlainCommand, **named})


def _panel_of(shown: Any) -> str:
    return str(getattr(shown, "rich_help_panel", None) or "")


def help_order(commands: dict[str, Any]) -> dict[str, Any]:
    """By panel; rare ones, which have none, at the end."""
    panels = [*(panel.value for panel in Panel), ""]
    return dict(sorted(commands.items(), key=lambda item: panels.index(_panel_of(item[1]))))


def help_usages(command: TyperCommand) -> list[str]:
    """Return `STUDY_DIR`, and `[NAME]` where it may be left out, however the version of typer shows them."""
    arguments = [parameter for parameter in command.params if isinstance(parameter, TyperArgument)]
    names = [(argument.required, _argument_name(argument)) for argument in arguments]
    return [name if required or name.startswith("[") else f"[{name}]" for required, name in names]


def _argument_name(argument: TyperArgument) -> str:
    return argument.metavar or str(argument.name).upper()


def _write_panels(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: []}
    rare = [name for name, found in getattr(command, "commands", {}).items() if found.hidden]
    parameters: list[Any] = command.get_params(ctx)
    for parameter in parameters:
        if parameter.hidden:
            rare.append(parameter.opts[0])
            continue
        usual = _ARGUMENTS if isinstance(parameter, TyperArgument) else _OPTIONS
        panels.setdefault(_panel_of(parameter) or usual, []).append(help_record(parameter, ctx))
    for title in sorted(panels, key=lambda title: title == _OPTIONS):
        if panels[title]:
            with formatter.section(title):
                formatter.write_dl(panels[title])
    if rare:
        formatter.write_paragraph()
        formatter.write_text(f"Also: {', '.join(rare)}; see {REFERENCE}.")


def help_record(parameter: Any, ctx: Any) -> tuple[str, str]:
    """Return names and text as typer has them, with our words for types and without ranges."""
    names, text = parameter.get_help_record(ctx)
    if isinstance(parameter, TyperArgument):
        names = _argument_name(parameter)
    names = re.sub(
        r"\b(INTEGER|FLOAT)(?: RANGE)?\b", r"<\1>", names
    )  # as older versions of typer have them
    names = re.sub(
        r"<(?:list\[)?([^>\]]*)\]?>",
        lambda kind: WORDS.get(kind[1].removesuffix(" range"), kind[1]),
        names,
    )
    without_range = re.sub(
        r"  \[[^;\[\]]*x[<>][^;\]]*\]$|; [^;\[\]]*x[<>][^;\]]*(?=[;\]])", "", text
    )
    return names, " ".join(without_range.split())


class LazyCommand(TyperCommand):
    """Stands for a command, or a group of some, whose code is not imported yet."""

    def __init__(self, command: Command, offer: Offer) -> None:
        super().__init__(
            name=command.name,
            help=command.help,
            rich_help_panel=command.panel,
            hidden=command.panel is None,
        )
        self._offer = offer

    @cached_property
    def whole(self) -> TyperCommand | TyperGroup:
        """The command itself, with its options. Imports it."""
        found = self._offer.load()
        if isinstance(found, typer.Typer):
            return get_group(found)
        application = typer.Typer(add_completion=False, rich_markup_mode=None)
        application.command(self.name, cls=PlainCommand)(found)
        command = get_command(application)
        assert isinstance(command, TyperCommand)
        return command

    def make_context(self, *given: Any, **named: Any) -> Any:
        return self.whole.make_context(*given, **named)
