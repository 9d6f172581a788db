"""Make one model in OpenVINO's format: `python -I openvino_worker.py JOB.json`.

It runs in the openvino environment. optimum-intel traces the model with torch and writes it. nncf
rounds its weights without a text. It writes lines of JSON to its output, and the libraries'
messages to its error stream. It imports nothing of bitbench.
"""

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path
from typing import Any

# In isolated mode, Python searches no folder of ours.
sys.path.append(str(Path(__file__).parents[2] / "util" / "isolated"))
from job_worker import (  # type: ignore[import-not-found]
    Json,
    Reports,
    job_worker_peak_bytes,
    run_as_job_worker,
)

REPORTED_PACKAGES = ("nncf", "openvino", "optimum-intel", "torch", "transformers")
# The server needs them to turn tokens into text.
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def _work(job: Json, reports: Reports) -> Json:  # noqa: ARG001
    os.environ["HF_HUB_OFFLINE"] = "1"
    from optimum.intel import OVModelForCausalLM

    rounding = _make_rounding(job)
    # False, because by default it rounds models of more than a billion weights.
    in_8_bits = None if rounding else False
    model = OVModelForCausalLM.from_pretrained(
        job["model"],
        export=True,
        compile=False,
        local_files_only=True,
        load_in_8bit=in_8_bits,
        quantization_config=rounding,
    )
    target = Path(job["target"])
    model.save_pretrained(target)
    for name in TOKENIZER:
        if (file := Path(job["model"]) / name).exists():
            shutil.copyfile(file, target / name)
    versions = {name: importlib.metadata.version(name) for name in REPORTED_PACKAGES}
    return {"facts": {"versions": versions, "peak_memory_bytes": job_worker_peak_bytes()}}


def _make_rounding(job: Json) -> Any:
    """Return the rounding of `optimum-cli export openvino --weight-format`, or None for none."""
    if job["type"] == "bf16":
        return None
    from optimum.intel import OVWeightQuantizationConfig

    if job["type"] == "int8":
        return OVWeightQuantizationConfig(bits=8, sym=False)
    return OVWeightQuantizationConfig(bits=4, sym=False, group_size=job["group_size"], ratio=1.0)


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _work))
