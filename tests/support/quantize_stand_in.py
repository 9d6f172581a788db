"""A model of no use and a backend that compresses it at once: what the tests of making variants share."""

import json
import math
import struct
import time
from pathlib import Path

from bitbench.quantize.backends import OnProgress, QuantizeProgress, Work
from bitbench.quantize.manifest import WorkerFacts
from bitbench.util.errors import QuantizeError

LAYERS = {"model.layers.0.q_proj.weight": (8, 576), "model.layers.0.down_proj.weight": (8, 1536)}
DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I8": 1, "U8": 1, "I32": 4, "I64": 8, "F8_E4M3": 1}


def write_tensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = offset + DTYPE_BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"\x3c" * offset
    )  # a number that is not zero, in each type


def write_model(
    folder: Path, *, columns: int = 576, architecture: str = "LlamaForCausalLM"
) -> Path:
    """A checkpoint of two linear layers, the first with so many columns, and an embedding."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    tensors = {name: ("BF16", shape) for name, shape in LAYERS.items()}
    tensors["model.layers.0.q_proj.weight"] = ("BF16", (8, columns))
    tensors["model.embed_tokens.weight"] = ("BF16", (10, 576))
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def pretend_environment(home: Path) -> None:
    """As far as anybody can see without starting its Python."""
    folder = home / "envs" / "quantize"
    folder.mkdir(parents=True)
    manifest = {"name": "quantize", "path": str(folder), "complete": True}
    (folder / "bitbench-environment.json").write_text(json.dumps(manifest))


class StandIn:
    """Writes what int8 weights with one scale per row look like."""

    def __init__(self) -> None:
        self.made = 0
        self.cannot_make: set[str] = set()  # recipes that fail
        self.seconds = 0.0
        self.error: Exception | None = None

    def compress(self, work: Work, on_progress: OnProgress) -> WorkerFacts:
        self.made += 1
        on_progress(QuantizeProgress("quantize", 1, 1, 0.0))
        work.checkpoint.mkdir()
        work.log_file.write_text("what it said\n")
        (work.folder / "job.json").write_text("{}")
        tensors: dict[str, tuple[str, tuple[int, ...]]] = {
            "model.embed_tokens.weight": ("BF16", (10, 576))
        }
        for name, (rows, columns) in LAYERS.items():
            tensors |= {name: ("I8", (rows, columns)), f"{name}_scale": ("BF16", (rows, 1))}
        time.sleep(self.seconds)
        if work.recipe.name in self.cannot_make:
            raise QuantizeError(
                f"the stand-in could not create {work.recipe.name}: ValueError: no luck"
            )
        if self.error:
            raise self.error
        write_tensors(work.checkpoint / "model.safetensors", tensors)
        return WorkerFacts(versions={"llmcompressor": "1"})
