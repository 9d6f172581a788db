"""What `--help` prints: commands and options in panels, on one screen; and commands that are imported when they are
called. Without rich, so that it stays quick."""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path
from textwrap import wrap
from typing import Any, get_args, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command, get_group

from bitbench.feature import Command, Offer, Panel

WORDS = {int: "N", float: "NUMBER", Path: "PATH"}
REFERENCE = "docs/cli.md"
_COMPLETION = ("install_completion", "show_completion")  # typer's own, in many words
_ARGUMENTS, _OPTIONS = "Arguments", "Options"
_WIDEST_NAME = 28  # characters before the text of an option; a longer name has a line of its own


class PlainCommand(TyperCommand):
    """Options in the panels that they name (`rich_help_panel`); hidden ones are named in the last line."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [self.options_metavar or "", *help_usages(self)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)


class PlainGroup(TyperGroup):
    """Commands in the order of their panels, before the options; hidden ones are named in the last line."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _write_parameters(
            self, ctx, formatter, also=[name for name, command in self.commands.items() if command.hidden]
        )

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        shown = [(name, command) for name, command in self.commands.items() if not command.hidden]
        wide = max((len(_panel_of(command)) for _, command in shown), default=0)
        rows, last = [], ""
        for name, command in shown:
            panel = _panel_of(command)
            rows.append((f"{panel if panel != last else '':<{wide}} {name}".rstrip(), command.get_short_help_str(1000)))
            last = panel
        with formatter.section("Commands"):
            formatter.write_dl(rows if wide else [(name.strip(), text) for name, text in rows])


class PlainTyper(typer.Typer):
    """A group of such commands."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**{"cls": PlainGroup, "rich_markup_mode": None, "no_args_is_help": True, **named})

    def command(self, name: str | None = None, **named: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": PlainCommand, **named})


def _panel_of(command: Any) -> str:
    return str(getattr(command, "rich_help_panel", None) or "")


def help_order(commands: dict[str, Any]) -> dict[str, Any]:
    """By panel; rare ones, which have none, at the end."""
    panels = [*(panel.value for panel in Panel), ""]
    return dict(sorted(commands.items(), key=lambda item: panels.index(_panel_of(item[1]))))


def help_usages(command: Any) -> list[str]:
    """`STUDY_DIR`, and `[NAME]` where it may be left out."""
    return [_usage_of(parameter) for parameter in command.params if isinstance(parameter, TyperArgument)]


def _usage_of(argument: TyperArgument) -> str:
    name = help_argument_name(argument)
    return name if argument.required or name.startswith("[") else f"[{name}]"


def help_argument_name(argument: TyperArgument) -> str:
    return str(argument.metavar or (argument.name or "").upper())


def help_parameter_types(command: Any) -> dict[str, Any]:
    """The annotation of each parameter, since typer's own words for it differ from version to version."""
    return get_type_hints(command.callback) if command.callback else {}


def help_values(parameter: Any, kind: Any) -> str:
    """What follows an option: `cpu|cuda`, or a word that says what kind of thing."""
    return parameter.metavar or "|".join(help_choices(kind)) or WORDS.get(next(_plain_types(kind), str), "TEXT")


def help_choices(kind: Any) -> list[str]:
    return [_help_text_of(member) for plain in _plain_types(kind) if issubclass(plain, Enum) for member in plain]


def _plain_types(kind: Any) -> Iterator[type]:
    """Fact of list[Fact] | None."""
    for part in get_args(kind):
        yield from _plain_types(part)
    if isinstance(kind, type) and not get_args(kind):
        yield kind


def help_default(parameter: Any) -> str:
    """What is taken without the option; empty where that is nothing, or is said in its text."""
    value = parameter.default
    if (
        value is None
        or value is False
        or callable(value)
        or value in ((), [])
        or "[default: " in (parameter.help or "")
    ):
        return ""
    return "on" if value is True else _help_text_of(value)


def _help_text_of(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _write_parameters(command: Any, ctx: Any, formatter: Any, also: Sequence[str] = ()) -> None:
    kinds, rare = help_parameter_types(command), list(also)
    panels: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: [], _OPTIONS: []}
    for parameter in command.get_params(ctx):
        if parameter.hidden or parameter.name in _COMPLETION:
            rare.append(parameter.opts[0])
        elif isinstance(parameter, TyperArgument):
            panels[_ARGUMENTS].append((help_argument_name(parameter), _text(parameter)))
        else:
            panel = panels.setdefault(getattr(parameter, "rich_help_panel", None) or _OPTIONS, [])
            panel.append((_names(parameter, kinds.get(parameter.name, str)), _text(parameter)))
    panels[_OPTIONS] = panels.pop(_OPTIONS)  # after those that have a name
    for title, rows in panels.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows, col_max=_WIDEST_NAME)
    if rare:
        formatter.write_paragraph()
        also_named = f"Also: {', '.join(rare)}; see {REFERENCE}."
        formatter.write("\n".join(wrap(also_named, formatter.width, break_on_hyphens=False)) + "\n")


def _names(option: Any, kind: Any) -> str:
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        return f"{names} / {', '.join(option.secondary_opts)}"
    return names if option.is_flag else f"{names} {help_values(option, kind)}"


def _text(parameter: Any) -> str:
    """`Prompt length in tokens [default: 128].`"""
    text = (parameter.help or "").strip()
    if not isinstance(parameter, TyperArgument) and parameter.required:
        return f"{text.removesuffix('.')} (required)."
    default = help_default(parameter) if getattr(parameter, "show_default", True) else ""
    return f"{text.removesuffix('.')} [default: {default}]." if default else text


class LazyCommand(TyperCommand):
    """Stands for a command, or a group of some, whose code is not imported yet."""

    def __init__(self, command: Command, offer: Offer) -> None:
        super().__init__(
            name=command.name, help=command.help, rich_help_panel=command.panel, hidden=command.panel is None
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
