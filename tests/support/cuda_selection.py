"""What vLLM's CUDA wheel chose for seven compute capabilities, and what our data says of the same.

The record lies in data/vllm-0.32-cuda-selection.json; tests/slow/test_cuda_wheel.py asks the wheel again.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bitbench.engines.kernels import read_choices
from bitbench.planning.compatibility import CompatibilityRow, look_up_compatibility
from bitbench.study.hardware import Capability, parse_capability
from bitbench.study.plan import Support

# The wheel was asked by names of compressed-tensors and some of ours.
FORMS = {
    "w8a8-int": "w8a8-int",
    "w8a16-int": "w8a16-int",
    "w4a16-g64": "w4a16-int",
    "w4a16-g128": "w4a16-int",
    "w4a16-g64-asym": "w4a16-int",
    "w3a16-g64": "w3a16-int",
    "w2a16-g64": "w2a16-int",
    "fp8-dynamic": "w8a8-float",
    "FP8": "w8a8-float/static",
    "FP8_BLOCK": "w8a8-float/block",
    "NVFP4": "w4a4-float/nvfp4",
    "NVFP4A16": "w4a16-float/nvfp4",
    "MXFP4": "w4a4-float/mxfp4",
    "MXFP4A16": "w4a16-float/mxfp4",
    "MXFP8": "w8a8-float/mxfp8",
    "W4AFP8": "w4afp8-int",
    "W4A8": "w4a8-int",
}
# It asks NVIDIA's server for precompiled kernels there, which a machine without a network cannot.
NOT_KNOWN_OFFLINE = ("attention/kv-nvfp4", Capability(10, 0))
# Chosen, and refused by the kernel itself in the first step (csrc/…/w8a8/cutlass/c3x/scaled_mm_helper.hpp).
REFUSED_LATER = ("compressed-tensors/w8a8-int", Capability(10, 0))

Record = Mapping[str, Any]


class Question(NamedTuple):
    form: str
    capability: Capability
    kernel: str | None  # what was chosen; None: it was refused


def questions(record: Record) -> Iterator[Question]:
    for text, asked in record["by_capability"].items():
        capability = parse_capability(text)
        for name, answer in asked["linear"].items():
            kernel = None if answer["refused"] else answer["kernel"]
            yield Question(f"compressed-tensors/{FORMS[name]}", capability, kernel)
        for kind, answer in asked["attention"].items():
            chosen = read_choices(answer["said"])
            yield Question(f"attention/kv-{kind}", capability, chosen[0].kernel if chosen else None)


def disagreement(question: Question) -> str | None:
    """Where our data says something else than the wheel; None where they agree."""
    row = look_up_compatibility(question.form, "vllm", "cuda", capability=question.capability)
    said = f"{question.form} at {question.capability}: the wheel says {question.kernel}, the data {_shown(row)}"
    if question[:2] == NOT_KNOWN_OFFLINE:
        return said if row is not None else None
    if row is None:
        return said
    if question.form == REFUSED_LATER[0] and question.capability >= REFUSED_LATER[1]:
        agrees = row.kernel == question.kernel and row.verdict is Support.DOES_NOT_RUN
    elif question.kernel is None:
        agrees = row.refuse and row.verdict is Support.DOES_NOT_RUN
    else:
        agrees = row.kernel == question.kernel and row.verdict is Support.RUNS
    return None if agrees else said


def _shown(row: CompatibilityRow | None) -> str:
    return "nothing" if row is None else f"{row.verdict} {row.kernel}"
