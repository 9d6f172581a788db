"""SGLang: its own server, with the study's arguments, started by `workers/sglang_server.py`.

On a CPU it computes with torch. Its CUDA part is written after its source, 0.5.23: not yet run on a GPU.
"""

from collections.abc import Mapping
from pathlib import Path

from bitbench.engines import sglang_log
from bitbench.engines.limits import refuse_long_context, refuse_set_context
from bitbench.engines.options import argument_uses, command_words, spelled
from bitbench.engines.processes import free_port, random_key
from bitbench.engines.server import ServerInstance, ServerPlan
from bitbench.ports import NO_ARGUMENTS, Endpoint, Instance, Launch
from bitbench.study.environment import Environment
from bitbench.study.quality import Scoring
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.use import Use
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload
from bitbench.util.child_python import isolated
from bitbench.util.errors import EngineEnvironmentError, ModelError

_PINNED = Path(__file__).with_name("pinned")
_SERVER = Path(__file__).parent / "workers" / "sglang_server.py"
_MODEL_NAME = "model"
# Beyond the longest request: SGLang refuses an input that leaves fewer than 6 tokens of the context.
_CONTEXT_MARGIN = 16
_PAGE = 128  # tokens; the largest page of its attention backends, and each request may leave its last one almost empty
# Other names of the same arguments; SGLang knows both.
_ALIASES = {"tensor-parallel-size": "tp-size", "pipeline-parallel-size": "pp-size", "data-parallel-size": "dp-size"}
_PARALLEL = tuple(_ALIASES.values())
# Arguments that are a number, a switch or one of SGLang's own words. Whatever names a file, a class, a host or a
# program, or takes JSON in which one can be named, is not among them.
_HARMLESS = frozenset(
    (
        *_PARALLEL,
        *_ALIASES,
        *("attention-backend", "chunked-prefill-size", "context-length", "cuda-graph-backend-decode"),
        *("cuda-graph-backend-prefill", "cuda-graph-max-bs-decode", "decode-attention-backend", "device"),
        *("disable-cuda-graph", "disable-overlap-schedule", "disable-radix-cache", "dtype", "enable-cache-report"),
        *("enable-deterministic-inference", "enable-metrics", "enable-torch-compile", "fp4-gemm-backend"),
        *("fp8-gemm-backend", "kv-cache-dtype", "max-prefill-tokens", "max-running-requests", "max-total-tokens"),
        *("mem-fraction-static", "moe-runner-backend", "num-continuous-decode-steps", "page-size"),
        *("prefill-attention-backend", "quantization", "random-seed", "sampling-backend", "schedule-conservativeness"),
        *("schedule-policy", "skip-server-warmup", "stream-interval", "watchdog-timeout"),
    )
)

# How many requests run at once, in which order, and how much memory waits for them; what is logged and counted.
_SPEED_ONLY = frozenset(
    (
        *("enable-cache-report", "enable-metrics", "max-running-requests", "max-total-tokens", "mem-fraction-static"),
        *("schedule-conservativeness", "schedule-policy", "skip-server-warmup", "stream-interval", "watchdog-timeout"),
    )
)
# Plain `fp8`, as vLLM spells it, is refused.
_KV_CACHE_TYPES: Mapping[str, Mapping[str, Argument]] = {
    name: {"kv-cache-dtype": name} for name in ("auto", "bfloat16", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4")
}
# At `/metrics`, which needs no key. A counter appears with the first thing that it counts.
_METRICS = {
    "queue_s": "sglang:queue_time_seconds",
    "waiting": "sglang:num_queue_reqs",
    "preemptions": "sglang:num_retracted_requests_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
    "cached_tokens": "sglang:cached_tokens_total",
    "kv_use": "sglang:token_usage",
}


class SglangEngine:
    """`ports.Engine` over SGLang's HTTP server."""

    name = "sglang"
    own_environment: Environment | None = Environment(
        name="sglang",
        locks={"cpu": _PINNED / "sglang-cpu.txt", "cuda": _PINNED / "sglang-cuda.txt"},
        # What the worker does to make SGLang importable lasts as long as `worker`.
        import_check=f"import runpy; worker = runpy.run_path({str(_SERVER)!r}); import sglang.launch_server",
        main_packages=("sglang", "sglang-kernel", "sglang-kernel-cpu", "transformers", "torch", "triton"),
    )
    environment: str | None = "sglang"
    needs_model = True
    scoring: Scoring | None = Scoring.INPUT_LOGPROBS
    start_s = 60.0  # on two cores: three processes import torch and transformers
    overhead_bytes = 2 * 2**30  # these imports
    can_profile = False
    kv_cache_types = _KV_CACHE_TYPES
    speed_only = _SPEED_ONLY
    metrics: Mapping[str, str] = _METRICS
    quick_args = NO_ARGUMENTS

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        return refuse_set_context(setup, "context-length", workload) or refuse_long_context(variant, workload)

    def uses(self, setup: EngineSetup) -> tuple[Use, ...]:
        return argument_uses(setup, _HARMLESS)

    def can_freeze(self, setup: EngineSetup) -> bool:
        """Not where several devices work together: their processes watch each other's pulse."""
        chosen = _named_once(spelled(setup.args))
        return all(chosen.get(name, 1) == 1 for name in _PARALLEL)

    def start(self, launch: Launch) -> Instance:
        port, key = free_port(), random_key()
        return ServerInstance(
            ServerPlan(
                command=command_line(launch, port),
                env=environment_variables(launch, key),
                endpoint=Endpoint(
                    url=f"http://127.0.0.1:{port}",
                    model=_MODEL_NAME,
                    api_key=key,
                    extra_body={"ignore_eos": True},
                    metrics=self.metrics,
                ),
                log_file=launch.log_file,
                read_facts=lambda log: sglang_log.read_facts(log, launch.variant.facts),
                ready_path="/ready",  # its /health generates a token and takes a second
                unsupported=sglang_log.UNSUPPORTED,
                ends_itself=sglang_log.ENDS_ITSELF,
                message_of=sglang_log.message_of,
            )
        )


def command_line(launch: Launch, port: int) -> list[str]:
    """The server's command: our defaults, overridden by the study's arguments. Holds no secret."""
    if launch.python is None:
        raise EngineEnvironmentError("SGLang needs its environment; create it with: bitbench env create sglang")
    if launch.variant.path is None:
        raise ModelError("SGLang needs a model; add one under `models` in the study.")
    chosen = _named_once(spelled(launch.setup.args))
    defaults: dict[str, Argument] = {
        "dtype": launch.dtype or "bfloat16",
        "context-length": _context(launch),
        "max-running-requests": launch.concurrency,
        "disable-radix-cache": True,
        "enable-metrics": True,
        "random-seed": launch.seed,
        "skip-server-warmup": True,  # bitbench's own warm-up is measured
    }
    if "mem-fraction-static" not in chosen:
        defaults["max-total-tokens"] = _kv_tokens(launch)
    fixed: dict[str, Argument] = {
        "model-path": str(launch.variant.path),
        "served-model-name": _MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
    }
    options = {**defaults, **chosen, **fixed}
    # SGLang has switches to turn something on, and none to turn it off.
    given = {name: value for name, value in options.items() if value is not False}
    return isolated(launch.python, _SERVER, *command_words(given))


def environment_variables(launch: Launch, key: str) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GLOO_SOCKET_IFNAME": "lo",  # else its processes also listen where the machine's name leads
        **launch.setup.env,
        "BITBENCH_API_KEY": key,
    }


def _named_once(options: dict[str, Argument]) -> dict[str, Argument]:
    return {_ALIASES.get(name, name): value for name, value in options.items()}


def _context(launch: Launch) -> int:
    wanted = launch.context_tokens + _CONTEXT_MARGIN
    return min(wanted, launch.variant.facts.context_tokens or wanted)


def _kv_tokens(launch: Launch) -> int:
    """Without a number SGLang takes, and on a CPU really touches, most of the memory that is free."""
    return launch.cached_tokens(_PAGE, _CONTEXT_MARGIN, _context(launch))
