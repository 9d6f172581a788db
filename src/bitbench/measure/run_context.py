"""All that a run of a study has at hand: its plan, engines, the load client, who listens. It starts every instance."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bitbench.engines.starts import Starts
from bitbench.measure.expand import as_arguments, loads_of
from bitbench.measure.quality import QualityKit
from bitbench.ports import Engine, Instance, Launch, Load, LoadClient, Observer, Vocabulary
from bitbench.study.capability import Capability
from bitbench.study.plan import Config, Plan
from bitbench.study.variant import NO_MODEL

# For an engine that does not look at its tokens; any model has at least so many.
DEFAULT_VOCABULARY = 32_000


@dataclass(frozen=True)
class RunContext:
    plan: Plan
    engines: Mapping[str, Engine]
    python_of: Callable[[str], Path]
    load: LoadClient
    observer: Observer
    folder: Path = Path()  # of the study file: what file names in it are relative to
    quality: Mapping[str, QualityKit] = field(default_factory=dict)  # by model
    capability: Capability | None = None  # the least among the GPUs here
    words_of: Callable[[str], tuple[int, ...]] = lambda _: ()  # token ids of a model's ordinary words
    starts: Starts | None = None  # None: every instance is spawned
    tunes_kernels: bool = False  # first requests may compile or tune something, as on a GPU: *not yet run on a GPU*

    def engine_of(self, config: Config) -> Engine:
        return self.engines[self.plan.study.engine(config.engine).engine]

    def vocabulary_of(self, config: Config) -> Vocabulary:
        """The model's, so that all of its variants get the same prompts."""
        variant = self.plan.variant(config.variant)
        if variant.model == NO_MODEL:
            return Vocabulary(DEFAULT_VOCABULARY)
        facts = variant.facts
        return Vocabulary(
            facts.vocabulary_size or DEFAULT_VOCABULARY, facts.special_token_ids, self.words_of(variant.model)
        )

    def start(
        self,
        config: Config,
        log_file: Path,
        *,
        occasion: str,
        loads: tuple[Load, ...] | None = None,
        trace_folder: Path | None = None,
    ) -> Instance:
        """Start an instance without waiting. `occasion` is a part of its seed; `loads` are by default those of the
        study."""
        plan, engine = self.plan, self.engine_of(config)
        setup = plan.study.engine(config.engine)
        environment = setup.environment(engine.environment)
        return engine.start(
            Launch(
                setup=as_arguments(setup, engine),
                variant=plan.variant(config.variant),
                python=self.python_of(environment) if environment else None,
                log_file=log_file,
                loads=loads or loads_of(plan, setup, engine.scoring),
                seed=zlib.crc32(f"{plan.study.seed}/{occasion}/{config.name}".encode()),
                dtype=plan.chosen_dtypes.get(config),
                top_tokens=plan.study.quality.top_tokens if plan.study.quality else 0,
                trace_folder=trace_folder,
                capability=self.capability,
                starts=self.starts.of(config.name) if self.starts else None,
            )
        )
