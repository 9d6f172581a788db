"""Makes one model in OpenVINO's format: `python -I openvino_worker.py JOB.json`, run in the openvino environment.

optimum-intel traces the model with torch and writes it; nncf rounds its weights without looking at a text. Writes
lines of JSON to its output and what the libraries say to its error stream. Imports nothing of bitbench.
"""

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.append(
    str(Path(__file__).parents[2] / "util" / "isolated")
)  # run in isolated mode, python looks nowhere else
from job_worker import Json, Reports, job_worker_peak_bytes, run_as_job_worker  # type: ignore[import-not-found]

REPORTED_PACKAGES = ("nncf", "openvino", "optimum-intel", "torch", "transformers")
# For the server, which turns tokens into text.
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def _work(job: Json, reports: Reports) -> Json:  # noqa: ARG001
    os.environ["HF_HUB_OFFLINE"] = "1"
    from optimum.intel import OVModelForCausalLM

    rounding = _how_to_round(job)
    model = OVModelForCausalLM.from_pretrained(
        job["model"],
        export=True,
        compile=False,
        local_files_only=True,
        load_in_8bit=None
        if rounding
        else False,  # else it rounds models of more than a billion weights unasked
        quantization_config=rounding,
    )
    target = Path(job["target"])
    model.save_pretrained(target)
    for name in TOKENIZER:
        if (file := Path(job["model"]) / name).exists():
            shutil.copyfile(file, target / name)
    return {
        "facts": {
            "versions": {name: importlib.metadata.version(name) for name in REPORTED_PACKAGES},
            "peak_memory_bytes": job_worker_peak_bytes(),
        }
    }


def _how_to_round(job: Json) -> Any:
    """As `optimum-cli export openvino --weight-format` does; None: weights stay in the type that they are stored in."""
    if job["type"] == "bf16":
        return None
    from optimum.intel import OVWeightQuantizationConfig

    if job["type"] == "int8":
        return OVWeightQuantizationConfig(bits=8, sym=False)
    return OVWeightQuantizationConfig(bits=4, sym=False, group_size=job["group_size"], ratio=1.0)


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _work))
