"""`bitbench quantize`: create a variant of a model, or check a checkpoint for defects."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from bitbench.cli.model import Steps
from bitbench.cli.terminal import Terminal
from bitbench.machine.workplace import get_default_home
from bitbench.models import library
from bitbench.planning.variants import make_ordered_variant, order_variant
from bitbench.quantize import catalog, variants
from bitbench.quantize.defects import find_defects, find_ignored_layers
from bitbench.util.errors import ExitCode, UsageError
from bitbench.util.units import show_bytes, show_duration

MOST_SHOWN = 20  # defects in the list


def quantize(
    model: Annotated[
        str | None,
        typer.Argument(help="A name from `bitbench model list`, or a folder.", metavar="MODEL"),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", help="A name from `bitbench recipes`, or a recipe file."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", help="Text file, folder or JSONL [default: the recipe's]."),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed that chooses the text samples.")
    ] = 0,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="DIR", help="Check this checkpoint for defects instead."),
    ] = None,
) -> None:
    """Create a quantized variant of a model.

    A variant that exists already is only named.

    A checkpoint with NaN, infinite or zero scales, experts that calibration never reached, or
    layers left unquantized against the recipe is refused. With --check DIR: exit code 1 where that
    checkpoint has such a defect.
    """
    home = get_default_home()
    console = Terminal()
    if check is not None:
        _check(check, console)
        return
    if model is None or recipe is None:
        raise UsageError("give a model and --recipe NAME, or --check DIR")
    chosen_recipe = catalog.find_recipe(recipe)
    source = library.resolve(model, home)
    order = order_variant(source, chosen_recipe, home, calibration=calibration, seed=seed)
    existing = variants.find_variant_on_disk(order, home)
    if existing is not None:
        console.print(f"{existing.folder.name} already exists, at {existing.path}", soft_wrap=True)
        return
    title = f"{source.name} {chosen_recipe.name}"
    with console.status(Text(title)) as status:
        steps = Steps(console, status, title)
        made = make_ordered_variant(
            order, home, lambda progress: steps.now_and_then(progress.place)
        )
    manifest = made.manifest
    sizes = f"{show_bytes(source.weight_bytes)} became {show_bytes(manifest.weight_bytes)}"
    console.print(
        f"{made.folder.name}: {sizes} in {show_duration(manifest.seconds)}, at {made.path}",
        soft_wrap=True,
    )


def _check(folder: Path, console: Terminal) -> None:
    """Print the defects of a checkpoint, and exit with code 1 if it has any."""
    defects = find_defects(folder, find_ignored_layers(folder))
    for defect in defects[:MOST_SHOWN]:
        console.print(str(defect), soft_wrap=True)
    if len(defects) > MOST_SHOWN:
        console.print(f"and {len(defects) - MOST_SHOWN:,} more")
    if defects:
        raise typer.Exit(ExitCode.FAILED)
    console.print(f"{folder}: no defects found", soft_wrap=True)
