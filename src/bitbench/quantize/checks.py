"""Checks before the work starts: causal LM, group size, free disk space."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from bitbench.study.recipe import Recipe
from bitbench.util.errors import ModelError, QuantizeError, RecipeError
from bitbench.util.model_json import read_object
from bitbench.util.quotation import printable
from bitbench.util.tensor_files import StoredTensor
from bitbench.util.units import show_bytes

_CAUSAL = re.compile(r"(ForCausalLM|LMHeadModel)$")
# Linear layers of the blocks that repeat ("model.layers.7.mlp.up_proj.weight"); embeddings carry no such number.
_LINEAR = re.compile(r"^(?P<layer>.*\.\d+\..*)\.weight$")
_COMMON_GROUP_SIZES = (16, 32, 64, 128, 256)
# A compressed checkpoint is smaller than its model; beside it lie the tokenizer, the log and the calibration text.
_ROOM_BESIDE_WEIGHTS_BYTES = 64 * 2**20

MAKE_ROOM = "free some space (`bitbench variant list` shows what can be removed) or set BITBENCH_HOME to another disk"


def linear_layers(tensors: Mapping[str, StoredTensor], ignore: Sequence[str]) -> dict[str, StoredTensor]:
    """Layer name to its weight: those that a recipe which ignores `ignore` rounds."""
    found = {}
    for name, tensor in tensors.items():
        match = _LINEAR.match(name)
        if match and len(tensor.shape) == 2 and not is_ignored(match["layer"], ignore):
            found[match["layer"]] = tensor
    return found


def refuse_other_than_causal_lm(folder: Path) -> None:
    config = read_object(folder / "config.json")
    named = config.get("architectures")
    architectures = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    if not any(_CAUSAL.search(name) for name in architectures):
        shown = printable(", ".join(architectures)) or "none"
        raise ModelError(
            f"{folder.name} is not a causal language model (architectures in its config.json: {shown}); "
            "recipes are for models whose architecture ends in ForCausalLM."
        )
    if "quantization_config" in config:
        raise ModelError(
            f"{folder.name} is already quantized (its config.json has a quantization_config); give the original model."
        )


def refuse_group_size_that_does_not_fit(recipe: Recipe, tensors: Mapping[str, StoredTensor]) -> None:
    scheme = recipe.scheme
    if scheme is None or scheme.group_size is None:
        return
    columns = {layer: tensor.shape[1] for layer, tensor in linear_layers(tensors, scheme.ignore).items()}
    misfits = sorted(layer for layer, count in columns.items() if count % scheme.group_size)
    if not misfits:
        return
    fitting = [str(size) for size in _COMMON_GROUP_SIZES if not any(count % size for count in columns.values())]
    advice = f"sizes that divide them: {', '.join(fitting)}" if fitting else "remove group_size for one scale per row"
    raise RecipeError(
        f"recipe {recipe.name}: group_size {scheme.group_size} does not divide the {columns[misfits[0]]} columns of "
        f"{misfits[0]} ({len(misfits)} of {len(columns)} layers); {advice}."
    )


def refuse_without_room(place: Path, weight_bytes: int) -> None:
    needed, free = weight_bytes + _ROOM_BESIDE_WEIGHTS_BYTES, shutil.disk_usage(place).free
    if free < needed:
        raise QuantizeError(
            f"{place} has {show_bytes(free)} free; this variant may need {show_bytes(needed)}; {MAKE_ROOM}."
        )


def is_ignored(layer: str, ignore: Sequence[str]) -> bool:
    """As compressed-tensors reads it: a layer's name, or `re:` and a pattern for its beginning."""
    return any(
        re.match(pattern.removeprefix("re:"), layer) is not None if pattern.startswith("re:") else layer == pattern
        for pattern in ignore
    )
