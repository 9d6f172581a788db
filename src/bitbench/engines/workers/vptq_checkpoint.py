"""Makes transformers load VPTQ checkpoints with the layers of `bitbench.vptq` from the package around us."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2]


def prepare(folder: Path, device: str) -> None:
    """Nothing, unless the checkpoint is one. `device` is where the model will compute."""
    if is_vptq(folder):
        make_importable()
        importlib.import_module("bitbench.vptq.hugging_face").register(device)


def is_vptq(folder: Path) -> bool:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return (config.get("quantization_config") or {}).get("quant_method") == "vptq"


def make_importable() -> None:
    """Our package alone, and nothing that lies beside it: bitbench is not installed here."""
    spec = importlib.util.spec_from_file_location(
        "bitbench", PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{PACKAGE} cannot be imported")
    sys.modules["bitbench"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["bitbench"])
