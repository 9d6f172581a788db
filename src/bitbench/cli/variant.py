"""`bitbench variant`: the variants that exist: what each was made from, how, and its size."""

from typing import Annotated

import typer
from rich.table import Column, Table

from bitbench.cli.help import PlainTyper
from bitbench.cli.terminal import Terminal
from bitbench.measure.workplace import default_home
from bitbench.quantize import variants
from bitbench.quantize.manifest import StoredBits
from bitbench.quantize.variants import MadeVariant
from bitbench.util.units import show_bytes, show_duration, show_significant

variant = PlainTyper(help="List, show and remove quantized variants.")


@variant.command("list")
def list_() -> None:
    """List variants and their sizes."""
    there = variants.list_variants(default_home())
    console = Terminal()
    if not there:
        console.print("no variants yet; create one with: bitbench quantize MODEL --recipe NAME")
        return
    table = Table(
        Column("variant", overflow="fold"), "weights", "bits per weight", "made", box=None, header_style="bold"
    )
    for made in there:
        facts = made.manifest
        bits = _show_bits(facts.bits_per_weight)
        table.add_row(made.folder.name, show_bytes(facts.weight_bytes), bits, facts.created_at[:10])
    console.print(table)
    console.print(f"{show_bytes(sum(made.manifest.size_bytes for made in there))}")


@variant.command()
def show(
    name: Annotated[str, typer.Argument(help="A name from `bitbench variant list`, or its beginning.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole manifest.")] = False,
) -> None:
    """Show what a variant was made from, how, and its size."""
    made = variants.get_variant(name, default_home())
    if as_json:
        typer.echo(made.manifest.model_dump_json(indent=2))
        return
    Terminal().print(_facts_table(made))


@variant.command()
def rm(name: Annotated[str, typer.Argument(help="A name from `bitbench variant list`, or its beginning.")]) -> None:
    """Remove a variant; the same recipe recreates it."""
    made = variants.get_variant(name, default_home())
    variants.remove_variant(made)
    typer.echo(f"{made.folder.name} removed: {show_bytes(made.manifest.size_bytes)} freed")


def _show_bits(bits: StoredBits) -> str:
    return f"{show_significant(bits.linear_layers)} in layers, {show_significant(bits.whole_model)} in all"


def _facts_table(made: MadeVariant) -> Table:
    facts, work = made.manifest, made.manifest.work
    table = Table("", Column(overflow="fold"), box=None, show_header=False)
    table.add_row("variant", made.folder.name)
    table.add_row("checkpoint", str(made.path))
    table.add_row("recipe", f"{facts.recipe.name}: {facts.recipe.description}")
    table.add_row("weights", f"{show_bytes(facts.weight_bytes)} of {show_bytes(facts.size_bytes)} on disk")
    table.add_row("bits per weight", _show_bits(facts.bits_per_weight))
    if facts.calibration:
        used = f"{facts.calibration.samples} samples, {facts.calibration.tokens} tokens, seed {facts.seed}"
        table.add_row("calibrated on", f"{facts.calibration.description}; {used}")
    table.add_row("made", f"{facts.created_at}, in {show_duration(facts.seconds)}")
    table.add_row("peak memory", show_bytes(work.peak_memory_bytes))
    table.add_row("versions", ", ".join(f"{name} {version}" for name, version in work.versions.items()))
    if work.rounded_instead:
        table.add_row("could not be solved", f"{', '.join(work.rounded_instead)} (rounded to the nearest instead)")
    if work.stored_otherwise:
        shown = ", ".join(f"{count} tensors as {what}" for what, count in work.stored_otherwise.items())
        table.add_row("did not fit", f"{shown} (their columns do not divide into blocks of that type)")
    return table
