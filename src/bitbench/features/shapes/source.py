"""Shapes as a source of models."""

from collections.abc import Iterator
from pathlib import Path

from bitbench.features.shapes.checkpoint import find_checkpoint, make_checkpoint
from bitbench.features.shapes.names import find_shape, folder_name, reference_to
from bitbench.models.hub import OnProgress
from bitbench.models.library import ExpectedModel, KnownModel
from bitbench.models.shapes import SHAPES, Shape


class ShapeSource:
    """A `ModelSource`: checkpoints of random weights in published shapes."""

    @property
    def models(self) -> str:
        return f"Shapes (random weights, for speed and memory): {', '.join(map(reference_to, SHAPES.values()))}"

    def find(self, reference: str, home: Path) -> Path | None:
        return find_checkpoint(find_shape(reference), home)

    def expect(self, reference: str) -> ExpectedModel:
        shape = find_shape(reference)
        return ExpectedModel(folder_name(shape), shape.facts, shape.weight_bytes, shape.tensors)

    def make(self, reference: str, home: Path, on_progress: OnProgress) -> list[str]:
        path = make_checkpoint(find_shape(reference), home, on_progress=on_progress)
        return [
            f"{reference} is at {path}",
            "Its weights are random: it is for speed, memory and kernels, not for quality.",
        ]

    def made(self, home: Path) -> Iterator[KnownModel]:
        for shape in SHAPES.values():
            if (path := find_checkpoint(shape, home)) is not None:
                yield _known(shape, path)


def _known(shape: Shape, folder: Path) -> KnownModel:
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    like = f" in the shape of {shape.published_as[0]}" if shape.published_as else ""
    return KnownModel(
        reference_to(shape), f"random weights{like}", "", folder, size_bytes, parameters=shape.facts.parameters
    )
