"""The quality inputs of each model, and the measurement of quality in a ready instance."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bitbench.ports import Endpoint, Engine
from bitbench.quality.logprobs import AskingFailed
from bitbench.quality.material import make_material, read_corpus
from bitbench.quality.measure import (
    QualityJob,
    measure_quality,
    measure_quality_again,
)
from bitbench.quality.tasks import ENVIRONMENT, TaskTools
from bitbench.records.folder import Writer
from bitbench.records.quality import Condition, QualityMaterial, QualityRecord
from bitbench.records.trial import Failure, Outcome
from bitbench.study.plan import Config, Plan
from bitbench.study.quality import Quality
from bitbench.study.variant import Variant

if TYPE_CHECKING:
    import pyarrow as pa

# It has transformers, for the tokenizer of a model whose engine has no environment.
TOKENIZER_ENVIRONMENT = "transformers"


@dataclass(frozen=True)
class QualityDraft:
    """A quality measurement before the store has given it an id, with its rows."""

    record: QualityRecord
    scores: "pa.Table | None" = None


@dataclass(frozen=True)
class QualityKit:
    """The quality inputs for all variants of a model, and the tools that use them."""

    material: QualityMaterial
    tools: TaskTools | None


@dataclass(frozen=True)
class KitMaker:
    """A maker of quality inputs, which knows where engines and models are on this machine."""

    engines: Mapping[str, Engine]
    python_of: Callable[[str], Path]
    model_folder: Callable[[str], Path]
    study_folder: Path

    def kits(
        self, plan: Plan, writer: Writer, note: Callable[[str], None]
    ) -> dict[str, QualityKit]:
        """Return the quality inputs by model, and write missing ones to the study's folder.

        The result is empty if the study measures no quality.
        """
        kits: dict[str, QualityKit] = {}
        for config in plan.quality:
            variant = plan.variant(config.variant)
            if variant.model not in kits:
                kits[variant.model] = self._load_kit(variant, config, plan, writer, note)
        return kits

    def _load_kit(
        self,
        variant: Variant,
        config: Config,
        plan: Plan,
        writer: Writer,
        note: Callable[[str], None],
    ) -> QualityKit:
        quality = plan.study.quality
        tokenizer = self.model_folder(variant.model)
        assert quality is not None  # a plan has quality only if its study has
        material = writer.folder.material(variant.model_name)
        if material is None:
            note(f"cutting the corpus into windows for {variant.model_name}")
            setup = plan.study.engine(config.engine)
            environment = setup.environment(self.engines[setup.engine].environment)
            python = self.python_of(environment or TOKENIZER_ENVIRONMENT)
            corpus = read_corpus(quality.corpus, self.study_folder)
            material = make_material(corpus, quality, tokenizer, python)
            writer.write_material(variant.model_name, material)
        return self.make_kit(material, variant.model, quality)

    def make_kit(self, material: QualityMaterial, model: str, quality: Quality) -> QualityKit:
        """Return the inputs with the tools for lm-eval tasks, if the study has such tasks."""
        if not quality.lm_eval_tasks:
            return QualityKit(material, None)
        tools = TaskTools(
            self.python_of(ENVIRONMENT),
            self.study_folder,
            self.model_folder(model),
            quality.context_tokens,
        )
        return QualityKit(material, tools)


def fill_quality_draft(
    endpoint: Endpoint,
    *,
    plan: Plan,
    engine: Engine,
    kit: QualityKit,
    draft: QualityRecord,
    on_step: Callable[[str], None],
) -> QualityDraft:
    """Measure quality in a ready instance as the draft says, and return the filled draft."""
    started = time.monotonic()
    quality = plan.study.quality
    scoring = engine.scoring
    assert quality is not None
    assert scoring is not None  # other engines are not in the plan
    job = QualityJob(endpoint, scoring, quality, kit.material, kit.tools, plan.study.limits.request)
    results: dict[str, object] = {}
    try:
        if draft.condition is Condition.RESTARTED:
            on_step("the noise between starts")
            scores = measure_quality_again(job)
        else:
            scores, results = measure_quality(job, on_step)
    except AskingFailed as failed:
        duration_s = time.monotonic() - started
        return QualityDraft(make_failed_quality_record(draft, failed.failure, duration_s))
    update = {
        "duration_s": time.monotonic() - started,
        "corpus": kit.material.facts,
        "top_tokens": quality.top_tokens,
        "tokens": scores.num_rows,
        **results,
    }
    return QualityDraft(draft.model_copy(update=update), scores)


def make_quality_record(
    config: Config, instance_id: str, started_at: str, condition: Condition = Condition.ALONE
) -> QualityRecord:
    """Return a record without scores."""
    return QualityRecord(
        id="",
        config=config,
        condition=condition,
        instance_id=instance_id,
        started_at=started_at,
        duration_s=0.0,
        outcome=Outcome.OK,
    )


def make_failed_quality_record(
    draft: QualityRecord, failure: Failure, duration_s: float
) -> QualityRecord:
    """Return the record of a measurement that failed after this time."""
    return draft.model_copy(update={**dict(failure), "duration_s": duration_s})
