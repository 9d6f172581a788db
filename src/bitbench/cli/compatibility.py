"""The compatibility table in the terminal: what runs where, and why not."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from bitbench.measure.compatibility import DOCUMENTATION, CompatibilityRow, look_up
from bitbench.study.capability import Capability
from bitbench.study.environment import Device
from bitbench.study.plan import Support
from bitbench.study.recipe import Recipe
from bitbench.util.units import UNKNOWN

STYLES = {Support.RUNS: "green", Support.RUNS_WITHOUT_SPEEDUP: "yellow", Support.DOES_NOT_RUN: "red"}


def place(device: Device, capability: Capability | None) -> str:
    """What the table is about, for a sentence."""
    if device == "cpu":
        return "a CPU"
    if capability is None:
        return f"an NVIDIA GPU of unknown compute capability ({UNKNOWN}: it decides; give one with --capability)"
    return f"an NVIDIA GPU of compute capability {capability}"


def recipes_table(
    recipes: Sequence[Recipe], engines: Sequence[str], device: Device, capability: Capability | None = None
) -> Table:
    """One row per recipe, one column per engine."""
    columns = [Column(engine, no_wrap=True) for engine in engines]
    table = Table(
        Column("recipe", no_wrap=True),
        *columns,
        Column("description"),
        box=None,
        header_style="bold",
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for recipe in recipes:
        rows = [look_up(recipe.form, engine, device, recipe.at_load, capability=capability) for engine in engines]
        table.add_row(recipe.name, *map(_shown, rows), recipe.description)
    return table


def reasons(
    recipes: Sequence[Recipe], engines: Sequence[str], device: Device, capability: Capability | None = None
) -> Iterator[RenderableType]:
    """A paragraph for each reason: where, which recipes, why, and how it is known."""
    named: dict[CompatibilityRow, list[str]] = {}
    for engine in engines:
        for recipe in recipes:
            row = look_up(recipe.form, engine, device, recipe.at_load, capability=capability)
            if row is not None and row.why:
                # One reason may hold for several forms.
                alike = row.model_copy(update={"form": "", "kernel": None, "capability": None})
                named.setdefault(alike, []).append(recipe.name)
    for row, names in named.items():
        known = "untested, from its documentation" if row.checked == DOCUMENTATION else row.checked
        yield Text.assemble("\n", (row.engine, "bold"), " ", _shown(row), f": {', '.join(names)}")
        yield Padding(f"{row.why} ({known})", (0, 0, 0, 4))


def _shown(row: CompatibilityRow | None) -> Text:
    if row is None:
        return Text(UNKNOWN)
    return Text(row.word, "dim" if row.refuse else STYLES[row.verdict])
