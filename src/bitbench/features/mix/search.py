"""`bitbench mix`: measure what each group of tensors costs in each type, choose, make that checkpoint, confirm it."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bitbench.analysis.quality import KL, summarize_quality
from bitbench.analysis.results.summary import StudySummary
from bitbench.analysis.summarize import summarize
from bitbench.features.mix.choice import (
    Swap,
    choose_mix,
    chosen_mix_divergence_difference,
    chosen_mix_types,
    group_tensors,
    judge_mix,
    mix_ceilings,
    mix_choice_weight_times,
    mix_options,
    mixed_recipe,
    plan_uniform,
    predict_mix,
    swaps_for_mix_choice,
    tensors_unlike_mix_choice,
)
from bitbench.features.mix.types import (
    ConfirmedMix,
    GroupChoice,
    Mix,
    MixSide,
    Mixture,
    TensorGroup,
)
from bitbench.features.mix.words import mixture_document
from bitbench.machine.workplace import Workplace
from bitbench.models import library
from bitbench.planning.plan import no_quality_of_random_weights
from bitbench.planning.variants import make_ordered_variant, order_variant
from bitbench.ports import Observer
from bitbench.quantize import catalog, variants
from bitbench.quantize.checkpoint import GgufTensor, read_gguf_tensors
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.reports.files import make_report_files
from bitbench.reports.write import StudyReport
from bitbench.running import runner
from bitbench.study.plan import Config
from bitbench.study.quality import Quality
from bitbench.study.recipe import Recipe
from bitbench.study.study import Count, EngineSetup, Interleaving, Measure, Study
from bitbench.study.study_file import StudySource
from bitbench.study.workload import Workload
from bitbench.util.errors import QualityError, QuantizeError
from bitbench.util.files import SafeFolder
from bitbench.util.units import show_bytes

ENGINE = "llamacpp"
DENSE = "gguf-bf16"  # what every divergence is measured from
# One stream, almost nothing but decoding: a step reads every weight once, and its time is that of the kernels.
DECODE = Workload(name="decode", concurrency=1, input_tokens=16, output_tokens=64)
STEP = "tpot_s"
FRESH_WINDOWS = 2  # of the confirmation, for each of the single swaps; halfway between those
WINDOW_TOKENS = 64
STARTS, ROUNDS = 2, 6  # of each model that is timed; the confirmation has one start more
RECIPES = "recipes"
ROOM_BESIDE_BYTES = 2**30


def mix(asked: Mix, into: Path | None, observer: Observer, at: Workplace) -> Mixture:
    """Measure, choose, make, confirm; the same call again continues where it was interrupted. Fills the study folders
    `sensitivity`, `times` and `confirmation-MIX` and a `report` in `into`, by default ./mix-MODEL."""
    catalog.built_in_recipe_file(asked.limits.reference)  # raises where there is none
    place = into or Path(f"mix-{Path(asked.model).name}")
    found = _MixRun(asked, place, observer, at).answer()
    make_report_files(mixture_document(found), place)
    return found


@dataclass(frozen=True)
class _MixRun:
    asked: Mix
    place: Path
    observer: Observer
    at: Workplace

    def answer(self) -> Mixture:
        swaps = swaps_for_mix_choice(self._groups)
        models = plan_uniform(self._groups, self.asked.types)
        divergences = self._measure_swaps(swaps)
        steps_s = self._measure_times(models)
        weight_s = mix_choice_weight_times(
            [(types, steps_s[f"all-{type}"]) for type, types in models.items()]
        )
        options = mix_options(
            self._groups, {swap: divergences[swap.name] for swap in swaps}, weight_s
        )
        reference = self.asked.limits.reference
        choices = choose_mix(
            options, mix_ceilings(self.asked.limits, steps_s[reference], divergences[reference])
        )
        recipe = self._chosen_recipe(choices)
        file = SafeFolder(self.place).write(f"{recipe.name}.yaml", catalog.recipe_file_text(recipe))
        if wrong := tensors_unlike_mix_choice(self._tensors_of(recipe), chosen_mix_types(choices)):
            raise QuantizeError(
                f"llama-quantize made another file than asked for: {wrong[0]}; choose other --types"
            )
        predicted = predict_mix(choices)
        found = Mixture(
            model=self._model.name,
            limits=self.asked.limits,
            types=self.asked.types,
            groups=choices,
            predicted=predicted,
            predicted_speed=steps_s[reference] / predicted.step_s,
            tokens=self.asked.windows
            * (WINDOW_TOKENS - 1),  # the first of each has nothing before it
            recipe=str(file),
            confirmed=self._confirm(recipe),
        )
        self._remove(swaps)
        return found

    @cached_property
    def _model(self) -> library.ResolvedModel:
        if library.look_up_model(self.asked.model, self.at.home).facts.random_weights:
            raise QualityError(no_quality_of_random_weights(self.asked.model))
        return library.resolve(self.asked.model, self.at.home)

    @cached_property
    def _groups(self) -> tuple[TensorGroup, ...]:
        return group_tensors(self._tensors_of(DENSE), self.asked.types)

    def _tensors_of(self, recipe: str | Recipe) -> tuple[GgufTensor, ...]:
        """Of a variant, which is made where it does not exist."""
        wanted = catalog.find_recipe(recipe) if isinstance(recipe, str) else recipe
        made = make_ordered_variant(
            order_variant(self._model, wanted, self.at.home),
            self.at.home,
            lambda progress: self.observer.note(f"creating {wanted.name}: {progress.place}"),
        )
        return tuple(
            tensor
            for file in sorted(made.path.glob("*.gguf"))
            for tensor in read_gguf_tensors(file)
        )

    def _measure_swaps(self, swaps: Sequence[Swap]) -> dict[str, float]:
        recipes = [_swap_recipe(swap) for swap in swaps]
        study = self._study(
            "sensitivity",
            [DENSE, self.asked.limits.reference, *map(self._written, recipes)],
            quality=self._quality(),
            measure=Measure(schedule=Interleaving.VISITS),
        )
        folder = StudyFolder(self.place / "sensitivity")
        lock = folder.lock()
        wanted = {self.asked.limits.reference, *(recipe.name for recipe in recipes)}
        known = _divergences(folder.read()) if lock is not None and lock.plan.study == study else {}
        if wanted - set(known):  # else the variants would be made for nothing: they were removed
            self._require_room(recipes)
            known = _divergences(self._run(study, folder).read())
        _require(wanted, known, folder)
        return known

    def _measure_times(self, models: Mapping[str, Mapping[TensorGroup, str]]) -> dict[str, float]:
        recipes = [mixed_recipe(f"all-{type}", types) for type, types in models.items()]
        study = self._study(
            "times",
            [self.asked.limits.reference, *map(self._written, recipes)],
            workloads=(DECODE,),
            measure=_rounds(STARTS),
        )
        folder = self._run(study, StudyFolder(self.place / "times"))
        points = summarize(folder.read()).points
        known = {
            _recipe_of(row.point.config): row.metrics[STEP].value
            for row in points
            if STEP in row.metrics
        }
        _require({self.asked.limits.reference, *(recipe.name for recipe in recipes)}, known, folder)
        return known

    def _confirm(self, recipe: Recipe) -> ConfirmedMix:
        """In a folder of the mix's own, so that one that has confirmed another stays as it is."""
        reference = catalog.find_recipe(self.asked.limits.reference)
        study = self._study(
            "confirmation",
            [DENSE, reference.name, f"{recipe.name}.yaml"],
            workloads=(DECODE,),
            quality=self._quality(FRESH_WINDOWS, offset=0.5),
            baseline=self._config(reference).name,
            measure=_rounds(STARTS + 1),
        )
        folder = self._run(study, StudyFolder(self.place / f"confirmation-{recipe.name}"))
        records = folder.read()
        summary = summarize(records)
        mix_side = self._side(summary, recipe)
        entries = summary.rankings[0].entries if summary.rankings else ()
        speed = next(
            (row.ratio_to_baseline for row in entries if row.config == self._config(recipe)), None
        )
        configs = [
            self._config(compared) for compared in (recipe, reference, catalog.find_recipe(DENSE))
        ]
        difference = chosen_mix_divergence_difference(records, *configs)
        return ConfirmedMix(
            folder=str(folder.path),
            mix=mix_side,
            reference=self._side(summary, reference),
            speed=speed,
            difference=difference,
            findings=tuple(judge_mix(self.asked.limits, mix_side, speed, difference)),
        )

    def _side(self, summary: StudySummary, recipe: Recipe) -> MixSide:
        """Bits are of the groups: what is the same in every variant is not counted."""
        config = self._config(recipe)
        point = next((row for row in summary.points if row.point.config == config), None)
        quality = next((row for row in summary.quality if row.config == config), None)
        chosen = {name for group in self._groups for name in group.tensors}
        tensors = [tensor for tensor in self._tensors_of(recipe) if tensor.name in chosen]
        return MixSide(
            recipe=recipe.name,
            step=point.metrics.get(STEP) if point else None,
            divergence=quality.estimates.get(KL) if quality else None,
            bits=8
            * sum(tensor.size_bytes for tensor in tensors)
            / sum(tensor.weights for tensor in tensors),
        )

    def _chosen_recipe(self, choices: Sequence[GroupChoice]) -> Recipe:
        """Named by its content, so that another choice is another config."""
        types = chosen_mix_types(choices)
        content = json.dumps([[*group.tensors, type] for group, type in types.items()])
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        return mixed_recipe(
            f"mix-{digest}", types, f"{self._model.name}, by measured time and divergence"
        )

    def _study(self, name: str, recipes: Sequence[str], **fields: object) -> Study:
        content = {
            "name": f"{self._model.name}-{name}",
            "models": (self.asked.model,),
            "recipes": tuple(recipes),
            "engines": (EngineSetup(name=ENGINE, engine=ENGINE),),
            **fields,
        }
        return Study.model_validate(content)

    def _quality(self, times: int = 1, offset: float = 0.0) -> Quality:
        return Quality(
            windows=times * self.asked.windows,
            window_tokens=WINDOW_TOKENS,
            offset=offset,
            answer_tokens=0,
        )

    def _run(self, study: Study, folder: StudyFolder) -> StudyFolder:
        self.observer.note(f"{study.name}: {len(study.recipes)} variants")
        done = runner.measure_study(
            StudySource.of(study, self.place), folder, self.observer, self.at
        )
        StudyReport(done, self.at.home).write()
        return done

    def _written(self, recipe: Recipe) -> str:
        """Its file, as the studies here name it."""
        name = f"{RECIPES}/{recipe.name}.yaml"
        SafeFolder(self.place).write(name, catalog.recipe_file_text(recipe))
        return name

    def _config(self, recipe: Recipe) -> Config:
        return Config(variant=f"{self._model.name}/{recipe.name}", engine=ENGINE)

    def _require_room(self, recipes: Sequence[Recipe]) -> None:
        """All swaps lie on the disk at once, each as large as the unquantized model."""
        home, orders = (
            self.at.home,
            [order_variant(self._model, recipe, self.at.home) for recipe in recipes],
        )
        missing = sum(variants.find_variant_on_disk(order, home) is None for order in orders)
        needed, free = (
            missing * self._model.weight_bytes + ROOM_BESIDE_BYTES,
            shutil.disk_usage(home).free,
        )
        if free < needed:
            raise QuantizeError(
                f"{home} has {show_bytes(free)} free; {missing} variants with one swap each need {show_bytes(needed)} "
                "for as long as they are measured; make room, or ask for fewer --types"
            )

    def _remove(self, swaps: Sequence[Swap]) -> None:
        for swap in swaps:
            recipe = _swap_recipe(swap)
            there = variants.find_variant_on_disk(
                order_variant(self._model, recipe, self.at.home), self.at.home
            )
            if there is not None:
                variants.remove_variant(there)


def _rounds(starts: int) -> Measure:
    """A fixed number, so that no look bends the figures."""
    return Measure(
        starts=Count(min=starts, max=starts), trials=Count(min=ROUNDS, max=ROUNDS), metric="tpot"
    )


def _swap_recipe(swap: Swap) -> Recipe:
    return mixed_recipe(swap.name, dict.fromkeys(swap.groups, swap.type))


def _divergences(records: StudyRecords) -> dict[str, float]:
    """By recipe, of those that were compared with the unquantized model."""
    rows = [row for row in summarize_quality(records) if KL in row.estimates]
    return {_recipe_of(row.config): row.estimates[KL].value for row in rows}


def _require(recipes: Set[str], known: Mapping[str, float], folder: StudyFolder) -> None:
    """Raise for the first that was not measured."""
    if missing := sorted(recipes - known.keys()):
        raise QualityError(
            f"{missing[0]} could not be measured; {folder.path}/report/index.html says why"
        )


def _recipe_of(config: Config) -> str:
    return config.variant.rpartition("/")[2]
