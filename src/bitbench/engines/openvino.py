"""The OpenVINO engine: GenAI's continuous batching on a CPU, behind bitbench's own HTTP server."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from bitbench.engines.options import (
    check_arguments,
    normalize_arguments,
    refuse_long_context,
    refuse_text,
)
from bitbench.engines.processes import free_port, make_random_key
from bitbench.engines.server import EngineDefaults, ServerInstance, ServerPlan, parse_printed_facts
from bitbench.ports import Endpoint, Instance, Launch
from bitbench.records.trial import InstanceFacts
from bitbench.study.base import Spec
from bitbench.study.environment import Environment
from bitbench.study.quality import Scoring
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload
from bitbench.util.child_processes import make_isolated_command

_PINNED = Path(__file__).with_name("pinned")
_SERVER = Path(__file__).parent / "workers" / "openvino_server.py"
_FORM = "openvino"
# The server prints OpenVINO's exceptions on one line each.
UNSUPPORTED = re.compile(
    r"^RuntimeError: .*(not supported|[Uu]nsupported|not implemented|NOT_IMPLEMENTED"
    r"|does(n't| not) support)"
)

CachePrecision = Literal["u8", "u4", "f16", "bf16", "f32"]


class OpenvinoArguments(Spec):
    """`args:` of an OpenVINO engine in a study file. Unset options keep OpenVINO's defaults."""

    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        default=None, description="what it computes in"
    )
    threads: int | None = Field(default=None, ge=1, description="threads that compute")
    kv_cache_precision: CachePrecision | None = Field(
        default=None, description="what the KV cache holds"
    )


_KV_CACHE_TYPES: Mapping[str, Mapping[str, Argument]] = {
    "auto": {},
    **{name: {"kv-cache-precision": name} for name in ("u8", "u4", "f16", "bf16", "f32")},
}


class OpenvinoEngine(EngineDefaults):
    """A `ports.Engine` that runs `workers/openvino_server.py`."""

    name = "openvino"
    own_environment: Environment | None = Environment(
        name="openvino",
        locks={"cpu": _PINNED / "openvino-cpu.txt"},
        import_check="import openvino_genai, tokenizers, optimum.intel",
        main_packages=(
            "openvino-genai",
            "openvino",
            "optimum-intel",
            "nncf",
            "transformers",
            "torch",
        ),
    )
    environment: str | None = "openvino"
    scoring: Scoring | None = Scoring.PROMPT_LOGPROBS
    scoring_reads_cache = False  # the runtime computes a text in one pass
    start_s = 10.0
    overhead_bytes = 300 * 2**20
    kv_cache_types = _KV_CACHE_TYPES

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        check_arguments(
            _collect_arguments(setup), OpenvinoArguments, who="openvino", whose="openvino's"
        )
        if variant.form is not None and variant.form.partition("/")[0] != _FORM:
            return (
                "OpenVINO runs only models in its own format; "
                "add the recipe openvino-bf16 or another openvino-… one."
            )
        return refuse_text(self.name, workload) or refuse_long_context(variant, workload)

    def start(self, launch: Launch) -> Instance:
        port = free_port()
        key = make_random_key()
        return ServerInstance(
            ServerPlan(
                command=command_line(launch, port),
                env={**launch.setup.env, "BITBENCH_API_KEY": key},
                endpoint=Endpoint(
                    url=f"http://127.0.0.1:{port}",
                    model=launch.variant.name,
                    api_key=key,
                    extra_body={"ignore_eos": True},
                ),
                log_file=launch.log_file,
                read_facts=read_openvino_facts,
                unsupported=UNSUPPORTED,
            )
        )


def command_line(launch: Launch, port: int) -> list[str]:
    """Return the server's command. It contains no secret."""
    python = launch.required_python("OpenVINO")
    model = launch.required_model("OpenVINO")
    chosen = _collect_arguments(launch.setup)
    if launch.dtype is not None:
        chosen.setdefault("dtype", launch.dtype)
    options = [f"--model={model}", f"--port={port}"]
    options += [f"--context-tokens={launch.context_tokens}", f"--concurrency={launch.concurrency}"]
    for name, value in sorted(chosen.items()):
        options.append(f"--{name.replace('_', '-')}={value}")
    return make_isolated_command(python, _SERVER, *options)


def _collect_arguments(setup: EngineSetup) -> dict[str, Argument]:
    """Return the arguments under the names of `OpenvinoArguments`, however they are spelled."""
    return {
        name.replace("-", "_"): value for name, value in normalize_arguments(setup.args).items()
    }


def read_openvino_facts(log: str) -> InstanceFacts:
    """Return the facts that the server has printed to its log."""
    return InstanceFacts.model_validate(parse_printed_facts(log.splitlines()))
