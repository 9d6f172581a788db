"""VPTQ checkpoints in transformers, on a CPU too. Imported where transformers is: in an engine's environment.

transformers itself loads them with the package vptq and refuses without CUDA. After `register`, its `from_pretrained`
puts our layers in their place, everywhere in the process.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer

from bitbench.features.vptq.layout import (
    METHOD,
    QuantizationConfig,
    Tensor,
    vptq_layer_from_layout,
    vptq_layout_config,
)
from bitbench.features.vptq.linear import VptqLinear


def register_vptq(device: str = "cpu") -> None:
    """`device` is where models will be moved to once they are loaded."""
    VptqQuantizer.device = device
    AUTO_QUANTIZER_MAPPING[METHOD] = VptqQuantizer


class VptqQuantizer(HfQuantizer):  # type: ignore[misc]
    """Our tensors go past transformers' own loading: it would round codebooks to the model's type."""

    device = "cpu"
    requires_calibration = True
    is_trainable = False

    def is_serializable(self) -> bool:
        return False

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Sequence[str] | None = None, **_: Any
    ) -> None:
        self._files = [Path(file) for file in checkpoint_files or ()]
        self._configs = {}
        for name, module in list(model.named_modules()):
            config = vptq_layout_config(name, self._said())
            if isinstance(module, torch.nn.Linear) and config is not None:
                model.set_submodule(name, VptqLinear(module.in_features, module.out_features))
                self._configs[name] = config
        ours = {rf"^{re.escape(name)}\." for name in self._configs}
        model._keys_to_ignore_on_load_unexpected = (
            set(model._keys_to_ignore_on_load_unexpected or ()) | ours
        )

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        found = _read_tensors(self._files, self._configs)
        for name, config in self._configs.items():
            layer = vptq_layer_from_layout(found.pop(name, {}), config)
            model.get_submodule(name).fill(layer, model.dtype, self.device)
        return model

    def _said(self) -> QuantizationConfig:
        config = self.quantization_config
        return QuantizationConfig(
            config_for_layers=config.config_for_layers,
            shared_layer_config=config.shared_layer_config,
        )


def _read_tensors(files: Sequence[Path], layers: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Layer to its tensors by their names within it."""
    from safetensors import safe_open

    found: dict[str, dict[str, Tensor]] = {}
    for path in files:
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                owner = _owner_of(key, layers)
                if owner is not None:
                    found.setdefault(owner, {})[key.removeprefix(f"{owner}.")] = _as_numpy(
                        file.get_tensor(key)
                    )
    return found


def _owner_of(key: str, layers: Mapping[str, Any]) -> str | None:
    """`LAYER.indices`, or one step further down: `LAYER.centroids.weight`."""
    parent = key.rpartition(".")[0]
    return next((name for name in (parent, parent.rpartition(".")[0]) if name in layers), None)


def _as_numpy(tensor: torch.Tensor) -> Tensor:
    """numpy knows no bfloat16."""
    array: Tensor = np.asarray(
        (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    )
    return array
