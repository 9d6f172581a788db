"""The environment that variants are made in; GGUF files are made in that of llama.cpp, OpenVINO's in its own."""

from pathlib import Path

from bitbench.study.environment import Environment

_PINNED = Path(__file__).with_name("pinned")

QUANTIZE = Environment(
    name="quantize",
    locks={"cpu": _PINNED / "quantize-cpu.txt", "cuda": _PINNED / "quantize-cuda.txt"},
    import_check="import torch, llmcompressor",
    main_packages=("llmcompressor", "transformers", "torch", "triton"),
)
