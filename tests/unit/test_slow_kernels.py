"""What engines say against their own speed, in lines of their sources and of a real log."""

from pathlib import Path

from bitbench.engines.kernels import list_slowness_warnings
from bitbench.engines.sglang import read_sglang_facts as read_sglang
from bitbench.engines.vllm import read_vllm_facts as read_vllm
from bitbench.study.variant import ModelFacts

DATA = Path(__file__).parent / "data"
UNTUNED = (
    "WARNING 11-16 02:11:09 [fused_moe.py:1163] Using default MoE config. Performance might be sub-optimal! "
    "Config file not found at /opt/venv/lib/vllm/configs/E=128,N=768,device_name=NVIDIA_L4.json"
)
MARLIN = (
    "WARNING 11-16 02:11:10 [marlin_utils_fp8.py:108] Your GPU does not have native support for FP8 computation but "
    "FP8 quantization is being used. Weight-only FP8 compression will be used leveraging the Marlin kernel. This may "
    "degrade performance for compute-heavy workloads."
)


def test_a_kernel_without_a_tuned_configuration_is_named_once_and_without_folders() -> None:
    found = read_vllm("\n".join((UNTUNED, MARLIN, UNTUNED)), ModelFacts()).warnings
    assert found[0] == (
        "Using default MoE config. Performance might be sub-optimal! "
        "Config file not found at E=128,N=768,device_name=NVIDIA_L4.json"
    )
    assert found[1].endswith("This may degrade performance for compute-heavy workloads")
    assert len(found) == 2


def test_sglang_says_that_it_falls_back() -> None:
    log = (DATA / "sglang-0.5.23-bf16.log").read_text(encoding="utf-8")
    assert read_sglang(log, ModelFacts()).warnings == (
        "The current platform does not support Intel AMX, will fallback to torch_native backend",
    )


def test_other_lines_are_no_warnings() -> None:
    for log in DATA.glob("vllm-*.log"):
        assert read_vllm(log.read_text(encoding="utf-8"), ModelFacts()).warnings == ()
    assert (
        list_slowness_warnings(
            ["Falling back to linear expert placement.", "no fallback is needed"]
        )
        == ()
    )
