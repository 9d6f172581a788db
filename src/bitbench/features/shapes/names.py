"""How a shape is named: in studies, and on disk."""

from bitbench.models.shapes import SHAPES, Shape
from bitbench.util.errors import ModelError
from bitbench.util.near_miss import did_you_mean

_PREFIX = "shape:"


def reference_to(shape: Shape) -> str:
    """As studies spell it, such as shape:qwen3-4b."""
    return f"{_PREFIX}{shape.name}"


def folder_name(shape: Shape) -> str:
    """Also what reports call it: it goes into the names of files."""
    return f"shape-{shape.name}"


def find_shape(reference: str) -> Shape:
    """By a study's name for it; raises ModelError."""
    name = reference.removeprefix(_PREFIX)
    if name not in SHAPES:
        known = [reference_to(shape) for shape in SHAPES.values()]
        raise ModelError(
            f"No shape is called {reference}; {did_you_mean(reference, known)}there are {', '.join(known)}."
        )
    return SHAPES[name]
