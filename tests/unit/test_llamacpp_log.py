"""What is read from logs that llama.cpp's server really wrote."""

import sys
from pathlib import Path

import pytest

from bitbench.engines import llamacpp
from bitbench.engines.server import ServerInstance, ServerPlan
from bitbench.ports import Endpoint, InstanceFailed
from bitbench.records.trial import Failure, Outcome

DATA = Path(__file__).parent / "data"


def recorded(name: str) -> str:
    return (DATA / f"llamacpp-{name}.log").read_text(encoding="utf-8")


def failure_of(log: str, tmp_path: Path) -> Failure:
    """Of a process that writes this log and ends."""
    said = tmp_path / "said.log"
    said.write_text(log, encoding="utf-8")
    program = "import sys; sys.stderr.write(open(sys.argv[1]).read()); sys.exit(1)"
    plan = ServerPlan(
        command=[sys.executable, "-c", program, str(said)],
        env={},
        endpoint=Endpoint(url="http://127.0.0.1:9", model="model", api_key="k"),
        log_file=tmp_path / "llamacpp.log",
        read_facts=lambda log: llamacpp.read_llamacpp_facts(log, prefix_caching=False),
        unsupported=llamacpp.UNSUPPORTED,
        message_of=llamacpp.strip_llamacpp_log_prefix,
    )
    instance = ServerInstance(plan)
    try:
        with pytest.raises(InstanceFailed) as failed:
            instance.wait_ready(20.0)
    finally:
        instance.stop()
    return failed.value.failure


def test_facts_of_a_start() -> None:
    facts = llamacpp.read_llamacpp_facts(recorded("bf16"), prefix_caching=False)
    assert facts.engine_version == "10605"
    assert facts.versions == {"compiler": "GNU 12.2.0"}
    assert facts.kv_cache_tokens == 3 * 256
    assert facts.kv_cache_bytes == round(16.88 * 2**20)
    assert facts.kv_bytes_per_token == pytest.approx(
        2 * 30 * 3 * 64 * 2, rel=0.001
    )  # as f16, the log being rounded
    assert facts.weight_bytes_loaded == round(256.63 * 2**20)
    assert facts.prefix_caching is False
    assert facts.kernels[0] == "weights BF16: 61 tensors f32, 211 tensors bf16"
    assert facts.kernels[1] == "CPU_Mapped buffer: 257 MiB of weights"
    features = facts.kernels[2].removeprefix("CPU features ").split(", ")
    assert {"AVX2", "AVX512_VNNI", "AVX512_BF16", "REPACK"} <= set(features)
    assert "AMX_INT8" not in features  # compiled with GCC 12.2
    assert facts.notes == (
        "llama.cpp computes with 2 threads on a machine of 2; `args: {threads: N}` in the study changes this",
    )


def test_types_and_buffers_of_a_quantized_model() -> None:
    facts = llamacpp.read_llamacpp_facts(recorded("q4_k_m"), prefix_caching=True)
    assert facts.kernels[:3] == (
        "weights Q4_K - Medium: 61 tensors f32, 166 tensors q5_0, 15 tensors q8_0, 16 tensors q4_K, 14 tensors q6_K",
        "CPU_Mapped buffer: 98.9 MiB of weights",
        "CPU_REPACK buffer: 7.59 MiB of weights",
    )
    assert facts.weight_bytes_loaded == round(98.87 * 2**20) + round(7.59 * 2**20)
    assert facts.prefix_caching is True


def test_facts_of_a_start_of_the_prebuilt_server() -> None:
    facts = llamacpp.read_llamacpp_facts(recorded("prebuilt-q4_k_m"), prefix_caching=False)
    assert facts.engine_version == "86a2835"  # it does not know its number
    assert facts.versions == {"compiler": "GNU 14.2.1"}
    assert facts.kv_cache_tokens == 3 * 256
    assert facts.kv_cache_bytes == round(16.88 * 2**20)
    assert facts.kernels == (
        "weights Q4_K - Medium: 61 tensors f32, 166 tensors q5_0, 15 tensors q8_0, 16 tensors q4_K, 14 tensors q6_K",
        "CPU_Mapped buffer: 98.9 MiB of weights",
        "CPU_REPACK buffer: 7.59 MiB of weights",
        "CPU features SSE3, SSSE3, AVX, AVX2, F16C, FMA, BMI2, LLAMAFILE, OPENMP, REPACK",
    )


def test_one_cache_for_all_requests_is_counted_once() -> None:
    line = "llama_kv_cache: size =  180.00 MiB (  8192 cells,  30 layers,  4/1 seqs), K (f16):   90.00 MiB, V (f16): 90"
    assert llamacpp.read_llamacpp_facts(line, prefix_caching=False).kv_cache_tokens == 8192


def test_parts_of_a_cache_are_added() -> None:
    """Models with sliding windows have one for each kind of layer."""
    lines = [
        "llama_kv_cache: size =   10.00 MiB (  4096 cells,   4 layers,  2/2 seqs), K (f16): 5 MiB, V (f16): 5 MiB",
        "llama_kv_cache: size =    5.00 MiB (  1024 cells,  20 layers,  2/2 seqs), K (f16): 2 MiB, V (f16): 3 MiB",
    ]
    facts = llamacpp.read_llamacpp_facts("\n".join(lines), prefix_caching=False)
    assert facts.kv_cache_bytes == 15 * 2**20
    assert facts.kv_cache_tokens == 2 * 4096
    assert facts.kv_bytes_per_token == round(10 * 2**20 / 8192 + 5 * 2**20 / 2048)


def test_a_log_that_says_nothing_leaves_facts_undefined() -> None:
    facts = llamacpp.read_llamacpp_facts("", prefix_caching=False)
    assert (facts.engine_version, facts.kv_cache_bytes) == (None, None)
    assert (facts.weight_bytes_loaded, facts.kv_bytes_per_token) == (None, None)
    assert (facts.kernels, facts.notes) == ((), ())


@pytest.mark.parametrize(
    ("line", "outcome", "cause"),
    [
        (
            "0.00.009.247 E llama_model_load: error loading model: unknown model architecture: 'mamba9'",
            Outcome.UNSUPPORTED,
            "unknown model architecture: 'mamba9'",
        ),
        ("error: invalid argument: --flash-attention", Outcome.UNSUPPORTED, "--flash-attention"),
        (
            "0.00.070.123 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv "
            "cache",
            Outcome.OOM,
            "buffer for kv cache",
        ),
        (
            "llama_model_load: error loading model: unable to allocate CPU_REPACK buffer",
            Outcome.OOM,
            "CPU_REPACK",
        ),
        (
            "0.00.009.247 E gguf_init_from_file_impl: failed to read magic",
            Outcome.CRASHED,
            "It ended with exit code 1: Error: gguf_init_from_file_impl: failed to read magic",
        ),
    ],
)
def test_why_a_start_failed(line: str, outcome: Outcome, cause: str, tmp_path: Path) -> None:
    failure = failure_of(f"0.00.004.108 I srv          init: initializing ...\n{line}\n", tmp_path)
    assert failure.outcome is outcome
    assert cause in failure.cause
