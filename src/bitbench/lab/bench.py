"""The tools on the table: engines, their interpreters, and the load generator. Every instance is started from here."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bitbench.core.capability import Capability
from bitbench.core.cell import Contender, Plan
from bitbench.core.ports import Engine, Instance, Launch, LoadClient
from bitbench.lab.quality import QualityKit
from bitbench.planning.expand import launch_size


@dataclass(frozen=True)
class Bench:
    engines: Mapping[str, Engine]
    python_of: Callable[[str], Path]
    load: LoadClient
    folder: Path = Path()  # of the study file: what file names in it are relative to
    quality: Mapping[str, QualityKit] = field(default_factory=dict)  # by model
    capability: Capability | None = None  # the least among the GPUs here

    def engine_of(self, plan: Plan, contender: Contender) -> Engine:
        return self.engines[plan.study.engine(contender.engine).engine]

    def start(
        self,
        plan: Plan,
        contender: Contender,
        log_file: Path,
        *,
        occasion: str,
        size: tuple[int, int] | None = None,
        trace_folder: Path | None = None,
    ) -> Instance:
        """Start an instance without waiting. `occasion` is a part of its seed; `size` is its context and concurrency,
        by default what the study's own workloads need."""
        setup, engine = plan.study.engine(contender.engine), self.engine_of(plan, contender)
        context_tokens, concurrency = size or launch_size(plan, setup)
        return engine.start(
            Launch(
                setup=setup,
                variant=plan.variant(contender.variant),
                python=self.python_of(engine.environment) if engine.environment else None,
                log_file=log_file,
                context_tokens=context_tokens,
                concurrency=concurrency,
                seed=zlib.crc32(f"{plan.study.seed}/{occasion}/{contender.name}".encode()),
                top_tokens=plan.study.quality.top_tokens if plan.study.quality else 0,
                trace_folder=trace_folder,
                capability=self.capability,
            )
        )
