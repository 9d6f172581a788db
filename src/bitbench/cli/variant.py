"""`bitbench variant`: the existing variants, with their sources, recipes and sizes."""

from typing import Annotated

import typer
from rich.table import Column, Table

from bitbench.cli.help import PlainTyper
from bitbench.cli.terminal import Terminal
from bitbench.machine.workplace import get_default_home
from bitbench.quantize import variants
from bitbench.quantize.manifest import StoredBits
from bitbench.util.units import show_bytes, show_significant

variant = PlainTyper(help="List, show and remove quantized variants.")


@variant.command("list")
def list_() -> None:
    """List variants and their sizes."""
    existing = variants.list_variants(get_default_home())
    console = Terminal()
    if not existing:
        console.print("no variants yet; create one with: bitbench quantize MODEL --recipe NAME")
        return
    table = Table(
        Column("variant", overflow="fold"),
        "weights",
        "bits per weight",
        "made",
        box=None,
        header_style="bold",
    )
    for made in existing:
        manifest = made.manifest
        size = show_bytes(manifest.weight_bytes)
        bits = _show_bits(manifest.bits_per_weight)
        table.add_row(made.folder.name, size, bits, manifest.created_at[:10])
    console.print(table)
    console.print(show_bytes(sum(made.manifest.size_bytes for made in existing)))


@variant.command()
def show(
    name: Annotated[
        str, typer.Argument(help="A name from `bitbench variant list`, or its beginning.")
    ],
) -> None:
    """Print what a variant was made from, how, and its size."""
    made = variants.get_variant(name, get_default_home())
    typer.echo(made.manifest.model_dump_json(indent=2))


@variant.command()
def rm(
    name: Annotated[
        str, typer.Argument(help="A name from `bitbench variant list`, or its beginning.")
    ],
) -> None:
    """Remove a variant; the same recipe recreates it."""
    made = variants.get_variant(name, get_default_home())
    variants.remove_variant(made)
    typer.echo(f"{made.folder.name} removed: {show_bytes(made.manifest.size_bytes)} freed")


def _show_bits(bits: StoredBits) -> str:
    in_layers = show_significant(bits.linear_layers)
    return f"{in_layers} in layers, {show_significant(bits.whole_model)} in all"
