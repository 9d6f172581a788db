"""Writes a shape as a checkpoint of random weights, in `<home>/models/shape-NAME`, piece by piece: a model of any size
takes no more memory than one piece of a tensor."""

import json
import shutil
import time
from pathlib import Path

from bitbench.features.shapes.names import folder_name, reference_to
from bitbench.features.shapes.tokenizer import tokenizer_files
from bitbench.models.folder import MANIFEST
from bitbench.models.hub import OnProgress
from bitbench.models.shape_tensors import shards, tensor_bytes
from bitbench.models.shapes import Shape
from bitbench.util.errors import ModelError
from bitbench.util.safe_files import SafeFolder
from bitbench.util.tensor_files import header_bytes
from bitbench.util.units import show_bytes

_ROOM_BESIDE_WEIGHTS_BYTES = 64 * 2**20  # the tokenizer
_UNFINISHED = ".making-"


def find_checkpoint(shape: Shape, home: Path) -> Path | None:
    folder = home.absolute() / "models" / folder_name(shape)
    return folder if (folder / MANIFEST).exists() else None


def make_checkpoint(shape: Shape, home: Path, *, on_progress: OnProgress = lambda *_: None) -> Path:
    """Its folder, made now or before. If it is interrupted, no part of it is left that could be taken for a model."""
    if (there := find_checkpoint(shape, home)) is not None:
        return there
    files, name = SafeFolder(home.absolute() / "models"), folder_name(shape)
    files.make_folder()
    _refuse_without_room(shape, files.root)
    began = time.monotonic()
    unfinished = f"{_UNFINISHED}{name}"
    files.remove_folder(unfinished)
    try:
        folder = SafeFolder(files.make_folder(unfinished))
        _write_weights(shape, folder, on_progress)
        _write_configuration(shape, folder)
        _write_manifest(shape, folder, time.monotonic() - began)
        files.remove_folder(name)  # a folder without a manifest is not a model of ours
        folder.root.rename(files.root / name)
    finally:
        files.remove_folder(unfinished)
    return files.root / name


def _write_weights(shape: Shape, folder: SafeFolder, on_progress: OnProgress) -> None:
    from bitbench.features.shapes.weights import random_pieces  # numpy, for which no other command should wait

    parts = shards(shape.tensors)
    total, done = tensor_bytes(shape.tensors), 0
    names = ["model.safetensors"]
    if len(parts) > 1:
        names = [f"model-{number:05}-of-{len(parts):05}.safetensors" for number in range(1, len(parts) + 1)]
        places = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        folder.write("model.safetensors.index.json", json.dumps(index, indent=1) + "\n")
    for name, part in zip(names, parts, strict=True):
        with folder.replacing(name) as file:
            file.write(header_bytes(part))
            for tensor_name, tensor in part.items():
                for piece in random_pieces(shape, tensor_name, tensor):
                    file.write(piece.astype("<u2", copy=False).data)
                    done += piece.nbytes
                    on_progress(done, total)


def _write_configuration(shape: Shape, folder: SafeFolder) -> None:
    config = dict(shape.config)
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    contents = {
        "config.json": config,
        "generation_config.json": tokens,
        **tokenizer_files(config),
    }
    for name, content in contents.items():
        folder.write(name, json.dumps(content, indent=None if name == "tokenizer.json" else 2) + "\n")


def _write_manifest(shape: Shape, folder: SafeFolder, seconds: float) -> None:
    files = sorted(path for path in folder.root.iterdir() if path.is_file())
    content = {
        "name": reference_to(shape),
        "description": "random weights, for speed, memory and kernels; not for quality",
        "shape_of": list(shape.published_as),
        "seconds": round(seconds, 1),
        "files": {path.name: path.stat().st_size for path in files},
    }
    folder.write(MANIFEST, json.dumps(content, indent=2) + "\n")


def _refuse_without_room(shape: Shape, place: Path) -> None:
    needed, free = tensor_bytes(shape.tensors) + _ROOM_BESIDE_WEIGHTS_BYTES, shutil.disk_usage(place).free
    if free < needed:
        raise ModelError(
            f"{reference_to(shape)} needs {show_bytes(needed)}, and {place} has {show_bytes(free)} free; free some "
            "space, or set BITBENCH_HOME to another disk."
        )
