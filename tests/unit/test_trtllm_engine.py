"""How TensorRT-LLM would be started, and what is read from its words; those of its source, since it was never run."""

import sys
from pathlib import Path

import pytest
import yaml

from bitbench.core.asked.study import Argument, EngineSetup
from bitbench.core.asked.workload import BUILT_IN_WORKLOADS
from bitbench.core.ports import InstanceFailed, Launch, Load
from bitbench.core.recorded.trial import Outcome
from bitbench.core.recorded.variant import ModelFacts, Variant
from bitbench.engines.trtllm import TrtllmEngine, command_line, message_of, read_facts, settings_of
from bitbench.ground.errors import EngineEnvironmentError, StudyFileError

RECORDED = (Path(__file__).parent / "data" / "trtllm-1.2-written.log").read_text(encoding="utf-8")
QWEN = Variant(name="m/bf16", model="m", recipe="bf16", path=Path("/models/qwen3"), facts=ModelFacts())


def setup(args: dict[str, Argument] | None = None) -> EngineSetup:
    return EngineSetup(name="trtllm", engine="trtllm", args=args or {})


def launch(args: dict[str, Argument] | None = None, log_file: Path = Path("trtllm.log")) -> Launch:
    return Launch(setup=setup(args), variant=QWEN, python=None, log_file=log_file, loads=(Load(8, 192),), seed=0)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trtllm-serve on the PATH that says what it was told and ends as one without a GPU does."""
    program = tmp_path / "bin" / "trtllm-serve"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:], flush=True)\n"
        'sys.exit("ValueError: No GPU devices found on the node")\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return program


def test_options_are_spelled_as_it_spells_them(server: Path) -> None:
    args: dict[str, Argument] = {"tp_size": 2, "enable-chunked-prefill": True, "trust-remote-code": False}
    args |= {"kv-cache-dtype": "fp8", "host": "0.0.0.0"}
    words = command_line(launch(args), 8123, Path("/x/settings.yaml"))
    assert words[:2] == [str(server), "/models/qwen3"]
    assert " ".join(words[2:]) == (
        "--backend pytorch --max_batch_size 8 --max_seq_len 208 --tp_size 2 --enable_chunked_prefill "
        "--host 127.0.0.1 --port 8123 --extra_llm_api_options /x/settings.yaml"
    )


def test_its_prefix_cache_is_off_unless_it_is_asked_for() -> None:
    assert settings_of(launch()) == {
        "kv_cache_config": {"enable_block_reuse": False},
        "cuda_graph_config": {"max_batch_size": 8},
    }
    args: dict[str, Argument] = {"enable_block_reuse": True, "free-gpu-memory-fraction": 0.5, "kv_cache_dtype": "fp8"}
    cache = settings_of(launch(args))["kv_cache_config"]
    assert cache == {"enable_block_reuse": True, "free_gpu_memory_fraction": 0.5, "dtype": "fp8"}


def test_a_start_writes_its_settings_beside_the_log_and_says_why_it_failed(server: Path, tmp_path: Path) -> None:
    instance = TrtllmEngine().start(launch(log_file=tmp_path / "i1.log"))
    try:
        with pytest.raises(InstanceFailed) as failed:
            instance.wait_ready(20)
    finally:
        instance.stop()
    assert failed.value.failure.outcome is Outcome.UNSUPPORTED
    assert failed.value.failure.cause == "ValueError: No GPU devices found on the node"
    assert yaml.safe_load((tmp_path / "i1.trtllm.yaml").read_text())["kv_cache_config"]["enable_block_reuse"] is False
    assert str(tmp_path / "i1.trtllm.yaml") in (tmp_path / "i1.log").read_text()


def test_where_it_is_not_on_the_path_one_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = TrtllmEngine()
    assert engine.environment == "trtllm"  # so that neither `doctor` nor `quick` takes it for installed
    assert engine.own_environment is not None
    for ask in (
        lambda: command_line(launch(), 1, Path("x")),
        lambda: engine.own_environment.lock_for("cuda") if engine.own_environment else None,
    ):
        with pytest.raises(EngineEnvironmentError, match="put trtllm-serve on the PATH"):
            ask()


def test_one_on_the_path_needs_no_environment(server: Path) -> None:
    assert TrtllmEngine().environment is None


def test_the_file_of_settings_is_ours() -> None:
    for name in ("config", "extra_llm_api_options", "--config"):
        with pytest.raises(StudyFileError, match="a file that bitbench writes itself"):
            TrtllmEngine().refuse(setup({name: "x.yaml"}), QWEN, BUILT_IN_WORKLOADS["interactive"])


@pytest.mark.parametrize(
    "line",
    [
        "[11/16/2026-01:02:03] [TRT-LLM] [I] said",
        "[11/16/2026-01:02:03] [TRT-LLM] [RANK 0] [I] said",
        "[TensorRT-LLM][INFO] said",
        "said",
    ],
)
def test_a_message_is_without_time_level_and_rank(line: str) -> None:
    assert message_of(line) == "said"


def test_facts_are_those_of_the_last_allocation() -> None:
    facts = read_facts(RECORDED)
    assert facts.engine_version == "1.2.1"
    assert facts.weight_bytes_loaded == round(7.52 * 2**30)
    assert (facts.kv_cache_bytes, facts.kv_cache_tokens) == (round(58.25 * 2**30), 424_192)
    assert facts.prefix_caching is False
    assert read_facts("hello\n").kv_cache_tokens is None
