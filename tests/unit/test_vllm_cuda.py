"""vLLM on an NVIDIA GPU: how it is started, what its log means and how it fails.

Lines are those of vLLM 0.32.0: its source, and what its CUDA wheel printed when its own selection was run for seven
compute capabilities behind a stand-in for NVML. *Not yet run on a GPU.*
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bitbench.engines import kernels, vllm
from bitbench.engines.kernels import (
    classify_kernel,
    complete_toolkit,
    make_toolkit_variables,
    read_choices,
)
from bitbench.engines.vllm import VllmEngine, command_line, make_vllm_variables
from bitbench.records.trial import InstanceFacts, KernelPath, Outcome
from bitbench.study.hardware import Capability
from bitbench.study.variant import AtLoad, ModelFacts
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.unit.test_vllm_engine import SMOLLM2, failure_of, launch, options

DATA = Path(__file__).parent / "data"
SELECTION = json.loads((DATA / "vllm-0.32-cuda-selection.json").read_text(encoding="utf-8"))[
    "by_capability"
]
CONFIGURATION = (
    "(EngineCore pid=1) INFO 11-15 02:18:36 [core.py:112] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='m', dtype=torch.bfloat16, max_seq_len=2096, tensor_parallel_size=2, pipeline_parallel_size=1, "
    "data_parallel_size=2, quantization={quantization}, kv_cache_dtype=auto, device_config=cuda"
)


def facts(*messages: str, quantization: str = "None") -> InstanceFacts:
    prefix = "(Worker_TP0 pid=1) INFO 11-15 02:18:36 [worker.py:1] "
    lines = [
        CONFIGURATION.format(quantization=quantization),
        *(prefix + message for message in messages),
    ]
    return vllm.read_vllm_facts("\n".join(lines), SMOLLM2)


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [
        (None, "bfloat16"),
        (Capability(8, 0), "bfloat16"),
        (Capability(12, 0), "bfloat16"),
        (Capability(7, 5), "float16"),
    ],
)
def test_before_ampere_it_computes_in_float16(capability: Capability | None, dtype: str) -> None:
    assert f"--dtype {dtype} " in options(command_line(replace(launch(), capability=capability), 1))


def test_the_study_chooses_the_type_all_the_same() -> None:
    wanted = replace(launch({"dtype": "bfloat16"}), capability=Capability(7, 5))
    assert "--dtype bfloat16 " in options(command_line(wanted, 1))


def test_what_is_compressed_at_load_is_told_to_vllm() -> None:
    wanted = launch()
    at_load = wanted.variant.model_copy(
        update={"at_load": AtLoad(engine="vllm", quantize="fp8_per_tensor")}
    )
    assert "--quantization fp8_per_tensor" in options(
        command_line(replace(wanted, variant=at_load), 1)
    )
    assert "--quantization" not in options(command_line(wanted, 1))


@pytest.mark.parametrize(
    ("method", "is_refused"), [("mxfp8", False), ("--trust-remote-code", True), ("gguf", True)]
)
def test_only_what_vllm_can_compress_at_load_is_told_to_it(method: str, is_refused: bool) -> None:
    """A recipe may come from a stranger: its word would be one of the command line."""
    at_load = launch().variant.model_copy(
        update={"at_load": AtLoad(engine="vllm", quantize=method)}
    )
    refusal = VllmEngine().refuse(launch().setup, at_load, BUILT_IN_WORKLOADS["interactive"])
    assert (refusal is not None) == is_refused


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As the lock installs it, on a machine without a toolkit of its own."""
    monkeypatch.setattr(kernels, "_INSTALLED", tmp_path / "usr-local-cuda")
    toolkit = tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "nvidia" / "cu13"
    for name in ("bin/nvcc", "lib/libcudart.so.13", "include/cuda.h"):
        (toolkit / name).parent.mkdir(parents=True, exist_ok=True)
        (toolkit / name).touch(mode=0o755)
    return tmp_path / "env"


def test_the_engine_finds_the_programs_of_its_own_environment(environment: Path) -> None:
    found = make_toolkit_variables(environment / "bin" / "python", {"PATH": "/usr/bin"})
    assert found["PATH"] == f"{environment}/bin:/usr/bin"
    assert found["CUDA_HOME"] == f"{environment}/lib/python3.11/site-packages/nvidia/cu13"
    wanted = replace(launch(), python=environment / "bin" / "python")
    assert make_vllm_variables(wanted, "k")["PATH"].startswith(f"{environment}/bin:")


def test_a_toolkit_of_this_machine_goes_first(environment: Path, tmp_path: Path) -> None:
    python = environment / "bin" / "python"
    assert "CUDA_HOME" not in make_toolkit_variables(
        python, {"PATH": "/usr/bin", "CUDA_HOME": "/opt/cuda"}
    )
    nvcc = tmp_path / "opt" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch(mode=0o755)
    assert "CUDA_HOME" not in make_toolkit_variables(python, {"PATH": str(nvcc.parent)})


def test_the_packaged_toolkit_can_be_linked_with(environment: Path, tmp_path: Path) -> None:
    for _ in range(2):  # a second time changes nothing
        complete_toolkit(environment, tmp_path / "log", device="cuda")
    toolkit = environment / "lib" / "python3.11" / "site-packages" / "nvidia" / "cu13"
    assert (toolkit / "lib64" / "libcudart.so").resolve() == toolkit / "lib" / "libcudart.so.13"


def test_an_environment_without_cuda_is_left_as_it_is(environment: Path, tmp_path: Path) -> None:
    complete_toolkit(environment, tmp_path / "log", device="cpu")
    assert not list(environment.rglob("lib64"))


def test_memory_is_counted_over_all_ranks_and_replicas() -> None:
    found = facts(
        "Model loading took 7.5 GiB memory and 3.123456 seconds",
        "Available KV cache memory: 60.25 GiB",
        "GPU KV cache size: 1,000 tokens, Maximum concurrency for 8,192 tokens per request: 122.07x",
    )
    assert found.weight_bytes_loaded == 4 * round(7.5 * 2**30)
    assert found.kv_cache_bytes == 4 * round(60.25 * 2**30)
    assert found.kv_cache_tokens == 2_000


def test_a_kv_cache_of_a_given_size_is_read() -> None:
    found = facts(
        "Initial free memory 78.10 GiB, reserved 8.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes "
        "config and skipped memory profiling. This does not respect the gpu_memory_utilization config."
    )
    assert found.kv_cache_bytes == 4 * 8 * 2**30


def test_what_vllm_chose_by_device_is_noted() -> None:
    notes = facts(
        "Chunked prefill is enabled with max_num_batched_tokens=8192.",
        "Graph capturing finished in 21 secs, took 0.61 GiB",
        "FlashInfer kernels are disabled: ninja was not found on PATH",
    ).notes
    assert [note.partition(":")[0] for note in notes] == [
        "a step of prefill takes at most 8,192 tokens (max-num-batched-tokens; vLLM chooses by device)",
        "CUDA graphs were captured in 21 s and take 0.61 GiB",
        "vLLM runs without FlashInfer, so other kernels are chosen",
    ]


def test_quantized_layers_without_a_kernel_line_are_not_taken_for_dense() -> None:
    found = facts(
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
        quantization="fp8",
    )
    assert [choice.kind for choice in found.kernel_choices] == ["attention"]
    assert "vLLM does not say which kernel computes the layers of fp8" in found.notes


def test_an_attention_backend_that_was_asked_for_has_its_own_name() -> None:
    (choice,) = read_choices(["Using AttentionBackendEnum.FLASHINFER backend."])
    assert (choice.kind, choice.kernel) == ("attention", "FLASHINFER")


@pytest.mark.parametrize(
    ("line", "kind", "kernel", "path"),
    [
        (
            "Using TRITON Unquantized MoE backend out of potential backends: ['TRITON'].",
            "Unquantized",
            "TRITON",
            "dense",
        ),
        (
            "Using DEEPGEMM Fp8 MoE backend out of potential backends: ['DEEPGEMM'].",
            "Fp8",
            "DEEPGEMM",
            None,
        ),
        (
            "Using 'FLASHINFER_TRTLLM' NvFp4 MoE backend out of potential backends: ['X'].",
            "NvFp4",
            "FLASHINFER_TRTLLM",
            None,
        ),
        ("Using 'MARLIN' Mxfp4 MoE backend.", "Mxfp4", "MARLIN", None),
        ("Using 'MARLIN' MxFp8 MoE backend.", "MxFp8", "MARLIN", None),
        (
            "Using TRITON Int8 MoE backend out of potential backends: ['TRITON'].",
            "Int8",
            "TRITON",
            None,
        ),
        ("Using 'MARLIN' WNA16 MoE backend.", "WNA16", "MARLIN", None),
        ("Using CUTLASS W4A8 MoE backend.", "W4A8", "CUTLASS", None),
        (
            "Using HUMMING W4A8 Int8 MoE backend out of potential backends: ['HUMMING'].",
            "W4A8 Int8",
            "HUMMING",
            None,
        ),
        ("Using HummingExperts Humming MoE backend.", "Humming", "HummingExperts", None),
    ],
)
def test_experts_have_a_kernel_identity(
    line: str, kind: str, kernel: str, path: str | None
) -> None:
    found = facts(line, quantization="x")
    (choice,) = found.kernel_choices
    assert (choice.kind, choice.kernel, choice.path) == (f"experts, {kind}", kernel, path)
    assert found.kernels == (line,)


@pytest.mark.parametrize("capability", SELECTION)
def test_every_kernel_that_the_wheel_names_has_a_path(capability: str) -> None:
    """Activations stay in 16 bits, or they do not: what a comparison of two GPUs hangs on."""
    for name, asked in SELECTION[capability]["linear"].items():
        for choice in read_choices(asked["said"]):
            assert choice.path is not None, f"{name} at {capability}: {choice.kernel}"


@pytest.mark.parametrize(
    ("kernel", "kind", "path"),
    [
        ("HummingLinearKernel", "CompressedTensorsWNA16", KernelPath.WEIGHT_ONLY),
        ("HummingLinearKernel", "CompressedTensorsW4A8Int", KernelPath.QUANTIZED),
        ("HummingFP8ScaledMMLinearKernel", "", KernelPath.WEIGHT_ONLY),
        ("CutlassNvFp4LinearKernel", "NVFP4 GEMM", KernelPath.QUANTIZED),
        ("FlashInferCuteDslNvFp4LinearKernel", "NVFP4 GEMM", KernelPath.QUANTIZED),
        ("FlashInferCuteDslNvFp4W4A16LinearKernel", "NVFP4 GEMM", KernelPath.WEIGHT_ONLY),
        ("FlashInferMxFp4LinearKernel", "MXFP4 GEMM", KernelPath.QUANTIZED),
        ("FlashInferCutlassMxfp8LinearKernel", "MXFP8 GEMM", KernelPath.QUANTIZED),
        ("MarlinMxfp8LinearKernel", "MXFP8 GEMM", KernelPath.WEIGHT_ONLY),
        ("CutlassFp8BlockScaledMMKernel", "", KernelPath.QUANTIZED),
        ("CutlassW4A8LinearKernel", "", KernelPath.QUANTIZED),
        ("TorchNvFp4LinearKernel", "", KernelPath.QUANTIZED),
        ("B12xNvFp4LinearKernel", "", KernelPath.QUANTIZED),
        ("B12xW4A16LinearKernel", "", KernelPath.WEIGHT_ONLY),
        ("EmulationNvFp4LinearKernel", "", KernelPath.DEQUANTIZED),
    ],
)
def test_the_path_of_a_kernel(kernel: str, kind: str, path: KernelPath) -> None:
    assert classify_kernel(kernel, kind) is path


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        (
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU "
            "has compute capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag in CLI, "
            "for example: --dtype=half.",
            Outcome.UNSUPPORTED,
        ),
        (
            "RuntimeError: Int8 not supported on SM100. Use FP8 quantization instead, or run on older arch (SM < 100).",
            Outcome.UNSUPPORTED,
        ),
        (
            "RuntimeError: Quantization scheme is not supported for the current GPU. Min capability: 89. Current "
            "capability: 80.",
            Outcome.UNSUPPORTED,
        ),
        (
            "ValueError: Failed to find a kernel that can implement the ScaledMM linear layer. Reasons: ",
            Outcome.UNSUPPORTED,
        ),
        (
            "ValueError: The quantization method mxfp4 is not supported for the current GPU. Minimum capability: 80. "
            "Current capability: 75.",
            Outcome.UNSUPPORTED,
        ),
        (
            "NotImplementedError: No compressed-tensors compatible scheme was found",
            Outcome.UNSUPPORTED,
        ),
        (
            "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(…)",
            Outcome.UNSUPPORTED,
        ),
        (
            "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
            Outcome.UNSUPPORTED,
        ),
        (
            "ValueError: Free memory on device cuda:0 (10.1/23.5 GiB) on startup is less than desired GPU memory "
            "utilization (0.92, 21.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
            "processes.",
            Outcome.OOM,
        ),
        (
            "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free memory for "
            "weights, increasing --tensor-parallel-size, or using --quantization.",
            Outcome.OOM,
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "23.5 GiB of which 1.1 GiB is free.",
            Outcome.OOM,
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine.",
            Outcome.OOM,
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (2.1 GiB).",
            Outcome.OOM,
        ),
    ],
)
def test_how_it_fails_on_a_gpu(message: str, outcome: Outcome, tmp_path: Path) -> None:
    prefix = "(EngineCore pid=7) ERROR 11-15 02:18:36 [core.py:1] "
    log = f"{prefix}Traceback:\n{prefix}{message}\nRuntimeError: Engine core initialization failed."
    failure = failure_of(log, 1, tmp_path)
    assert failure.outcome is outcome
    assert failure.cause == message.strip()


def test_a_model_without_facts_has_no_cache_per_token() -> None:
    assert (
        vllm.read_vllm_facts(
            CONFIGURATION.format(quantization="None"), ModelFacts()
        ).kv_bytes_per_token
        is None
    )
