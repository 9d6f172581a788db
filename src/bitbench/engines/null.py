"""The null engine: tokens at known times, without a model or any computing.

It is the baseline for our own overhead, and the fake engine of the fast tests. See
`workers/null_server.py` for the schedule.
"""

import json
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from bitbench.engines.options import check_arguments
from bitbench.engines.processes import free_port, make_random_key
from bitbench.engines.server import EngineDefaults, ServerInstance, ServerPlan
from bitbench.engines.workers.null_server import DRAFT_COUNTERS, KEY_VARIABLE, MODEL
from bitbench.ports import Endpoint, Instance, Launch
from bitbench.records.trial import InstanceFacts
from bitbench.study.base import Fraction, Seconds, Spec
from bitbench.study.study import EngineSetup
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload
from bitbench.util.child_processes import make_bitbench_command
from bitbench.util.units import show_seconds
from bitbench.util.version import __version__

_MODULE = "bitbench.engines.workers.null_server"


def _parse_numbers(value: object) -> object:
    """Return a list of numbers, also for `7` and `"7,20"`. Leave other values to the validation."""
    if isinstance(value, str):
        return [part for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int) else value


class NullArguments(Spec):
    """`args:` of a null engine in a study file."""

    ttft: Seconds = Field(default=0.020, ge=0, description="from the request to the first token")
    tpot: Seconds = Field(default=0.002, ge=0, description="from a token to the next")
    vary: Fraction = Field(
        default=0.0, ge=0, description="relative standard deviation from request to request"
    )
    vary_instance: Fraction = Field(
        default=0.0, ge=0, description="relative standard deviation between starts"
    )
    slow_requests: Annotated[tuple[int, ...], BeforeValidator(_parse_numbers)] = Field(
        default=(), description="requests of a start that are slow, counted from 1 with the warm-up"
    )
    slow_factor: float = Field(default=4.0, gt=0, description="how many times slower they are")
    per_stream: Fraction = Field(
        default=0.0, ge=0, description="how much each further stream in flight slows a token"
    )
    capacity: int | None = Field(
        default=None,
        ge=1,
        description="requests served at once; the others queue, first come first served",
    )
    stall_at: Seconds | None = Field(
        default=None, ge=0, description="all streams pause once, this long after the first request"
    )
    stall_for: Seconds = Field(
        default=2.0,
        ge=0,
        description="length of that pause; what was due meanwhile is sent at its end",
    )
    draft_tokens: int = Field(
        default=0, ge=0, description="tokens of each simulated draft; 0: no speculation"
    )
    draft_accepted: float = Field(default=1.0, ge=0, description="of them accepted, on average")
    draft_step: float = Field(
        default=1.5, gt=0, description="time of a step with a draft, in steps without"
    )
    fail: Literal["exit", "never_ready", "memory", "hang", "short", "disconnect"] | None = Field(
        default=None,
        description=(
            "the failure to simulate: at the start (the first three), or within each stream"
        ),
    )
    children: int = Field(
        default=0,
        ge=0,
        description="processes that it starts besides, in sessions of their own, as engines do",
    )
    memory_mb: int = Field(
        default=1_000, gt=0, description="memory that `fail: memory` fills before it is ready"
    )


class NullEngine(EngineDefaults):
    """A `ports.Engine` that runs in bitbench's own interpreter."""

    name = "null"
    needs_model = False
    start_s = 0.5
    overhead_bytes = 60 * 2**20

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:  # noqa: ARG002
        check_arguments(setup.args, NullArguments, who="the null engine", whose="the null engine's")
        return None

    def start(self, launch: Launch) -> Instance:
        arguments = NullArguments.model_validate(launch.setup.args)
        port = free_port()
        key = make_random_key()
        behaviour = json.dumps({**arguments.model_dump(), "seed": launch.seed})
        ttft = show_seconds(arguments.ttft)
        tpot = show_seconds(arguments.tpot)
        facts = InstanceFacts(
            engine_version=__version__,
            kernels=(f"schedule: {ttft}, then a token each {tpot}",),
            prefix_caching=False,
        )
        counters = DRAFT_COUNTERS if arguments.draft_tokens else {}
        plan = ServerPlan(
            command=make_bitbench_command(_MODULE, str(port), behaviour),
            env={**launch.setup.env, KEY_VARIABLE: key},
            endpoint=Endpoint(
                f"http://127.0.0.1:{port}",
                MODEL,
                key,
                metrics=counters,
            ),
            log_file=launch.log_file,
            read_facts=lambda _: facts,
        )
        return ServerInstance(plan)
