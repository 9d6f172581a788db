"""Load VPTQ checkpoints in transformers, also on a CPU.

This module is imported in an engine's environment, which has transformers. transformers itself
loads these checkpoints with the package vptq, and refuses without CUDA. After `register_vptq`, its
`from_pretrained` uses the layers of bitbench instead, everywhere in the process.
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
    find_layer_config,
    parse_vptq_layer,
)
from bitbench.features.vptq.linear import VptqLinear


def register_vptq(device: str = "cpu") -> None:
    """Make transformers use bitbench's layers. `device` is the target of models after loading."""
    VptqQuantizer.device = device
    AUTO_QUANTIZER_MAPPING[METHOD] = VptqQuantizer


class VptqQuantizer(HfQuantizer):  # type: ignore[misc]
    """A quantizer that loads tensors itself, since transformers would round the codebooks."""

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
            config = find_layer_config(name, self._make_layout_config())
            if isinstance(module, torch.nn.Linear) and config is not None:
                model.set_submodule(name, VptqLinear(module.in_features, module.out_features))
                self._configs[name] = config
        ignored = set(model._keys_to_ignore_on_load_unexpected or ())
        ignored |= {rf"^{re.escape(name)}\." for name in self._configs}
        model._keys_to_ignore_on_load_unexpected = ignored

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        tensors = _read_tensors(self._files, self._configs)
        for name, config in self._configs.items():
            layer = parse_vptq_layer(tensors.pop(name, {}), config)
            model.get_submodule(name).fill(layer, model.dtype, self.device)
        return model

    def _make_layout_config(self) -> QuantizationConfig:
        config = self.quantization_config
        return QuantizationConfig(
            config_for_layers=config.config_for_layers,
            shared_layer_config=config.shared_layer_config,
        )


def _read_tensors(files: Sequence[Path], layers: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each layer by their names within the layer."""
    from safetensors import safe_open

    tensors: dict[str, dict[str, Tensor]] = {}
    for path in files:
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - it is not a mapping
                layer = _find_layer(key, layers)
                if layer is not None:
                    name = key.removeprefix(f"{layer}.")
                    tensors.setdefault(layer, {})[name] = _convert_to_numpy(file.get_tensor(key))
    return tensors


def _find_layer(key: str, layers: Mapping[str, Any]) -> str | None:
    """Return the layer of a key such as `LAYER.indices` or `LAYER.centroids.weight`, or None."""
    parent = key.rpartition(".")[0]
    for name in (parent, parent.rpartition(".")[0]):
        if name in layers:
            return name
    return None


def _convert_to_numpy(tensor: torch.Tensor) -> Tensor:
    """Return the tensor as a numpy array. numpy has no bfloat16, so it becomes float32."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    array: Tensor = np.asarray(tensor.numpy())
    return array
