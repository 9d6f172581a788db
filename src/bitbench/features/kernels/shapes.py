"""Which shapes to measure: those of the kernel table that bitbench answers, a model's own, or given ones."""

import re
from collections.abc import Callable
from pathlib import Path

from bitbench.features.kernels.case import KernelShape
from bitbench.util.errors import KernelError
from bitbench.util.tensor_files import read_headers

SEED_INPUTS = (1024, 2048, 4096, 8192, 16384)
SEED_OUTPUTS = (1024, 4096, 8192, 14336, 28672, 53248)
QUICK = (KernelShape(1024, 1024), KernelShape(4096, 4096))  # of the seed's, for a look or for CI

_PAIR = re.compile(r"(\d+)x(\d+)")


def parse_shapes(text: str, model_folder: Callable[[str], Path], *, quick: bool) -> tuple[KernelShape, ...]:
    """`seed`, `model:ID` or `KxN,KxN` (in_features x out_features); raises KernelError for anything else."""
    if text == "seed":
        return QUICK if quick else tuple(KernelShape(k, n) for n in SEED_OUTPUTS for k in SEED_INPUTS)
    kind, _, name = text.partition(":")
    if kind == "model" and name:
        return linear_shapes(model_folder(name))
    pairs = [_PAIR.fullmatch(part.strip()) for part in text.split(",")]
    shapes = [KernelShape(int(pair[1]), int(pair[2])) for pair in pairs if pair]
    if len(shapes) != len(pairs) or any(min(shape.in_features, shape.out_features) == 0 for shape in shapes):
        raise KernelError(
            f"{text!r} is not a set of shapes; use seed, model:ID, or IN_FEATURESxOUT_FEATURES such as 4096x4096"
        )
    return tuple(dict.fromkeys(shapes))


def linear_shapes(folder: Path) -> tuple[KernelShape, ...]:
    """The shapes of a checkpoint's linear layers, each once; an embedding is looked up, not multiplied."""
    found = {
        KernelShape(tensor.shape[1], tensor.shape[0])
        for name, tensor in read_headers(folder).items()
        if name.endswith(".weight") and len(tensor.shape) == 2 and "embed" not in name
    }
    if not found:
        raise KernelError(
            f"{folder} contains no linear layers in safetensors; give the folder of an unquantized model."
        )
    return tuple(sorted(found, key=lambda shape: (shape.out_features, shape.in_features)))
