"""`bitbench recipes`: what can be made of a model, which engines run it, and why others do not."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from bitbench.cli.options import OnDevice, device_option
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

    It names what does not run, or not faster, and why. With a name: print that recipe as YAML, to copy and change.
    """
    if name is not None:
        typer.echo(catalog.built_in_recipe_file(name).read_text(encoding="utf-8"), nl=False)
        return
    at = Workplace(asked_device=device_option(device))
    console, on = Terminal(), at.capability
    known = tuple(catalog.built_in_recipes())
    engines = [
        engine_name for engine_name, engine in registry.engines().items() if engine.needs_model
    ]
    console.print(_recipes_table(known, engines, at.device, on))
    console.print(f"\n{legend(at.device, on)}")
    for paragraph in _recipe_reasons(known, engines, at.device, on):
        console.print(paragraph)


def _recipes_table(
    recipes: Sequence[Recipe],
    engines: Sequence[str],
    device: Device,
    capability: Capability | None = None,
) -> Table:
    """One row per recipe, with the engines that matter for it."""
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
        rows = [
            (
                engine,
                look_up_compatibility(
                    recipe.form, engine, device, recipe.at_load, capability=capability
                ),
            )
            for engine in engines
        ]
        table.add_row(recipe.name, _engines(rows), recipe.description)
    return table


def legend(device: Device, capability: Capability | None) -> str:
    """Below the table."""
    marks = (
        f"{MARKS[Support.RUNS]} runs, {MARKS[Support.RUNS_WITHOUT_SPEEDUP]} runs without a speed-up"
    )
    if device == "cpu":
        return f"Engines on a CPU: {marks}."
    if capability is not None:
        return f"Engines on an NVIDIA GPU of compute capability {capability}: {marks}."
    decides = f"{UNDECIDED} unknown: its compute capability decides"
    return f"Engines on an NVIDIA GPU of unknown compute capability: {marks}, {decides}."


def _engines(rows: Sequence[tuple[str, CompatibilityRow | None]]) -> Text:
    """`✓ sglang, vllm; ~ transformers`; what does not run comes below."""
    marked: dict[str, list[str]] = {mark: [] for mark in (*MARKS.values(), UNDECIDED)}
    for engine, row in rows:
        if row is None:
            marked[UNDECIDED].append(engine)
        elif not row.refuse and row.verdict in MARKS:
            marked[MARKS[row.verdict]].append(engine)
    styles = {mark: STYLES[verdict] for verdict, mark in MARKS.items()}
    named = [
        Text(f"{mark} {', '.join(engines)}", styles.get(mark, "dim"))
        for mark, engines in marked.items()
        if engines
    ]
    return Text("; ").join(named) if named else Text("none here", "dim")


def _recipe_reasons(
    recipes: Sequence[Recipe],
    engines: Sequence[str],
    device: Device,
    capability: Capability | None = None,
) -> Iterator[RenderableType]:
    """A paragraph for each reason: where, which recipes, why, and how it is known."""
    named: dict[CompatibilityRow, list[str]] = {}
    for engine in engines:
        for recipe in recipes:
            row = look_up_compatibility(
                recipe.form, engine, device, recipe.at_load, capability=capability
            )
            if row is not None and row.why:
                # One reason may hold for several forms.
                alike = row.model_copy(update={"form": "", "kernel": None, "capability": None})
                named.setdefault(alike, []).append(recipe.name)
    for row, names in named.items():
        known = "untested, from its documentation" if row.checked == DOCUMENTATION else row.checked
        style = "dim" if row.refuse else STYLES[row.verdict]
        yield Text.assemble(
            "\n", (row.engine, "bold"), " ", (row.word, style), f": {', '.join(names)}"
        )
        yield Padding(f"{row.why} ({known})", (0, 0, 0, 4), expand=False)
