"""The compatibility data against what the CUDA wheel of vLLM chose: its own code, asked behind a stand-in for NVML."""

import json
from pathlib import Path

import pytest

from bitbench.planning.compatibility import (
    SELECTION,
    load_compatibility_rows,
    look_up_compatibility,
)
from bitbench.study.hardware import Capability, parse_capability
from bitbench.study.plan import Support
from tests.support.cuda_selection import disagreement, questions

RECORD = json.loads(
    (Path(__file__).parent / "data" / "vllm-0.32-cuda-selection.json").read_text(encoding="utf-8")
)


def test_the_data_says_what_the_wheel_chose() -> None:
    asked = [*questions(RECORD)]
    assert len(asked) == 7 * (17 + 6)
    assert [one for one in map(disagreement, asked) if one is not None] == []


# Methods of other people's checkpoints and of vLLM's own compression at load, with our form for each.
METHODS = {
    "awq": "awq/w4a16-int",
    "gptq": "gptq/w4a16-int",
    "inc": "auto-round/w4a16-int",
    "torchao": "torchao",
    "quark": "quark",
    "fp8": "fp8/w8a8-float",
    "modelopt": "modelopt/w8a8-float",
    "modelopt_fp4": "modelopt/w4a4-float/nvfp4",
    "mxfp4": "mxfp4/w4a16-float/mxfp4",
    "fp8_per_tensor": "fp8_per_tensor",
    "fp8_per_block": "fp8_per_block",
    "int8_per_channel_weight_only": "int8_per_channel_weight_only",
    "nvfp4_per_token": "nvfp4_per_token",
    "mxfp8": "mxfp8",
}


@pytest.mark.parametrize(("method", "form"), METHODS.items())
def test_a_method_runs_from_its_least_capability_on(method: str, form: str) -> None:
    least = RECORD["min_capability"][method]
    for text in RECORD["by_capability"]:
        capability = parse_capability(text)
        row = look_up_compatibility(form, "vllm", "cuda", capability=capability)
        assert row is not None
        expected = (
            Support.RUNS
            if 10 * capability.major + capability.minor >= least
            else Support.DOES_NOT_RUN
        )
        assert row.verdict is expected, f"{form} at {capability}"


def test_every_row_that_names_a_kernel_was_asked_for() -> None:
    """No row of the wheel's selection is for a form that it was not asked about."""
    asked = {question.form for question in questions(RECORD)}
    named = {
        row.form
        for row in load_compatibility_rows()
        if row.kernel is not None and row.checked == SELECTION
    }
    assert named <= asked


def test_a_gpu_of_an_unknown_capability_is_tried() -> None:
    assert look_up_compatibility("compressed-tensors/w8a8-int", "vllm", "cuda") is None
    assert look_up_compatibility("gguf", "vllm", "cuda", capability=Capability(9, 0)) is not None
