"""What a study would use, in the terminal, and the one question about it."""

import sys

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from bitbench.measure.trust import Trust
from bitbench.study.use import Use
from bitbench.util.errors import NotTrustedError

NOT_NEEDED = "not needed"
LONGEST_SHOWN = 300  # characters; what follows is counted, so that nothing scrolls away behind it


def confirm(trust: Trust, console: Console, *, trusts: bool) -> None:
    """Ask where somebody can answer; `trusts` is the answer of --trust. Elsewhere `measure_study` refuses."""
    if trust.is_given:
        return
    if not trusts:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return
        console.print(f"{trust.source.file} uses what has not been allowed on this machine:")
        console.print(uses_table(trust.asked, trust))
        if not typer.confirm("Allow it, now and in future?"):
            raise NotTrustedError("not allowed: nothing was run")
    trust.give()


def uses_table(uses: tuple[Use, ...], trust: Trust) -> Table:
    table = Table(
        "",
        Column("What it would use", overflow="fold"),
        Column("for what", overflow="fold"),
        "permission",
        box=None,
        header_style="bold",
        pad_edge=False,
    )
    asked = set(trust.asked)
    given = Text("given", "green") if trust.is_given else Text("asks first", "yellow")
    for use in (use for use in uses if use in asked):  # a row each, so that none can hide behind another
        table.add_row(use.kind.value, _cut(use.what), _cut(use.purpose), given)
    harmless: dict[tuple[str, str], list[str]] = {}
    for use in (use for use in uses if use not in asked):
        harmless.setdefault((use.kind.value, use.purpose), []).append(use.what)
    for (kind, purpose), used in harmless.items():
        table.add_row(kind, _cut(", ".join(used)), _cut(purpose), NOT_NEEDED)
    return table


def _cut(text: str) -> str:
    hidden = len(text) - LONGEST_SHOWN
    return text if hidden <= 0 else f"{text[:LONGEST_SHOWN]}… ({hidden:,} more characters)"
