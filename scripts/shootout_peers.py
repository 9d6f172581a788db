"""The load generators that scripts/loadgen_shootout runs against the null engine: how each is called, and where it says
what it measured. A peer lives in a virtual environment of its own, named after its package."""

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROMPT_TOKENS = 16

# The console script `vllm` and its `cli.main` ask for a distribution of that name, which the CPU build has not.
VLLM_BENCH = (
    "from vllm.benchmarks.serve import add_cli_args, main\n"
    "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
    "parser = FlexibleArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)


@dataclass(frozen=True)
class Target:
    """One measurement: the server, and what is asked of it."""

    url: str
    key: str
    model: str
    tokenizer: Path
    streams: int
    requests: int
    tokens: int
    folder: Path  # an empty one for what the client writes


@dataclass(frozen=True)
class Figures:
    """What a client says, in seconds."""

    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float


@dataclass(frozen=True)
class Peer:
    name: str
    package: str
    command: Callable[[Path, Target], list[str]]  # with the interpreter of its environment
    read: Callable[[Path], Figures]  # from the target's folder


def version_of(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def _vllm(python: Path, target: Target) -> list[str]:
    return [
        str(python), "-c", VLLM_BENCH, "--backend", "openai", "--base-url", target.url,
        "--endpoint", "/v1/completions", "--model", target.model, "--tokenizer", str(target.tokenizer),
        "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(target.tokens),
        "--num-prompts", str(target.requests), "--max-concurrency", str(target.streams), "--ignore-eos",
        "--percentile-metrics", "ttft,tpot", "--metric-percentiles", "50,99", "--disable-tqdm",
        "--save-result", "--result-dir", str(target.folder), "--result-filename", "result.json",
    ]  # fmt: skip


def _read_vllm(folder: Path) -> Figures:
    told = _json(folder / "result.json")
    return _milliseconds(told["p50_ttft_ms"], told["p99_ttft_ms"], told["p50_tpot_ms"])


def _guidellm(python: Path, target: Target) -> list[str]:
    return [
        str(python.with_name("guidellm")), "run", "--disable-console",
        "--backend", f"kind=openai_http,target={target.url},api_key={target.key}",
        "--profile", f"kind=concurrent,streams={target.streams}",
        "--constraint", f"kind=max_requests,count={target.requests}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={target.tokens}",
        "--tokenizer", f"kind=hf_auto,model={target.tokenizer}",
        "--output", f"kind=json,path={target.folder / 'result.json'}",
    ]  # fmt: skip


def _read_guidellm(folder: Path) -> Figures:
    metrics = _json(folder / "result.json")["benchmarks"][0]["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]["percentiles"]
    # Its "time per output token" has the first one in it; its inter-token latency is what others call TPOT.
    return _milliseconds(
        ttft["p50"], ttft["p99"], metrics["inter_token_latency_ms"]["successful"]["median"]
    )


def _aiperf(python: Path, target: Target) -> list[str]:
    return [
        # Offline it takes a local folder for the name of a repository.
        "env", "--unset", "HF_HUB_OFFLINE", str(python.with_name("aiperf")), "profile", "--model", target.model,
        "--url", target.url, "--endpoint-type", "completions", "--streaming", "--concurrency", str(target.streams),
        "--request-count", str(target.requests), "--isl", str(PROMPT_TOKENS), "--osl", str(target.tokens),
        "--tokenizer", str(target.tokenizer), "--api-key", target.key, "--artifact-dir", str(target.folder),
        "--ui", "none", "--no-gpu-telemetry",
    ]  # fmt: skip


def _read_aiperf(folder: Path) -> Figures:
    told = _json(folder / "profile_export_aiperf.json")
    ttft = told["time_to_first_token"]
    return _milliseconds(ttft["p50"], ttft["p99"], told["inter_token_latency"]["p50"])


def _genai_bench(python: Path, target: Target) -> list[str]:
    return [
        str(python.with_name("genai-bench")), "benchmark", "--api-backend", "openai", "--api-base", target.url,
        "--api-key", target.key, "--api-model-name", target.model, "--model-tokenizer", str(target.tokenizer),
        "--task", "text-to-text", "--traffic-scenario", f"D({PROMPT_TOKENS},{target.tokens})",
        "--num-concurrency", str(target.streams), "--max-requests-per-run", str(target.requests),
        "--max-time-per-run", "2", "--warmup-ratio", "0", "--cooldown-ratio", "0",
        "--experiment-base-dir", str(target.folder), "--experiment-folder-name", "experiment",
        "--log-dir", str(target.folder),
    ]  # fmt: skip


def _read_genai_bench(folder: Path) -> Figures:
    (result,) = (folder / "experiment").glob("*_num_concurrency_*.json")
    stats = _json(result)["aggregated_metrics"]["stats"]
    return Figures(stats["ttft"]["p50"], stats["ttft"]["p99"], stats["tpot"]["p50"])


def _locust(python: Path, target: Target) -> list[str]:
    return [
        str(python.with_name("locust")), "--headless", "--only-summary", "-f", str(HERE / "shootout_locustfile.py"),
        "--host", target.url, "--users", str(target.streams), "--spawn-rate", str(target.streams),
        "--run-time", "60s",
    ]  # fmt: skip


def _read_own(folder: Path) -> Figures:
    told = _json(folder / "result.json")
    return Figures(told["ttft_p50_s"], told["ttft_p99_s"], told["tpot_p50_s"])


PEERS = {
    peer.package: peer
    for peer in (
        Peer("vLLM bench", "vllm", _vllm, _read_vllm),
        Peer("AIPerf", "aiperf", _aiperf, _read_aiperf),
        Peer("guidellm", "guidellm", _guidellm, _read_guidellm),
        Peer("genai-bench", "genai-bench", _genai_bench, _read_genai_bench),
        Peer("locust", "locust", _locust, _read_own),
    )
}


def environment(target: Target) -> Mapping[str, str]:
    """What the peers are told beside their arguments; the locust file reads all of it from here."""
    return {
        "OPENAI_API_KEY": target.key,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "SHOOTOUT_TARGET": json.dumps(
            {"key": target.key, "model": target.model, "requests": target.requests, "tokens": target.tokens,
             "prompt_tokens": PROMPT_TOKENS, "result": str(target.folder / "result.json")}
        ),
    }  # fmt: skip


def _milliseconds(ttft_p50: float, ttft_p99: float, tpot_p50: float) -> Figures:
    return Figures(ttft_p50 / 1e3, ttft_p99 / 1e3, tpot_p50 / 1e3)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
