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

MARKS = {Support.RUNS: "✓", Support.RUNS_WITHOUT_SPEEDUP: "~"}
UNDECIDED = "?"
STYLES = {Support.RUNS: "green", Support.RUNS_WITHOUT_SPEEDUP: "yellow", Support.DOES_NOT_RUN: "red"}


def place(device: Device, capability: Capability | None) -> str:
    """What the table is about, for a sentence."""
    if device == "cpu":
        return "a CPU"
    if capability is None:
        return "an NVIDIA GPU of unknown compute capability"
    return f"an NVIDIA GPU of compute capability {capability}"


def recipes_table(
    recipes: Sequence[Recipe], engines: Sequence[str], device: Device, capability: Capability | None = None
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
            (engine, look_up(recipe.form, engine, device, recipe.at_load, capability=capability)) for engine in engines
        ]
        table.add_row(recipe.name, _engines(rows), recipe.description)
    return table


def legend(device: Device, capability: Capability | None) -> str:
    """Below the table."""
    decides = f", {UNDECIDED} unknown: its compute capability decides; give one with --capability"
    marks = f"{MARKS[Support.RUNS]} runs, {MARKS[Support.RUNS_WITHOUT_SPEEDUP]} runs without a speed-up"
    return (
        f"Engines on {place(device, capability)}: {marks}{decides if device == 'cuda' and capability is None else ''}."
    )


def _engines(rows: Sequence[tuple[str, CompatibilityRow | None]]) -> Text:
    """`✓ sglang, vllm; ~ transformers`; what does not run is in `--why`."""
    marked: dict[str, list[str]] = {mark: [] for mark in (*MARKS.values(), UNDECIDED)}
    for engine, row in rows:
        if row is None:
            marked[UNDECIDED].append(engine)
        elif not row.refuse and row.verdict in MARKS:
            marked[MARKS[row.verdict]].append(engine)
    styles = {mark: STYLES[verdict] for verdict, mark in MARKS.items()}
    named = [
        Text(f"{mark} {', '.join(engines)}", styles.get(mark, "dim")) for mark, engines in marked.items() if engines
    ]
    return Text("; ").join(named) if named else Text("none here", "dim")


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
        yield Padding(f"{row.why} ({known})", (0, 0, 0, 4), expand=False)


def _shown(row: CompatibilityRow | None) -> Text:
    if row is None:
        return Text(UNKNOWN)
    return Text(row.word, "dim" if row.refuse else STYLES[row.verdict])
