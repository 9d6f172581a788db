"""What `openvino_model.py` and `openvino_kernels.py` share; loaded by path in their environment."""

from typing import Any

import numpy as np
import openvino
from openvino import opset13

IR = "openvino_model.xml"
RESOLVED = (
    "INFERENCE_PRECISION_HINT",
    "KV_CACHE_PRECISION",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE",
    "INFERENCE_NUM_THREADS",
)


def feeds(compiled: Any, prompt: list[int]) -> dict[str, Any]:
    """The inputs of a stateful decoder for one prompt and no past."""
    ids = np.array([prompt], dtype=np.int64)
    known = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(len(prompt), dtype=np.int64)[None],
        "beam_idx": np.zeros(1, dtype=np.int32),
    }
    wanted = {name.get_any_name() for name in compiled.inputs}
    return {name: value for name, value in known.items() if name in wanted}


def resolved(properties: dict[str, Any]) -> dict[str, str]:
    """What the plugin makes of these properties on this processor, told by a model that does nothing."""
    inlet = opset13.parameter([1], np.float32)
    nothing = openvino.Model([opset13.relu(inlet)], [inlet], "nothing")
    compiled = openvino.Core().compile_model(nothing, "CPU", properties)
    return {name: shown(compiled.get_property(name)) for name in RESOLVED}


def shown(value: Any) -> str:
    """Types of numbers as OpenVINO spells them in its documents: bf16."""
    return str(value.get_type_name()) if isinstance(value, openvino.Type) else str(value)
