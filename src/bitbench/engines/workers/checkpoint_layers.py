"""Lets a feature bring the layers of checkpoints that transformers cannot load by itself.

The method that a checkpoint names is looked up among what features offer, in the package around us: bitbench is not
installed where this runs, and features of other packages are not seen.
"""

import importlib
import json
import sys
from pathlib import Path

sys.path.append(
    str(Path(__file__).parents[2] / "util" / "isolated")
)  # run in isolated mode, python looks nowhere else
from bitbench_package import make_importable  # type: ignore[import-not-found]


def prepare_checkpoint_layers(folder: Path, device: str) -> None:
    """Nothing, unless a feature knows the checkpoint. `device` is where the model will compute."""
    if (method := _quantization_method(folder)) is None:
        return
    make_importable()
    known = importlib.import_module("bitbench.feature").offered("checkpoints")
    if method in known:
        known[method].load()(device)


def _quantization_method(folder: Path) -> str | None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    method: str | None = (config.get("quantization_config") or {}).get("quant_method")
    return method
