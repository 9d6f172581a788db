"""Makes transformers load VPTQ checkpoints with the layers of `bitbench.vptq` from the package around us."""

import importlib
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "isolated"))  # run in isolated mode, python looks nowhere else
from bitbench_package import make_importable  # type: ignore[import-not-found]


def prepare(folder: Path, device: str) -> None:
    """Nothing, unless the checkpoint is one. `device` is where the model will compute."""
    if is_vptq(folder):
        make_importable()
        importlib.import_module("bitbench.vptq.hugging_face").register(device)


def is_vptq(folder: Path) -> bool:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return (config.get("quantization_config") or {}).get("quant_method") == "vptq"
