"""`bitbench mix`: measure what each group of tensors costs in each type, choose, make that checkpoint, confirm it."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

from bitbench.analysis.quality import KL, summarize_quality
from bitbench.analysis.results.estimate import Estimate, Finding
from bitbench.analysis.results.summary import StudySummary
from bitbench.analysis.sequential import pairs_by_workload, primary_metric_of
from bitbench.analysis.summarize import summarize
from bitbench.features.mix.choice import (
    Swap,
    choose_mix,
    chosen_mix_divergence_difference,
    chosen_mix_types,
    group_tensors,
    judge_chosen_mix_bits,
    judge_chosen_mix_difference,
    judge_chosen_mix_divergence,
    judge_chosen_mix_speed,
    mix_ceilings,
    mix_choice_front,
    mix_choice_weight_times,
    mix_options,
    mixed_recipe,
    plan_uniform,
    predict_mix,
    swaps_for_mix_choice,
    tensors_unlike_mix_choice,
)
from bitbench.features.mix.types import ConfirmedMix, GroupChoice, Mix, MixSide, Mixture, TensorGroup, TypeTime
from bitbench.features.mix.words import mixture_document
from bitbench.measure import runner
from bitbench.measure.plan import no_quality_of_random_weights
from bitbench.measure.variants import make_ordered_variant, order_variant
from bitbench.measure.workplace import Workplace
from bitbench.models import library
from bitbench.ports import Observer
from bitbench.quantize import catalog, variants
from bitbench.quantize.checkpoint import GgufTensor, read_gguf_tensors
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.records.trial import Outcome
from bitbench.reports.files import make_report_files
from bitbench.reports.write import StudyReport
from bitbench.study.plan import Config
from bitbench.study.quality import Quality
from bitbench.study.recipe import Recipe
from bitbench.study.study import Count, EngineSetup, Interleaving, Measure, Study
from bitbench.study.study_file import StudySource
from bitbench.study.workload import Workload
from bitbench.util.errors import LoadError, QualityError, QuantizeError
from bitbench.util.files import SafeFolder
from bitbench.util.units import show_bytes

ENGINE = "llamacpp"
DENSE = "gguf-bf16"  # what every divergence is measured from
# One stream, almost nothing but decoding: a step reads every weight once, and its time is that of the kernels.
DECODE = Workload(name="decode", concurrency=1, input_tokens=16, output_tokens=64)
STEP = "tpot_s"
FRESH_WINDOWS = 2  # of the confirmation, for each of the single swaps; halfway between those
RECIPES = "recipes"
ROOM_BESIDE_BYTES = 2**30


def mix(asked: Mix, into: Path | None, observer: Observer, at: Workplace) -> Mixture:
    """Measure, choose, make, confirm; the same call again continues where it was interrupted. Fills the study folders
    `sensitivity`, `times` and `confirmation` and a `report` in `into`, by default ./mix-MODEL."""
    for reference in asked.references:
        catalog.built_in_recipe_file(reference)  # raises where there is none
    found = _MixRun(asked, into or Path(f"mix-{Path(asked.model).name}"), observer, at).answer()
    make_report_files(mixture_document(found), Path(found.folder))
    return found


@dataclass(frozen=True)
class _MixRun:
    asked: Mix
    place: Path
    observer: Observer
    at: Workplace

    def answer(self) -> Mixture:
        groups = self._groups
        swaps = swaps_for_mix_choice(groups, thorough=self.asked.thorough)
        models = plan_uniform(groups, self.asked.types)
        divergences = self._measure_swaps(swaps)
        steps = self._measure_times(models)
        weight_s = mix_choice_weight_times([(types, steps[f"all-{type}"].value) for type, types in models.items()])
        measured = {swap: divergences[swap.name] for swap in swaps}
        ceilings = mix_ceilings(
            self.asked.limits,
            self.asked.reserve,
            {recipe: step.value for recipe, step in steps.items()},
            {recipe: found.value for recipe, found in divergences.items()},
        )
        options = mix_options(groups, measured, weight_s)
        choices = choose_mix(options, ceilings)
        recipe = self._chosen_recipe(choices)
        file = SafeFolder(self.place).write(f"{recipe.name}.yaml", catalog.recipe_file_text(recipe))
        self._make(recipe, chosen_mix_types(choices))
        reference = self.asked.references[0]
        weights = sum(group.weights for group in groups)
        fits = {type: sum(group.weights for group in groups if type in group.types) / weights for type in models}
        found = Mixture(
            model=self._model.name,
            limits=self.asked.limits,
            reserve=self.asked.reserve,
            types=self.asked.types,
            reference=reference,
            groups=choices,
            times=tuple(
                TypeTime(type=type, step=steps[f"all-{type}"], weight_s=weight_s[type], fits=fits[type])
                for type in models
            ),
            predicted=predict_mix(options, chosen_mix_types(choices)),
            front=mix_choice_front(options),
            uniform={type: predict_mix(options, types) for type, types in models.items()},
            reference_predicted_s=_predicted_s(self._tensors_of(reference), groups, weight_s),
            reference_step=steps[reference],
            reference_divergence=divergences[reference],
            unused_types=tuple(type for type in self.asked.types if type not in models),
            rounded_before=self._model.facts.rounded_before,
            tokens=self.asked.windows * (self.asked.window_tokens - 1),  # the first of each has nothing before it
            recipe=str(file),
            folder=str(self.place),
        )
        confirmed = self._confirm(recipe)
        self._remove(swaps)
        return found.model_copy(update={"confirmed": confirmed})

    @cached_property
    def _model(self) -> library.ResolvedModel:
        if library.look_up_model(self.asked.model, self.at.home).facts.random_weights:
            raise QualityError(no_quality_of_random_weights(self.asked.model))
        return library.resolve(self.asked.model, self.at.home)

    @cached_property
    def _groups(self) -> tuple[TensorGroup, ...]:
        return group_tensors(self._tensors_of(DENSE), self.asked.types, self.asked.bands)

    def _tensors_of(self, recipe: str | Recipe) -> tuple[GgufTensor, ...]:
        """Of a variant, which is made where it does not exist."""
        wanted = catalog.find_recipe(recipe) if isinstance(recipe, str) else recipe
        made = make_ordered_variant(
            order_variant(self._model, wanted, self.at.home),
            self.at.home,
            lambda progress: self.observer.note(f"creating {wanted.name}: {progress.place}"),
        )
        return tuple(tensor for file in sorted(made.path.glob("*.gguf")) for tensor in read_gguf_tensors(file))

    def _measure_swaps(self, swaps: Sequence[Swap]) -> dict[str, Estimate]:
        recipes = [mixed_recipe(swap.name, swap.types) for swap in swaps]
        study = self._study(
            "sensitivity",
            [DENSE, *self.asked.references, *map(self._written, recipes)],
            quality=self._quality(),
            measure=Measure(schedule=Interleaving.VISITS),
        )
        folder = StudyFolder(self.place / "sensitivity")
        if not _is_scored(folder, study):  # else the variants would be made for nothing: they were removed
            self._require_room(recipes)
            folder = self._run(study, folder)
        return _divergences(folder.read(), [*self.asked.references, *(recipe.name for recipe in recipes)])

    def _measure_times(self, models: Mapping[str, Mapping[TensorGroup, str]]) -> dict[str, Estimate]:
        recipes = [mixed_recipe(f"all-{type}", types) for type, types in models.items()]
        study = self._study(
            "times",
            [*self.asked.references, *map(self._written, recipes)],
            workloads=(DECODE,),
            measure=self._rounds(self.asked.starts),
        )
        records = self._run(study, StudyFolder(self.place / "times")).read()
        return _steps(records, [*self.asked.references, *(recipe.name for recipe in recipes)])

    def _confirm(self, recipe: Recipe) -> ConfirmedMix:
        """In a folder of its own; one that has confirmed another mix stays as it is."""
        file = f"{recipe.name}.yaml"
        study = self._study(
            "confirmation",
            [DENSE, *self.asked.references, file],
            workloads=(DECODE,),
            quality=self._quality(FRESH_WINDOWS, offset=0.5),
            baseline=self._config(self.asked.references[0]).name,
            measure=self._rounds(self.asked.starts + 1),
        )
        for number in count(1):
            folder = StudyFolder(self.place / ("confirmation" if number == 1 else f"confirmation-{number}"))
            lock = folder.lock()
            if lock is None or lock.plan.study.recipes == study.recipes:
                break
        records = self._run(study, folder).read()
        return self._confirmed(records, recipe, folder.path)

    def _confirmed(self, records: StudyRecords, recipe: Recipe, folder: Path) -> ConfirmedMix:
        summary, measure = summarize(records), records.study.measure
        reference = self.asked.references[0]
        mix_side, other = self._side(summary, recipe), self._side(summary, catalog.find_recipe(reference))
        return ConfirmedMix(
            folder=str(folder),
            starts=measure.starts.min,
            rounds=measure.trials.min,
            mix=mix_side,
            reference=other,
            speed=_speed(records, self._config(recipe.name), self._config(reference)),
            difference=self._difference(records, recipe.name, reference),
            findings=tuple(self._findings(records, recipe.name, mix_side)),
        )

    def _findings(self, records: StudyRecords, name: str, mix_side: MixSide) -> list[Finding]:
        limits, found = self.asked.limits, []
        if limits.speed is not None:
            speed = _speed(records, self._config(name), self._config(limits.speed))
            found.append(judge_chosen_mix_speed(limits.speed, speed))
        if limits.bits is not None and mix_side.bits is not None:
            found.append(judge_chosen_mix_bits(limits.bits, mix_side.bits))
        if isinstance(limits.divergence, str):
            found.append(
                judge_chosen_mix_difference(limits.divergence, self._difference(records, name, limits.divergence))
            )
        elif limits.divergence is not None:
            found.append(judge_chosen_mix_divergence(limits.divergence, mix_side.divergence))
        return found

    def _difference(self, records: StudyRecords, name: str, reference: str) -> Estimate | None:
        configs = [self._config(recipe) for recipe in (name, reference, DENSE)]
        return chosen_mix_divergence_difference(records, *configs)

    def _side(self, summary: StudySummary, recipe: Recipe) -> MixSide:
        """Bits are of the groups: what is the same in every variant is not counted."""
        config = self._config(recipe.name)
        point = next((row for row in summary.points if row.point.config == config), None)
        quality = next((row for row in summary.quality if row.config == config), None)
        chosen = {name for group in self._groups for name in group.tensors}
        tensors = [tensor for tensor in self._tensors_of(recipe) if tensor.name in chosen]
        return MixSide(
            recipe=recipe.name,
            step=point.metrics.get(STEP) if point else None,
            divergence=quality.estimates.get(KL) if quality else None,
            bits=8 * sum(tensor.size_bytes for tensor in tensors) / sum(tensor.weights for tensor in tensors),
        )

    def _chosen_recipe(self, choices: Sequence[GroupChoice]) -> Recipe:
        """Named by its content, so that another choice is another config."""
        types = chosen_mix_types(choices)
        content = json.dumps([[*group.tensors, type] for group, type in types.items()])
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        used = sorted(set(types.values()))
        return mixed_recipe(f"mix-{digest}", types, f"{self._model.name}: {', '.join(used)} by measured time")

    def _make(self, recipe: Recipe, types: Mapping[TensorGroup, str]) -> None:
        if wrong := tensors_unlike_mix_choice(self._tensors_of(recipe), types):
            raise QuantizeError(
                f"llama-quantize made another file than {recipe.name} asks for: {wrong[0]} ({len(wrong)} tensors); "
                "choose other --types"
            )

    def _study(self, name: str, recipes: Sequence[str], **fields: object) -> Study:
        content = {
            "name": f"{self._model.name}-{name}",
            "models": (self.asked.model,),
            "recipes": tuple(recipes),
            "engines": (EngineSetup(name=ENGINE, engine=ENGINE),),
            "seed": self.asked.seed,
            **fields,
        }
        return Study.model_validate(content)

    def _quality(self, times: int = 1, offset: float = 0.0) -> Quality:
        return Quality(
            corpus=tuple(os.path.relpath(path, self.place) for path in self.asked.corpus),
            windows=times * self.asked.windows,
            window_tokens=self.asked.window_tokens,
            offset=offset,
            answer_tokens=0,
        )

    def _rounds(self, starts: int) -> Measure:
        """A fixed number, so that no look bends the figures."""
        rounds = self.asked.rounds
        return Measure(starts=Count(min=starts, max=starts), trials=Count(min=rounds, max=rounds), metric="tpot")

    def _run(self, study: Study, folder: StudyFolder) -> StudyFolder:
        self.observer.note(f"{study.name}: {len(study.recipes)} variants")
        done = runner.measure_study(StudySource.of(study, self.place), folder, self.observer, self.at)
        StudyReport(done, self.at.home).write()
        return done

    def _written(self, recipe: Recipe) -> str:
        """Its file, as the studies here name it."""
        name = f"{RECIPES}/{recipe.name}.yaml"
        SafeFolder(self.place).write(name, catalog.recipe_file_text(recipe))
        return name

    def _config(self, recipe: str) -> Config:
        return Config(variant=f"{self._model.name}/{recipe}", engine=ENGINE)

    def _require_room(self, recipes: Sequence[Recipe]) -> None:
        """All swaps lie on the disk at once, each as large as the unquantized model."""
        home, orders = self.at.home, [order_variant(self._model, recipe, self.at.home) for recipe in recipes]
        missing = sum(variants.find_variant_on_disk(order, home) is None for order in orders)
        needed, free = missing * self._model.weight_bytes + ROOM_BESIDE_BYTES, shutil.disk_usage(home).free
        if free < needed:
            raise QuantizeError(
                f"{home} has {show_bytes(free)} free; {missing} variants with one swap each need {show_bytes(needed)} "
                "for as long as they are measured; make room, or ask for fewer --bands or --types"
            )

    def _remove(self, swaps: Sequence[Swap]) -> None:
        for swap in swaps:
            recipe = mixed_recipe(swap.name, swap.types)
            there = variants.find_variant_on_disk(order_variant(self._model, recipe, self.at.home), self.at.home)
            if there is not None:
                variants.remove_variant(there)


def _is_scored(folder: StudyFolder, study: Study) -> bool:
    """Whether every variant of this study has its scores."""
    lock = folder.lock()
    if lock is None or lock.plan.study != study:
        return False
    records = folder.read()
    scored = {record.config for record in records.quality if record.outcome is Outcome.OK}
    return len(scored) == len(study.recipes)


def _divergences(records: StudyRecords, recipes: Sequence[str]) -> dict[str, Estimate]:
    """Raises QualityError for the first that was not measured."""
    found = {_recipe_of(quality.config): quality for quality in summarize_quality(records)}
    for recipe in recipes:
        if recipe not in found or KL not in found[recipe].estimates:
            why = found[recipe].cause or found[recipe].reason if recipe in found else "it was not started"
            raise QualityError(f"the divergence of {recipe} could not be measured: {why}; the log is in {records.name}")
    return {recipe: found[recipe].estimates[KL] for recipe in recipes}


def _steps(records: StudyRecords, recipes: Sequence[str]) -> dict[str, Estimate]:
    """Raises LoadError for the first that was not timed."""
    points = {_recipe_of(point.point.config): point for point in summarize(records).points}
    for recipe in recipes:
        if recipe not in points or STEP not in points[recipe].metrics:
            failures = points[recipe].failures if recipe in points else ()
            why = failures[0].failure.cause if failures else "it was not started"
            raise LoadError(f"{recipe} could not be timed: {why}; the log is in {records.name}")
    return {recipe: points[recipe].metrics[STEP] for recipe in recipes}


def _recipe_of(config: Config) -> str:
    return config.variant.rpartition("/")[2]


def _speed(records: StudyRecords, mix: Config, reference: Config) -> Estimate | None:
    """Paired: above 1 where the mix is faster."""
    table = pairs_by_workload(records.trials, primary_metric_of(records.plan), reference).get(DECODE.name)
    pair = table.between(mix, reference) if table else None
    return pair.ratio(records.study.measure.confidence) if pair else None


def _predicted_s(
    tensors: Sequence[GgufTensor], groups: Sequence[TensorGroup], weight_s: Mapping[str, float]
) -> float | None:
    """What a step of any variant should take; None where it holds types that were not timed."""
    multiplied = {name for group in groups if group.is_multiplied for name in group.tensors}
    own = [tensor for tensor in tensors if tensor.name in multiplied]
    if any(tensor.type not in weight_s for tensor in own):
        return None
    return sum(tensor.weights * weight_s[tensor.type] for tensor in own)
