"""The output of `--help`: commands and options in panels, on one screen. It works without rich, and
imports a command only when it is called, so that it stays quick."""

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
_ARGUMENTS = "Arguments"
_OPTIONS = "Options"


class PlainCommand(TyperCommand):
    """A command with options in their panels (`rich_help_panel`). The last line lists hidden
    ones."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [self.options_metavar or "", *list_usages(self)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_panels(self, ctx, formatter)


class PlainGroup(TyperGroup):
    """A group with commands in the order of their panels, before the options. The last line lists
    hidden commands."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _write_panels(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        visible = {name: item for name, item in self.commands.items() if not item.hidden}
        width = max((len(_get_panel(command)) for command in visible.values()), default=0)
        rows: list[tuple[str, str]] = []
        last_panel = ""
        for name, command in visible.items():
            panel = _get_panel(command)
            title = name
            if width:
                heading = "" if panel == last_panel else panel
                title = f"{heading:<{width}} {name}".rstrip()
            rows.append((title, command.get_short_help_str(1000)))
            last_panel = panel
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class PlainTyper(typer.Typer):
    """A Typer application of such groups and commands."""

    def __init__(self, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "cls": PlainGroup,
            "rich_markup_mode": None,
            "no_args_is_help": True,
        }
        super().__init__(**{**defaults, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": PlainCommand, **options})


def _get_panel(item: Any) -> str:
    return str(getattr(item, "rich_help_panel", None) or "")


def sort_by_panel(commands: dict[str, Any]) -> dict[str, Any]:
    """Return the commands sorted by panel. Rare ones, which have no panel, come last."""
    panels = [*(panel.value for panel in Panel), ""]
    return dict(sorted(commands.items(), key=lambda item: panels.index(_get_panel(item[1]))))


def list_usages(command: TyperCommand) -> list[str]:
    """Return `STUDY_DIR`, or `[NAME]` for an optional argument, for any version of typer."""
    usages: list[str] = []
    for parameter in command.params:
        if isinstance(parameter, TyperArgument):
            name = _get_argument_name(parameter)
            is_bare = parameter.required or name.startswith("[")
            usages.append(name if is_bare else f"[{name}]")
    return usages


def _get_argument_name(argument: TyperArgument) -> str:
    return argument.metavar or str(argument.name).upper()


def _write_panels(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    """Write the arguments and options in their panels, and list hidden options and commands."""
    panels: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: []}
    rare = [name for name, item in getattr(command, "commands", {}).items() if item.hidden]
    parameters: list[Any] = command.get_params(ctx)
    for parameter in parameters:
        if parameter.hidden:
            rare.append(parameter.opts[0])
            continue
        default_panel = _ARGUMENTS if isinstance(parameter, TyperArgument) else _OPTIONS
        panel = _get_panel(parameter) or default_panel
        panels.setdefault(panel, []).append(format_help_record(parameter, ctx))
    for title in sorted(panels, key=lambda title: title == _OPTIONS):
        if panels[title]:
            with formatter.section(title):
                formatter.write_dl(panels[title])
    if rare:
        formatter.write_paragraph()
        formatter.write_text(f"Also: {', '.join(rare)}; see {REFERENCE}.")


def format_help_record(parameter: Any, ctx: Any) -> tuple[str, str]:
    """Return the parameter's names and text from typer, with bitbench's words for types and without
    ranges."""
    names, text = parameter.get_help_record(ctx)
    if isinstance(parameter, TyperArgument):
        names = _get_argument_name(parameter)
    # Spell types as older versions of typer do.
    names = re.sub(r"\b(INTEGER|FLOAT)(?: RANGE)?\b", r"<\1>", names)
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
    """A placeholder for a command, or a group of commands, whose code is not imported yet."""

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
        """The command itself, with its options. The first access imports it."""
        target = self._offer.load()
        if isinstance(target, typer.Typer):
            return get_group(target)
        application = typer.Typer(add_completion=False, rich_markup_mode=None)
        application.command(self.name, cls=PlainCommand)(target)
        command = get_command(application)
        assert isinstance(command, TyperCommand)
        return command

    def make_context(self, *args: Any, **options: Any) -> Any:
        return self.whole.make_context(*args, **options)
