"""How vLLM is started, and what is read from logs that vLLM 0.32 really wrote."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bitbench.engines import vllm
from bitbench.engines.server import ServerInstance, ServerPlan
from bitbench.engines.vllm import VllmEngine, command_line, make_vllm_variables
from bitbench.ports import Endpoint, InstanceFailed, Launch, Load
from bitbench.records.trial import Failure, Outcome
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS

DATA = Path(__file__).parent / "data"
SMOLLM2 = ModelFacts(context_tokens=8192, layers=30, kv_heads=3, head_size=64)


def recorded(name: str) -> str:
    return (DATA / f"vllm-0.32-{name}.log").read_text(encoding="utf-8")


def variant(facts: ModelFacts = SMOLLM2) -> Variant:
    return Variant(name="m/bf16", model="m", recipe="bf16", path=Path("/models/m"), facts=facts)


def launch(
    args: dict[str, Argument] | None = None,
    *,
    env: dict[str, str] | None = None,
    context_tokens: int = 192,
    concurrency: int = 8,
) -> Launch:
    return Launch(
        setup=EngineSetup(name="vllm", engine="vllm", args=args or {}, env=env or {}),
        variant=variant(),
        python=Path("/env/bin/python"),
        log_file=Path("vllm.log"),
        loads=(Load(concurrency, context_tokens),),
        seed=0,
    )


def options(command: list[str]) -> str:
    return " ".join(command[command.index("vllm.entrypoints.openai.api_server") + 1 :])


def test_the_default_command_line() -> None:
    assert options(command_line(launch(), 8123)) == (
        "--dtype bfloat16 --max-model-len 208 --max-num-seqs 8 --no-enable-prefix-caching "
        "--model /models/m --served-model-name model --host 127.0.0.1 --port 8123"
    )


@pytest.mark.parametrize(
    ("args", "expected", "unexpected"),
    [
        ({"enforce-eager": True}, "--enforce-eager", "--no-enforce-eager"),
        ({"enforce_eager": False}, "--no-enforce-eager", "--enforce-eager "),
        ({"max_model_len": 4096}, "--max-model-len 4096", "208"),
        ({"enable-prefix-caching": True}, "--enable-prefix-caching", "--no-enable"),
        ({"no-enable-prefix-caching": False}, "--enable-prefix-caching", "--no-enable"),
        ({"host": "0.0.0.0"}, "--host 127.0.0.1", "0.0.0.0"),
    ],
)
def test_arguments_of_the_study_override_ours_but_not_the_loopback(
    args: dict[str, Argument], expected: str, unexpected: str
) -> None:
    line = options(command_line(launch(args), 8123))
    assert expected in line
    assert unexpected not in line


def test_the_context_is_not_beyond_the_models() -> None:
    assert "--max-model-len 8192" in options(command_line(launch(context_tokens=8190), 1))


def test_the_key_is_in_the_environment_alone_and_cannot_be_overridden() -> None:
    wanted = launch(env={"VLLM_API_KEY": "theirs", "OMP_NUM_THREADS": "2"})
    env = make_vllm_variables(wanted, "secret")
    assert env["VLLM_API_KEY"] == "secret"
    assert env["OMP_NUM_THREADS"] == "2"
    assert "secret" not in options(command_line(wanted, 1))


@pytest.mark.parametrize(
    ("concurrency", "context_tokens", "gib"),
    [
        (1, 192, "1"),
        # 64 requests × 64 blocks of 128 tokens × 23,040 bytes = 11.25 GiB
        (64, 8192, "12"),
    ],
)
def test_the_kv_cache_holds_every_request_at_its_full_length(
    concurrency: int, context_tokens: int, gib: str
) -> None:
    env = make_vllm_variables(launch(concurrency=concurrency, context_tokens=context_tokens), "k")
    assert env["VLLM_CPU_KVCACHE_SPACE"] == gib


def test_the_kv_cache_is_that_of_the_largest_load_and_not_of_the_longest_request_as_often_as_the_most() -> (
    None
):
    mixed = replace(
        launch(), loads=(Load(64, 1024), Load(1, 8000))
    )  # 64 × 9 blocks × 128 × 23,040 bytes = 1.6 GiB
    assert make_vllm_variables(mixed, "k")["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert "--max-model-len 8016 --max-num-seqs 64" in options(command_line(mixed, 1))


def test_the_study_chooses_the_kv_cache() -> None:
    assert (
        make_vllm_variables(launch(env={"VLLM_CPU_KVCACHE_SPACE": "3"}), "k")[
            "VLLM_CPU_KVCACHE_SPACE"
        ]
        == "3"
    )


def test_workloads_that_do_not_fit_are_refused() -> None:
    engine = VllmEngine()
    long, short = BUILT_IN_WORKLOADS["long_context"], BUILT_IN_WORKLOADS["interactive"]
    setup = EngineSetup(name="vllm", engine="vllm")
    assert engine.refuse(setup, variant(), short) is None
    assert "16,416 tokens" in (engine.refuse(setup, variant(), long) or "")
    assert "supports 8,192" in (engine.refuse(setup, variant(), long) or "")
    narrow = EngineSetup(name="narrow", engine="vllm", args={"max_model_len": 128})
    assert "max-model-len of narrow is 128" in (engine.refuse(narrow, variant(), short) or "")
    overrides = {"hf-overrides": '{"rope_parameters": {"rope_type": "yarn"}}'}
    yarn = EngineSetup(name="yarn", engine="vllm", args={"max-model-len": 32_768, **overrides})
    assert engine.refuse(yarn, variant(), long) is None  # they lengthen the model's own
    without = EngineSetup(name="without", engine="vllm", args=dict(overrides))
    assert "supports 8,192" in (engine.refuse(without, variant(), long) or "")


def test_facts_of_an_eager_start() -> None:
    facts = vllm.read_vllm_facts(recorded("eager"), SMOLLM2)
    assert facts.engine_version == "0.32.0"
    assert facts.kv_cache_tokens == 46_592
    assert facts.kv_cache_bytes == 2**30
    assert facts.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert facts.kv_cache_tokens * facts.kv_bytes_per_token <= facts.kv_cache_bytes
    assert facts.weight_bytes_loaded is None  # on the CPU it does not say
    assert facts.weight_load_s == 0.34
    assert facts.compile_s is None
    assert facts.prefix_caching is False
    assert facts.kernels == ("dense bfloat16: no layer is quantized",)
    assert any("computes on CPU 0, and reserves 1 for" in note for note in facts.notes)
    assert any("without libiomp and libtcmalloc" in note for note in facts.notes)


def test_facts_of_a_compiled_start() -> None:
    facts = vllm.read_vllm_facts(recorded("compiled"), SMOLLM2)
    assert facts.compile_s is None  # on the CPU it does not say
    assert facts.weight_load_s == 0.24


def test_compile_time_as_vllm_says_it_where_it_does() -> None:
    prefix = "(EngineCore pid=1) INFO 11-15 02:18:36 [core.py:402] "
    said = (
        "init engine (profile, create kv cache, warmup model) took 50.00 s (compilation: 41.50 s)"
    )
    assert vllm.read_vllm_facts(prefix + said, SMOLLM2).compile_s == 41.5


def test_selected_kernels_are_kept_in_its_own_words_and_once() -> None:
    prefix = "(Worker pid=7) INFO 11-15 02:18:36 [__init__.py:759] "
    said = [
        "Selected CPUInt8ScaledMMLinearKernel for CompressedTensorsW8A8Int8",
        "Using CPUWNA16LinearKernel for CompressedTensorsWNA16",
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
    ]
    facts = vllm.read_vllm_facts(
        "\n".join(prefix + line for line in [*said, said[0], "Using max model len 512"]), SMOLLM2
    )
    assert facts.kernels == tuple(said)


def test_a_log_without_any_known_line_gives_no_facts() -> None:
    facts = vllm.read_vllm_facts("hello\n", SMOLLM2)
    assert facts.engine_version is None
    assert facts.kv_cache_tokens is None
    assert facts.prefix_caching is None
    assert facts.kv_bytes_per_token is None


@pytest.mark.parametrize(
    ("cache", "model", "bytes_per_token"),
    [
        ("auto", SMOLLM2, 23_040),
        ("fp8", SMOLLM2, 11_520),
        ("nvfp4", SMOLLM2, None),  # it keeps scales besides
        ("auto", ModelFacts(), None),
    ],
)
def test_memory_as_vllm_says_it_on_a_gpu(
    cache: str, model: ModelFacts, bytes_per_token: int | None
) -> None:
    """In the words of its source; not yet run on a GPU."""
    log = (
        "Initializing a V1 LLM engine (v0.32.0) with config: model='m', dtype=torch.bfloat16, tensor_parallel_size=2, "
        f"pipeline_parallel_size=1, quantization=None, kv_cache_dtype={cache}, device_config=cuda\n"
        "Model loading took 7.5 GiB memory and 3.123456 seconds\n"
        "Available KV cache memory: 60.25 GiB\n"
        "GPU KV cache size: 1,000,000 tokens, Maximum concurrency for 8,192 tokens per request: 122.07x\n"
    )
    facts = vllm.read_vllm_facts(log, model)
    assert facts.weight_bytes_loaded == 15 * 2**30
    assert facts.kv_cache_bytes == round(120.5 * 2**30)
    assert facts.kv_cache_tokens == 1_000_000
    assert facts.kv_bytes_per_token == bytes_per_token


def failure_of(log: str, exit_code: int, tmp_path: Path) -> Failure:
    """A process that writes this log and ends like this, seen through the instance."""
    text = tmp_path / "said.log"
    text.write_text(log, encoding="utf-8")
    end = f"os.kill(os.getpid(), {-exit_code})" if exit_code < 0 else f"sys.exit({exit_code})"
    code = f"import os, sys; print(open({str(text)!r}).read(), flush=True); {end}"
    instance = ServerInstance(
        ServerPlan(
            command=[sys.executable, "-c", code],
            env={},
            endpoint=Endpoint(url="http://127.0.0.1:9", model="m", api_key="k"),
            log_file=tmp_path / "engine.log",
            read_facts=vllm.read_vllm_facts,
            unsupported=vllm.UNSUPPORTED,
            message_of=vllm.strip_vllm_log_prefix,
        )
    )
    try:
        with pytest.raises(InstanceFailed) as failed:
            instance.wait_ready(20)
    finally:
        instance.stop()
    assert instance.failure() == failed.value.failure
    return failed.value.failure


@pytest.mark.parametrize(
    ("log", "exit_code", "outcome", "cause"),
    [
        ("w8a16", 1, Outcome.UNSUPPORTED, "Quant type (uint8b128) not supported by CPUWNA16"),
        (
            "too-long",
            1,
            Outcome.UNSUPPORTED,
            "max_model_len (100000) is greater than the derived max_model_len",
        ),
        ("bad-argument", 2, Outcome.UNSUPPORTED, "unrecognized arguments: --no-such-thing"),
        ("eager", -9, Outcome.DISTURBED, "It was killed by signal 9 from outside"),
        ("eager", 1, Outcome.CRASHED, "It ended with exit code 1; its log gives no reason."),
        ("eager", -11, Outcome.CRASHED, "It ended with signal 11"),
    ],
)
def test_why_a_start_failed(
    log: str, exit_code: int, outcome: Outcome, cause: str, tmp_path: Path
) -> None:
    failure = failure_of(recorded(log), exit_code, tmp_path)
    assert failure.outcome is outcome
    assert cause in failure.cause
    assert len(failure.log_lines) > 0


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 42949672960 bytes. Error code 12 (Cannot allocate memory)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "ValueError: To serve at least one request with the model's max seq len (8192), (0.5 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (0.2 GiB).",
        "MemoryError",
    ],
)
def test_lack_of_memory_has_its_own_outcome(line: str, tmp_path: Path) -> None:
    prefix = "(EngineCore pid=7) ERROR 11-15 02:18:36 [core.py:1] "
    log = f"{prefix}Traceback\n{prefix}{line}\nRuntimeError: Engine core initialization failed."
    failure = failure_of(log, 1, tmp_path)
    assert failure.outcome is Outcome.OOM
    assert failure.cause == line[:400]


def test_the_first_exception_is_the_cause(tmp_path: Path) -> None:
    log = "(Worker pid=7) ERROR 11-15 02:18:36 [x.py:1] KeyError: 'rope'\nRuntimeError: Engine core failed."
    assert failure_of(log, 1, tmp_path).cause == "It ended with exit code 1: KeyError: 'rope'"
