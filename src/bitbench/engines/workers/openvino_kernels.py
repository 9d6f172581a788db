"""Which kernels OpenVINO computes the linear layers of a model with: `python -I openvino_kernels.py MODEL JSON`.

Run by `openvino_model.py` as a process of its own, which shares the rest with it. Compiles the model with the
properties that are given, computes one token, and counts the primitives of the graph that was executed, as lines of
JSON on its output.
"""

import json
import sys
from collections import Counter
from pathlib import Path
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
LAYERS = ("FullyConnected", "MatMul")  # attention is another one in GenAI's pipeline, which pages its cache


def kernels(folder: Path, properties: dict[str, Any]) -> list[dict[str, Any]]:
    compiled = openvino.Core().compile_model(str(folder / IR), "CPU", properties)
    compiled.create_infer_request().infer(openvino_kernel_inputs(compiled, [0]))
    found: Counter[tuple[str, str]] = Counter()
    for node in compiled.get_runtime_model().get_ordered_ops():
        said = node.get_rt_info()
        if "layerType" in said and (kind := said["layerType"].astype(str)) in LAYERS:
            found[kind, said["primitiveType"].astype(str)] += 1
    return [{"kind": kind, "kernel": kernel, "layers": layers} for (kind, kernel), layers in found.most_common()]


def openvino_kernel_inputs(compiled: Any, prompt: list[int]) -> dict[str, Any]:
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


def openvino_kernel_properties(properties: dict[str, Any]) -> dict[str, str]:
    """What the plugin makes of these properties on this processor, told by a model that does nothing."""
    inlet = opset13.parameter([1], np.float32)
    nothing = openvino.Model([opset13.relu(inlet)], [inlet], "nothing")
    compiled = openvino.Core().compile_model(nothing, "CPU", properties)
    return {name: _shown_property(compiled.get_property(name)) for name in RESOLVED}


def _shown_property(value: Any) -> str:
    """Types of numbers as OpenVINO spells them in its documents: bf16."""
    return str(value.get_type_name()) if isinstance(value, openvino.Type) else str(value)


if __name__ == "__main__":
    print(json.dumps(kernels(Path(sys.argv[1]), json.loads(sys.argv[2]))))
