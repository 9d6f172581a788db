"""Layers from features, for checkpoints that transformers cannot load by itself.

The checkpoint's method is looked up in the extensions of the bitbench package around this file.
bitbench is not installed in this environment, and features of other packages are not visible.
"""

import importlib
import json
import sys
from pathlib import Path

# In isolated mode, Python searches no folder of ours.
sys.path.append(str(Path(__file__).parents[2] / "util" / "isolated"))
from bitbench_package import make_importable  # type: ignore[import-not-found]


def prepare_checkpoint_layers(folder: Path, device: str) -> None:
    """Prepare the layers if a feature supports the checkpoint. The model will run on `device`."""
    if (method := _read_quantization_method(folder)) is None:
        return
    make_importable()
    extensions = importlib.import_module("bitbench.feature").collect_offers("checkpoints")
    if method in extensions:
        extensions[method].load()(device)


def _read_quantization_method(folder: Path) -> str | None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    method: str | None = (config.get("quantization_config") or {}).get("quant_method")
    return method
