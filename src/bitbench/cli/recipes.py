"""`bitbench recipes`: the recipes, the engines that run them, and the reasons why others do not."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from bitbench.cli.options import OnDevice, parse_device_option
from bitbench.cli.terminal import Terminal
from bitbench.engines import registry
from bitbench.machine.workplace import Workplace
from bitbench.planning.compatibility import DOCUMENTATION, CompatibilityRow, look_up_compatibility
from bitbench.quantize import catalog
from bitbench.study.environment import Device
from bitbench.study.hardware import Capability
from bitbench.study.plan import Support
from bitbench.study.recipe import Recipe

MARKS = {Support.RUNS: "✓", Support.RUNS_WITHOUT_SPEEDUP: "~"}
UNDECIDED = "?"
STYLES = {
    Support.RUNS: "green",
    Support.RUNS_WITHOUT_SPEEDUP: "yellow",
    Support.DOES_NOT_RUN: "red",
}


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Print this recipe as YAML, to copy and change.")
    ] = None,
    device: OnDevice = None,
) -> None:
    """List recipes and the engines that run them.

    It names what does not run, or not faster, and why. With a name: print that recipe as YAML, to
    copy and change.
    """
    if name is not None:
        typer.echo(catalog.find_built_in_recipe_file(name).read_text(encoding="utf-8"), nl=False)
        return
    workplace = Workplace(asked_device=parse_device_option(device))
    console = Terminal()
    capability = workplace.capability
    built_in = tuple(catalog.list_built_in_recipes())
    engines = [
        engine_name for engine_name, engine in registry.engines().items() if engine.needs_model
    ]
    console.print(_build_recipe_table(built_in, engines, workplace.device, capability))
    console.print(f"\n{_format_legend(workplace.device, capability)}")
    for paragraph in _iter_recipe_reasons(built_in, engines, workplace.device, capability):
        console.print(paragraph)


def _build_recipe_table(
    recipes: Sequence[Recipe],
    engines: Sequence[str],
    device: Device,
    capability: Capability | None = None,
) -> Table:
    """Return a table with a row per recipe and the engines that run it."""
    table = Table(
        Column("recipe", no_wrap=True),
        Column("engines", overflow="fold"),
        Column("description"),
        box=None,
        header_style="bold",
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for recipe in recipes:
        rows: dict[str, CompatibilityRow | None] = {}
        for engine in engines:
            rows[engine] = look_up_compatibility(
                recipe.form, engine, device, recipe.at_load, capability=capability
            )
        table.add_row(recipe.name, _format_engines(rows), recipe.description)
    return table


def _format_legend(device: Device, capability: Capability | None) -> str:
    """Return the meaning of the marks, for the line below the table."""
    marks = (
        f"{MARKS[Support.RUNS]} runs, {MARKS[Support.RUNS_WITHOUT_SPEEDUP]} runs without a speed-up"
    )
    if device == "cpu":
        return f"Engines on a CPU: {marks}."
    if capability is not None:
        return f"Engines on an NVIDIA GPU of compute capability {capability}: {marks}."
    unknown = f"{UNDECIDED} unknown: its compute capability decides"
    return f"Engines on an NVIDIA GPU of unknown compute capability: {marks}, {unknown}."


def _format_engines(rows: Mapping[str, CompatibilityRow | None]) -> Text:
    """Return `✓ sglang, vllm; ~ transformers`. Engines that do not run it are listed below."""
    by_mark: dict[str, list[str]] = {mark: [] for mark in (*MARKS.values(), UNDECIDED)}
    for engine, row in rows.items():
        if row is None:
            by_mark[UNDECIDED].append(engine)
        elif not row.refuse and row.verdict in MARKS:
            by_mark[MARKS[row.verdict]].append(engine)
    styles = {mark: STYLES[verdict] for verdict, mark in MARKS.items()}
    parts: list[Text] = []
    for mark, engines in by_mark.items():
        if engines:
            parts.append(Text(f"{mark} {', '.join(engines)}", styles.get(mark, "dim")))
    return Text("; ").join(parts) if parts else Text("none here", "dim")


def _iter_recipe_reasons(
    recipes: Sequence[Recipe],
    engines: Sequence[str],
    device: Device,
    capability: Capability | None = None,
) -> Iterator[RenderableType]:
    """Yield a paragraph for each reason: the engine, the recipes, the reason and its source."""
    names_by_row: dict[CompatibilityRow, list[str]] = {}
    for engine in engines:
        for recipe in recipes:
            row = look_up_compatibility(
                recipe.form, engine, device, recipe.at_load, capability=capability
            )
            if row is not None and row.why:
                # One reason may hold for several forms.
                alike = row.model_copy(update={"form": "", "kernel": None, "capability": None})
                names_by_row.setdefault(alike, []).append(recipe.name)
    for row, names in names_by_row.items():
        source = row.checked
        if source == DOCUMENTATION:
            source = "untested, from its documentation"
        style = "dim" if row.refuse else STYLES[row.verdict]
        yield Text.assemble(
            "\n", (row.engine, "bold"), " ", (row.word, style), f": {', '.join(names)}"
        )
        yield Padding(f"{row.why} ({source})", (0, 0, 0, 4), expand=False)
