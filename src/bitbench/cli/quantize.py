"""`bitbench quantize`, `bitbench recipes` and `bitbench variant`: create, list and inspect variants."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitbench.cli.help import PlainTyper
from bitbench.cli.options import OnDevice, chosen
from bitbench.util.exit_codes import ExitCode

if TYPE_CHECKING:
    from bitbench.cli.terminal import Terminal

MOST_SHOWN = 20  # defects of a checkpoint

app = PlainTyper(help="List, show and remove quantized variants.")


def quantize(
    model: Annotated[
        str | None, typer.Argument(help="A name from `bitbench model list`, or a folder.", metavar="MODEL")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", help="A name from `bitbench recipes`, or a recipe file.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="Text file, folder or JSONL [default: the recipe's].")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed that chooses the text samples.")] = 0,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="DIR", help="Check this checkpoint for defects instead.")
    ] = None,
) -> None:
    """Create a quantized variant of a model.

    A variant that exists already is only named.

    A checkpoint with NaN, infinite or zero scales, experts that calibration never reached, or layers left unquantized
    against the recipe is refused. With --check DIR: exit code 1 where that checkpoint has such a defect.
    """
    from bitbench.cli.quantize_progress import QuantizeDisplay
    from bitbench.cli.terminal import Terminal
    from bitbench.measure.variants import make_variant, order_variant
    from bitbench.measure.workplace import default_home
    from bitbench.models import library
    from bitbench.quantize import catalog, variants
    from bitbench.util.errors import UsageError
    from bitbench.util.units import show_bytes, show_duration

    home, console = default_home(), Terminal()
    if check is not None:
        _check(check, console)
        return
    if model is None or recipe is None:
        raise UsageError("give a model and --recipe NAME, or --check DIR")
    chosen = catalog.find(recipe)
    found = library.resolve(model, home)
    wanted = order_variant(found, chosen, home, calibration=calibration, seed=seed)
    if (there := variants.find(wanted, home)) is not None:
        console.print(f"{there.folder.name} already exists, at {there.path}", soft_wrap=True)
        return
    with QuantizeDisplay(console, f"{found.name} {chosen.name}") as display:
        made = make_variant(wanted, home, display.update)
    facts = made.manifest
    console.print(
        f"{made.folder.name}: {show_bytes(found.weight_bytes)} became {show_bytes(facts.weight_bytes)} "
        f"in {show_duration(facts.seconds)}, at {made.path}",
        soft_wrap=True,
    )


def _check(folder: Path, console: "Terminal") -> None:
    """Print each defect; exits with code 1 where there are any."""
    from bitbench.quantize.defects import find_defects, ignored_by_configuration

    found = find_defects(folder, ignored_by_configuration(folder))
    for defect in found[:MOST_SHOWN]:
        console.print(str(defect), soft_wrap=True)
    if len(found) > MOST_SHOWN:
        console.print(f"and {len(found) - MOST_SHOWN:,} more")
    if found:
        raise typer.Exit(ExitCode.FAILED)
    console.print(f"{folder}: no defects found", soft_wrap=True)


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe as YAML, to copy and change.")] = None,
    bits: Annotated[int | None, typer.Option(help="Only recipes whose weights have so many bits.")] = None,
    why: Annotated[bool, typer.Option("--why", help="Explain what does not run, or not faster.")] = False,
    device: OnDevice = None,
    capability: Annotated[
        str | None,
        typer.Option(metavar="X.Y", help="Compute capability of the GPU, such as 8.9 [default: that of this machine]."),
    ] = None,
) -> None:
    """List recipes and the engines that run them.

    With a name: print that recipe as YAML, to copy and change.
    """
    from bitbench.cli.compatibility import legend, reasons, recipes_table
    from bitbench.cli.parsing import compute_capability
    from bitbench.cli.terminal import Terminal
    from bitbench.engines import registry
    from bitbench.measure.workplace import Workplace
    from bitbench.quantize import catalog

    if name is not None:
        typer.echo(catalog.built_in_file(name).read_text(encoding="utf-8"), nl=False)
        return
    asked = None if capability is None else compute_capability(capability, "--capability")
    at = Workplace(asked_device="cuda" if asked else chosen(device))
    console, on = Terminal(), asked or at.capability
    known = [recipe for recipe in catalog.built_in_recipes() if bits is None or recipe.weight_bits == bits]
    if not known:
        console.print(f"no recipe has weights of {bits} bits; `bitbench recipes` lists all", soft_wrap=True)
        return
    engines = [engine_name for engine_name, engine in registry.engines().items() if engine.needs_model]
    console.print(recipes_table(known, engines, at.device, on))
    more = "" if why else " `bitbench recipes --why` says what does not run, and why."
    console.print(f"\n{legend(at.device, on)}{more}")
    for paragraph in reasons(known, engines, at.device, on) if why else ():
        console.print(paragraph)


@app.command("list")
def list_() -> None:
    """List variants and their sizes."""
    from rich.table import Column, Table

    from bitbench.cli.quantize_facts import show_bits
    from bitbench.cli.terminal import Terminal
    from bitbench.measure.workplace import default_home
    from bitbench.quantize import variants
    from bitbench.util.units import show_bytes

    there = variants.list_variants(default_home())
    console = Terminal()
    if not there:
        console.print("no variants yet; create one with: bitbench quantize MODEL --recipe NAME")
        return
    table = Table(
        Column("variant", overflow="fold"), "weights", "bits per weight", "made", box=None, header_style="bold"
    )
    for variant in there:
        facts = variant.manifest
        bits = show_bits(facts.bits_per_weight)
        table.add_row(variant.folder.name, show_bytes(facts.weight_bytes), bits, facts.created_at[:10])
    console.print(table)
    console.print(f"{show_bytes(sum(variant.manifest.size_bytes for variant in there))}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name from `bitbench variant list`, or its beginning.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole manifest.")] = False,
) -> None:
    """Show what a variant was made from, how, and its size."""
    from bitbench.cli.quantize_facts import facts_table
    from bitbench.cli.terminal import Terminal
    from bitbench.measure.workplace import default_home
    from bitbench.quantize import variants

    variant = variants.get(name, default_home())
    if as_json:
        typer.echo(variant.manifest.model_dump_json(indent=2))
        return
    Terminal().print(facts_table(variant))


@app.command()
def rm(name: Annotated[str, typer.Argument(help="A name from `bitbench variant list`, or its beginning.")]) -> None:
    """Remove a variant; the same recipe recreates it."""
    from bitbench.measure.workplace import default_home
    from bitbench.quantize import variants
    from bitbench.util.units import show_bytes

    variant = variants.get(name, default_home())
    variants.remove(variant)
    typer.echo(f"{variant.folder.name} removed: {show_bytes(variant.manifest.size_bytes)} freed")
