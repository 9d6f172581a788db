"""Writes a GGUF file as a bf16 checkpoint: `python convert_gguf.py MODEL.gguf FOLDER`, in the transformers environment.

Imports nothing of ours. Weights that were packed in 4 bits keep the values they have; only their form changes.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main(source: Path, target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),  # else they stay packed and cannot be saved
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
