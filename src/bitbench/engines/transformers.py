"""transformers: `generate` with static batches, behind a small HTTP server in its environment."""

import re
from pathlib import Path

from bitbench.engines.options import (
    check_argument_names,
    refuse_long_context,
    refuse_text,
)
from bitbench.engines.processes import free_port, make_random_key
from bitbench.engines.server import EngineDefaults, ServerInstance, ServerPlan, parse_printed_facts
from bitbench.ports import Endpoint, Instance, Launch
from bitbench.records.trial import InstanceFacts
from bitbench.study.environment import Environment
from bitbench.study.quality import Scoring
from bitbench.study.study import EngineSetup
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import Workload
from bitbench.util.child_processes import make_isolated_command

_PINNED = Path(__file__).with_name("pinned")
_SERVER = Path(__file__).parent / "workers" / "transformers_server.py"
_ARGUMENTS = ("dtype", "attn_implementation", "threads", "device")
# Recipes that the server applies while it loads a model.
_QUANTIZE = ("torchao-int8wo", "torchao-int8da-int8w", "torchao-int4wo")
_UNSUPPORTED = re.compile(
    r"^(ValueError|NotImplementedError|ImportError|KeyError): .*"
    r"(not supported|[Uu]nsupported|not support|not implemented"
    r"|does not recognize this architecture|requires)"
    r"|^NotImplementedError"
)


class TransformersEngine(EngineDefaults):
    """`ports.Engine` over `workers/transformers_server.py`."""

    name = "transformers"
    own_environment: Environment | None = Environment(
        name="transformers",
        locks={"cpu": _PINNED / "transformers-cpu.txt", "cuda": _PINNED / "transformers-cuda.txt"},
        import_check="import torch, transformers, torchao.quantization",
        main_packages=("transformers", "torch", "triton"),
    )
    environment: str | None = "transformers"
    scoring: Scoring | None = Scoring.PROMPT_LOGPROBS
    start_s = 15.0
    overhead_bytes = 700 * 2**20
    can_profile = True

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:
        check_argument_names(setup.args, _ARGUMENTS, who="transformers")
        if variant.at_load and variant.at_load.quantize not in _QUANTIZE:
            return (
                f"transformers does not support {variant.at_load.quantize} here; "
                f"it supports {' and '.join(_QUANTIZE)}."
            )
        return refuse_text(self.name, workload) or refuse_long_context(variant, workload)

    def start(self, launch: Launch) -> Instance:
        port = free_port()
        key = make_random_key()
        return ServerInstance(
            ServerPlan(
                command=command_line(launch, port),
                env={
                    "HF_HUB_OFFLINE": "1",
                    "TOKENIZERS_PARALLELISM": "false",
                    **launch.setup.env,
                    "BITBENCH_API_KEY": key,
                },
                endpoint=Endpoint(
                    url=f"http://127.0.0.1:{port}",
                    model=launch.variant.name,
                    api_key=key,
                    extra_body={"ignore_eos": True},
                    batch_header="X-Batch-Size",
                ),
                log_file=launch.log_file,
                read_facts=lambda log: read_transformers_facts(log, launch.variant.facts),
                unsupported=_UNSUPPORTED,
            )
        )


def command_line(launch: Launch, port: int) -> list[str]:
    """Return the server's command. It contains no secret."""
    python = launch.required_python("transformers")
    model = launch.required_model("transformers")
    options = [f"--model={model}", f"--port={port}"]
    for name in _ARGUMENTS:
        if name in launch.setup.args:
            options.append(f"--{name.replace('_', '-')}={launch.setup.args[name]}")
    if launch.dtype is not None and "dtype" not in launch.setup.args:
        options.append(f"--dtype={launch.dtype}")
    if launch.variant.at_load:
        options.append(f"--quantize={launch.variant.at_load.quantize}")
    if launch.trace_folder is not None:
        options.append(f"--trace-folder={launch.trace_folder}")
    return make_isolated_command(python, _SERVER, *options)


def read_transformers_facts(log: str, model: ModelFacts) -> InstanceFacts:
    """Return the facts that the server printed into its log, with the model's bytes per token."""
    printed = parse_printed_facts(log.splitlines())
    value_bytes = printed.pop("kv_value_bytes", None)
    per_token = model.kv_bytes_per_token(value_bytes) if value_bytes else None
    facts = InstanceFacts.model_validate({**printed, "kv_bytes_per_token": per_token})
    kernels = tuple(choice.shown for choice in facts.kernel_choices)
    return facts.model_copy(update={"kernels": kernels})
