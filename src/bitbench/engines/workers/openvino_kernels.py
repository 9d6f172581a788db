"""Which kernels OpenVINO computes the linear layers of a model with: `python -I openvino_kernels.py MODEL JSON`.

Run by `openvino_model.py` as a process of its own. Compiles the model with the properties that are given, computes one
token, and counts the primitives of the graph that was executed, as lines of JSON on its output.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # run in isolated mode, python does not look beside the script
import openvino
from openvino_settings import IR, feeds  # type: ignore[import-not-found]

LAYERS = ("FullyConnected", "MatMul")  # attention is another one in GenAI's pipeline, which pages its cache


def kernels(folder: Path, properties: dict[str, Any]) -> list[dict[str, Any]]:
    compiled = openvino.Core().compile_model(str(folder / IR), "CPU", properties)
    compiled.create_infer_request().infer(feeds(compiled, [0]))
    found: Counter[tuple[str, str]] = Counter()
    for node in compiled.get_runtime_model().get_ordered_ops():
        said = node.get_rt_info()
        if "layerType" in said and (kind := said["layerType"].astype(str)) in LAYERS:
            found[kind, said["primitiveType"].astype(str)] += 1
    return [{"kind": kind, "kernel": kernel, "layers": layers} for (kind, kernel), layers in found.most_common()]


if __name__ == "__main__":
    print(json.dumps(kernels(Path(sys.argv[1]), json.loads(sys.argv[2]))))
