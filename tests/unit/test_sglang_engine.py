"""How SGLang is started, and what is read from logs that SGLang 0.5.23 really wrote on a CPU."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bitbench.engines import sglang
from bitbench.engines.server import ServerInstance, ServerPlan
from bitbench.engines.sglang import SglangEngine, command_line, make_sglang_variables
from bitbench.ports import Endpoint, InstanceFailed, Launch, Load
from bitbench.records.trial import Failure, KernelPath, Outcome
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS

DATA = Path(__file__).parent / "data"
SMOLLM2 = ModelFacts(context_tokens=8192, layers=30, kv_heads=3, head_size=64)


def recorded(name: str) -> str:
    return (DATA / f"sglang-0.5.23-{name}.log").read_text(encoding="utf-8")


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
        setup=EngineSetup(name="sglang", engine="sglang", args=args or {}, env=env or {}),
        variant=variant(),
        python=Path("/env/bin/python"),
        log_file=Path("sglang.log"),
        loads=(Load(concurrency, context_tokens),),
        seed=7,
    )


def options(command: list[str]) -> str:
    assert command[:2] == ["/env/bin/python", "-I"]
    assert command[2].endswith("workers/sglang_server.py")
    return " ".join(command[3:])


def test_the_default_command_line() -> None:
    assert options(command_line(launch(), 8123)) == (
        "--dtype bfloat16 --context-length 208 --max-running-requests 8 --disable-radix-cache --enable-metrics "
        "--random-seed 7 --skip-server-warmup --max-total-tokens 2048 --model-path /models/m --served-model-name model "
        "--host 127.0.0.1 --port 8123"
    )


def test_a_processor_without_bf16_gets_float32_unless_the_study_names_a_type() -> None:
    assert options(command_line(replace(launch(), dtype="float32"), 1)).startswith(
        "--dtype float32 "
    )
    named = launch({"dtype": "bfloat16"})
    assert options(command_line(replace(named, dtype="float32"), 1)).startswith("--dtype bfloat16 ")


@pytest.mark.parametrize(
    ("args", "expected", "unexpected"),
    [
        ({"disable-radix-cache": False}, "--random-seed", "radix-cache"),  # SGLang has no --no-…
        ({"enable-metrics": False}, "--random-seed", "metrics"),
        ({"no-disable-radix-cache": True}, "--random-seed", "radix-cache"),
        ({"context_length": 4096}, "--context-length 4096", "208"),
        ({"max-total-tokens": 99}, "--max-total-tokens 99", "2048"),
        ({"mem-fraction-static": 0.3}, "--mem-fraction-static 0.3", "--max-total-tokens"),
        ({"tensor-parallel-size": 2}, "--tp-size 2", "tensor-parallel-size"),
        ({"host": "0.0.0.0"}, "--host 127.0.0.1", "0.0.0.0"),
    ],
)
def test_arguments_of_the_study_override_ours_but_not_the_loopback(
    args: dict[str, Argument], expected: str, unexpected: str
) -> None:
    line = options(command_line(launch(args), 8123))
    assert expected in line
    assert unexpected not in line


def test_the_cache_has_room_for_every_request_at_its_full_length() -> None:
    # 64 requests × 64 pages of 128 tokens
    assert "--max-total-tokens 524288" in options(
        command_line(launch(concurrency=64, context_tokens=8192), 1)
    )


def test_the_key_is_in_the_environment_alone_and_cannot_be_overridden() -> None:
    wanted = launch(env={"BITBENCH_API_KEY": "theirs", "OMP_NUM_THREADS": "2"})
    env = make_sglang_variables(wanted, "secret")
    assert env["BITBENCH_API_KEY"] == "secret"
    assert env["OMP_NUM_THREADS"] == "2"
    assert "secret" not in options(command_line(wanted, 1))


def test_workloads_that_do_not_fit_are_refused() -> None:
    engine = SglangEngine()
    long, short = BUILT_IN_WORKLOADS["long_context"], BUILT_IN_WORKLOADS["interactive"]
    setup = EngineSetup(name="sglang", engine="sglang")
    assert engine.refuse(setup, variant(), short) is None
    assert "supports 8,192" in (engine.refuse(setup, variant(), long) or "")
    narrow = EngineSetup(name="narrow", engine="sglang", args={"context_length": 128})
    assert "context-length of narrow is 128" in (engine.refuse(narrow, variant(), short) or "")


@pytest.mark.parametrize("name", ["tp-size", "tensor_parallel_size", "dp-size"])
def test_what_runs_on_several_devices_is_not_frozen(name: str) -> None:
    engine = SglangEngine()
    assert engine.can_freeze(EngineSetup(name="s", engine="sglang"))
    assert not engine.can_freeze(EngineSetup(name="s", engine="sglang", args={name: 2}))


def test_facts_of_a_start_on_a_cpu() -> None:
    facts = sglang.read_sglang_facts(recorded("bf16"), SMOLLM2)
    assert facts.engine_version == "0.5.23"
    assert facts.kv_cache_tokens == 3072
    assert facts.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert facts.kv_cache_bytes == 3072 * 23_040
    assert (
        facts.weight_bytes_loaded is None
    )  # a difference of what was free, in which others have a part
    assert facts.weight_load_s == 2.12
    assert facts.prefix_caching is False
    assert facts.kernels == (
        "attention: torch_native",
        "linear: dense bfloat16 (torch, not SGLang's kernels)",
    )
    assert facts.kernel_choices[1].path is KernelPath.DENSE
    assert "SGLang computes with torch here" in facts.notes[0]
    assert "SGLang computes on CPU 0,1" in facts.notes[1]


def on_a_gpu(**arguments: object) -> str:
    """In the words of its source; not yet run on a GPU."""
    chosen = {
        "device": "cuda",
        "attention_backend": "fa3",
        "dtype": "auto",
        "quantization": None,
        "tp_size": 2,
    }
    given = {**chosen, "pp_size": 1, "disable_radix_cache": False, **arguments}
    at = "[2026-11-16 01:02:03 TP0] "
    return (
        f"bitbench-facts: {json.dumps({'engine_version': '0.5.23', 'own_kernels': True})}\n"
        f"[2026-11-16 01:02:03] server_args={given}\n"
        f"{at}Load weight end. elapsed=9.50 s, type=Qwen3ForCausalLM, quant=compressed-tensors, bits=8, "
        "avail mem=70.10 GB, mem usage=4.25 GB.\n"
        f"{at}KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 90000, K size: 1.25 GB, V size: 1.25 GB\n"
        f"{at}Capture decode graph begin. backend=full\n"
        f"{at}Capture decode graph end. bs=[1, 2], elapsed=4.50 s, mem usage=0.20 GB, avail mem=60.00 GB.\n"
        f"{at}max_total_num_tokens=90000, chunked_prefill_size=8192, context_len=4096, available_gpu_mem=60.00 GB\n"
    )


def test_memory_and_kernels_as_it_says_them_on_a_gpu() -> None:
    facts = sglang.read_sglang_facts(on_a_gpu(), ModelFacts())
    assert facts.weight_bytes_loaded == round(4.25 * 2**30) * 2  # of both ranks
    assert facts.kv_cache_bytes == round(2.5 * 2**30) * 2
    assert facts.kv_cache_tokens == 90_000
    assert facts.compile_s == 4.5
    assert facts.prefix_caching is True
    assert facts.kernels == ("attention: fa3", "linear: compressed-tensors")
    assert facts.notes == ()
    assert sglang.read_sglang_facts(on_a_gpu(), SMOLLM2).kv_bytes_per_token == 11_520


def test_a_log_without_any_known_line_gives_no_facts() -> None:
    for log in ("hello\n", "server_args={'a': <object>}\n", "server_args=[1]\n"):
        facts = sglang.read_sglang_facts(log, SMOLLM2)
        assert facts.engine_version is None
        assert facts.kv_cache_tokens is None
        assert facts.kv_cache_bytes is None
        assert facts.prefix_caching is None
        assert facts.kernels == ()


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
            read_facts=lambda log: sglang.read_sglang_facts(log, SMOLLM2),
            unsupported=sglang.UNSUPPORTED,
            ends_itself=sglang.ENDS_ITSELF,
            message_of=sglang.strip_sglang_log_prefix,
        )
    )
    try:
        with pytest.raises(InstanceFailed) as failed:
            instance.wait_ready(20)
    finally:
        instance.stop()
    return failed.value.failure


CRASHED_IN_A_CHILD = (
    "[2026-11-16 01:02:03] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "scheduler.py", line 1, in run\n'
    "IndexError: index out of range in self\n\n"
    "[2026-11-16 01:02:03] Received sigquit from a child process. It usually means the child failed.\n"
)
ENDED_WITHOUT_A_WORD = (
    "[2026-11-16 01:02:03] Subprocess scheduler_0 (pid=7) crashed with exit code {}. Triggering\n"
)


@pytest.mark.parametrize(
    ("log", "outcome", "cause"),
    [
        (
            CRASHED_IN_A_CHILD,
            Outcome.CRASHED,
            "It ended with signal 9: IndexError: index out of range in self",
        ),
        (
            ENDED_WITHOUT_A_WORD.format(-11),
            Outcome.CRASHED,
            "It ended with signal 9: Subprocess scheduler_0 (pid=7)",
        ),
        (
            ENDED_WITHOUT_A_WORD.format(-9),
            Outcome.DISTURBED,
            "It was killed by signal 9 from outside",
        ),
    ],
)
def test_what_it_kills_itself_for_is_neither_lack_of_memory_nor_somebody_else(
    log: str, outcome: Outcome, cause: str, tmp_path: Path
) -> None:
    failure = failure_of(log, -9, tmp_path)
    assert failure.outcome is outcome
    assert cause in failure.cause


@pytest.mark.parametrize(
    ("log", "outcome"),
    [(CRASHED_IN_A_CHILD, Outcome.CRASHED), (ENDED_WITHOUT_A_WORD.format(-9), Outcome.OOM)],
)
def test_a_kill_by_the_kernel_elsewhere_does_not_explain_an_exception(
    log: str, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = iter(range(100))
    monkeypatch.setattr("bitbench.engines.server.count_oom_kills", lambda: next(counted))
    assert failure_of(log, -9, tmp_path).outcome is outcome


def test_a_quantized_checkpoint_is_unsupported_in_its_own_words(tmp_path: Path) -> None:
    failure = failure_of(recorded("w8a8"), -9, tmp_path)
    assert failure.outcome is Outcome.UNSUPPORTED
    assert failure.cause == "AssertionError: Torch not compiled with CUDA enabled"


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        (
            "AssertionError: W8A8Int8LinearMethod on CPU only works on AMX or Arm64",
            Outcome.UNSUPPORTED,
        ),
        (
            "AssertionError: Fp8LinearMethod on CPU requires that CPU has AMX support",
            Outcome.UNSUPPORTED,
        ),
        ("sglang serve: error: unrecognized arguments: --no-such-thing", Outcome.UNSUPPORTED),
        (
            "ValueError: User context_length (9) is greater than the derived context_length",
            Outcome.UNSUPPORTED,
        ),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            Outcome.OOM,
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", Outcome.OOM),
        ("RuntimeError: Prefill out of memory. Try to lower your batch size.", Outcome.OOM),
    ],
)
def test_how_it_fails(line: str, outcome: Outcome, tmp_path: Path) -> None:
    failure = failure_of(
        f"[2026-11-16 01:02:03] Scheduler hit an exception: Traceback\n{line}\n", -9, tmp_path
    )
    assert failure.outcome is outcome
    assert failure.cause == line
