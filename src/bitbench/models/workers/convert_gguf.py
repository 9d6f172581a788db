"""Write a GGUF file as a bf16 checkpoint: `python -I convert_gguf.py JOB.json`.

It runs in the transformers environment and imports nothing of bitbench. Weights that were packed in
4 bits keep their values. Only their form changes.
"""

import sys
from pathlib import Path

# In isolated mode, Python searches no folder of ours.
sys.path.append(str(Path(__file__).parents[2] / "util" / "isolated"))
from job_worker import Json, Reports, run_as_job_worker  # type: ignore[import-not-found]


def _work(job: Json, _: Reports) -> Json:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = Path(job["gguf"])
    target = Path(job["checkpoint"])
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        # Otherwise the weights stay packed and cannot be saved.
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
    return {}


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _work))
