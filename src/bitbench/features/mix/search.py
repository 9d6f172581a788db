"""The search of `bitbench mix`: measure each type, choose a mix, make it, and confirm it."""

import hashlib
import itertools
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
    collect_options,
    compute_ceilings,
    estimate_divergence_difference,
    estimate_weight_times,
    get_chosen_types,
    group_tensors,
    judge_mix,
    list_swaps,
    list_wrong_tensors,
    make_mixed_recipe,
    plan_uniform,
    predict_mix,
)
from bitbench.features.mix.types import (
    ConfirmedMix,
    GroupChoice,
    Mix,
    MixSide,
    Mixture,
    Option,
    TensorGroup,
)
from bitbench.features.mix.words import build_mixture_document
from bitbench.machine.workplace import Workplace
from bitbench.models import library
from bitbench.planning.plan import describe_random_weights_refusal
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
DENSE = "gguf-bf16"  # the recipe from which every divergence is measured
# One stream that almost only decodes. A step reads every weight once, so kernels dominate its time.
DECODE = Workload(name="decode", concurrency=1, input_tokens=16, output_tokens=64)
STEP = "tpot_s"
FRESH_WINDOWS = 2  # windows of the confirmation per window of a swap, halfway between the swap's
WINDOW_TOKENS = 64
STARTS = 2  # of each model that is timed (the confirmation has one more)
ROUNDS = 6
RECIPES = "recipes"
ROOM_BESIDE_BYTES = 2**30


def mix(request: Mix, into: Path | None, observer: Observer, workplace: Workplace) -> Mixture:
    """Measure, choose, make and confirm a mix, and return it with its confirmation.

    Fill the study folders `sensitivity`, `times` and `confirmation-MIX` and a `report` in `into`,
    by default ./mix-MODEL. The same call continues an interrupted one.
    """
    catalog.find_built_in_recipe_file(request.limits.reference)  # raises if there is no such recipe
    path = into or Path(f"mix-{Path(request.model).name}")
    mixture = _MixRun(request, path, observer, workplace).answer()
    make_report_files(build_mixture_document(mixture), path)
    return mixture


@dataclass(frozen=True)
class _MixRun:
    """A search for one mix, with its folder."""

    request: Mix
    path: Path
    observer: Observer
    workplace: Workplace

    def answer(self) -> Mixture:
        request = self.request
        reference = request.limits.reference
        swaps = list_swaps(self._groups)
        models = plan_uniform(self._groups, request.types)
        divergences = self._measure_swaps(swaps)
        steps_s = self._measure_times(models)
        choices = choose_mix(
            self._collect_options(swaps, divergences, models, steps_s),
            compute_ceilings(request.limits, steps_s[reference], divergences[reference]),
        )
        recipe = self._make_chosen_recipe(choices)
        file = self._folder.write(f"{recipe.name}.yaml", catalog.format_recipe_file(recipe))
        wrong = list_wrong_tensors(self._read_tensors_of(recipe), get_chosen_types(choices))
        if wrong:
            raise QuantizeError(
                f"llama-quantize made another file than asked for: {wrong[0]}; choose other --types"
            )
        predicted = predict_mix(choices)
        mixture = Mixture(
            model=self._model.name,
            limits=request.limits,
            types=request.types,
            groups=choices,
            predicted=predicted,
            predicted_speed=steps_s[reference] / predicted.step_s,
            # The first token of each window has no context, so it is not scored.
            tokens=request.windows * (WINDOW_TOKENS - 1),
            recipe=str(file),
            confirmed=self._confirm(recipe),
        )
        self._remove(swaps)
        return mixture

    @property
    def _folder(self) -> SafeFolder:
        return SafeFolder(self.path)

    @cached_property
    def _model(self) -> library.ResolvedModel:
        name = self.request.model
        if library.look_up_model(name, self.workplace.home).facts.random_weights:
            raise QualityError(describe_random_weights_refusal(name))
        return library.resolve(name, self.workplace.home)

    @cached_property
    def _groups(self) -> tuple[TensorGroup, ...]:
        return group_tensors(self._read_tensors_of(DENSE), self.request.types)

    def _collect_options(
        self,
        swaps: Sequence[Swap],
        divergences: Mapping[str, float],
        models: Mapping[str, Mapping[TensorGroup, str]],
        steps_s: Mapping[str, float],
    ) -> dict[TensorGroup, tuple[Option, ...]]:
        """Return the measured cost of each group in each type."""
        measured = {swap: divergences[swap.name] for swap in swaps}
        timed = [(types, steps_s[f"all-{type}"]) for type, types in models.items()]
        return collect_options(self._groups, measured, estimate_weight_times(timed))

    def _read_tensors_of(self, recipe: str | Recipe) -> tuple[GgufTensor, ...]:
        """Return the tensors of a variant. Create the variant if it does not exist."""
        if isinstance(recipe, str):
            recipe = catalog.find_recipe(recipe)
        name = recipe.name
        variant = make_ordered_variant(
            order_variant(self._model, recipe, self.workplace.home),
            self.workplace.home,
            lambda progress: self.observer.note(f"creating {name}: {progress.place}"),
        )
        tensors: list[GgufTensor] = []
        for file in sorted(variant.path.glob("*.gguf")):
            tensors += read_gguf_tensors(file)
        return tuple(tensors)

    def _measure_swaps(self, swaps: Sequence[Swap]) -> dict[str, float]:
        """Return the divergence by recipe: of each swap, and of the limits' reference."""
        recipes = [_make_swap_recipe(swap) for swap in swaps]
        reference = self.request.limits.reference
        study = self._study(
            "sensitivity",
            [DENSE, reference, *map(self._written, recipes)],
            quality=self._quality(),
            measure=Measure(schedule=Interleaving.VISITS),
        )
        folder = StudyFolder(self.path / "sensitivity")
        lock = folder.lock()
        names = {reference, *(recipe.name for recipe in recipes)}
        divergences: dict[str, float] = {}
        if lock is not None and lock.plan.study == study:
            divergences = _collect_divergences(folder.read())
        # A finished search has removed the variants: do not make them again without need.
        if names - set(divergences):
            self._require_room(recipes)
            divergences = _collect_divergences(self._run(study, folder).read())
        _require_measured(names, divergences, folder)
        return divergences

    def _measure_times(self, models: Mapping[str, Mapping[TensorGroup, str]]) -> dict[str, float]:
        """Return the seconds of a step by recipe: of each model, and of the limits' reference."""
        recipes = [make_mixed_recipe(f"all-{type}", types) for type, types in models.items()]
        reference = self.request.limits.reference
        study = self._study(
            "times",
            [reference, *map(self._written, recipes)],
            workloads=(DECODE,),
            measure=_plan_rounds(STARTS),
        )
        folder = self._run(study, StudyFolder(self.path / "times"))
        steps_s = {}
        for point in summarize(folder.read()).points:
            if STEP in point.metrics:
                steps_s[_get_recipe_name(point.point.config)] = point.metrics[STEP].value
        _require_measured({reference, *(recipe.name for recipe in recipes)}, steps_s, folder)
        return steps_s

    def _confirm(self, recipe: Recipe) -> ConfirmedMix:
        """Compare the mix with the reference in a new study.

        Each mix has its own folder, so that the confirmation of another mix stays as it is.
        """
        reference = catalog.find_recipe(self.request.limits.reference)
        study = self._study(
            "confirmation",
            [DENSE, reference.name, f"{recipe.name}.yaml"],
            workloads=(DECODE,),
            quality=self._quality(FRESH_WINDOWS, offset=0.5),
            baseline=self._make_config(reference).name,
            measure=_plan_rounds(STARTS + 1),
        )
        folder = self._run(study, StudyFolder(self.path / f"confirmation-{recipe.name}"))
        records = folder.read()
        summary = summarize(records)
        mix_config = self._make_config(recipe)
        mix_side = self._summarize_side(summary, recipe)
        entries = summary.rankings[0].entries if summary.rankings else ()
        speeds = [entry.ratio_to_baseline for entry in entries if entry.config == mix_config]
        speed = speeds[0] if speeds else None
        difference = estimate_divergence_difference(
            records,
            mix_config,
            self._make_config(reference),
            self._make_config(catalog.find_recipe(DENSE)),
        )
        return ConfirmedMix(
            folder=str(folder.path),
            mix=mix_side,
            reference=self._summarize_side(summary, reference),
            speed=speed,
            difference=difference,
            findings=tuple(judge_mix(self.request.limits, mix_side, speed, difference)),
        )

    def _summarize_side(self, summary: StudySummary, recipe: Recipe) -> MixSide:
        """Return the results of one recipe.

        Bits count the groups only. Tensors outside them are the same in every variant.
        """
        config = self._make_config(recipe)
        points = [point for point in summary.points if point.point.config == config]
        qualities = [quality for quality in summary.quality if quality.config == config]
        step = points[0].metrics.get(STEP) if points else None
        divergence = qualities[0].estimates.get(KL) if qualities else None
        chosen = set(itertools.chain.from_iterable(group.tensors for group in self._groups))
        tensors = [tensor for tensor in self._read_tensors_of(recipe) if tensor.name in chosen]
        size_bytes = sum(tensor.size_bytes for tensor in tensors)
        weights = sum(tensor.weights for tensor in tensors)
        return MixSide(
            recipe=recipe.name, step=step, divergence=divergence, bits=8 * size_bytes / weights
        )

    def _make_chosen_recipe(self, choices: Sequence[GroupChoice]) -> Recipe:
        """Return the recipe of a choice. A hash in its name keeps choices apart."""
        types = get_chosen_types(choices)
        content = json.dumps([[*group.tensors, type] for group, type in types.items()])
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        return make_mixed_recipe(
            f"mix-{digest}", types, f"{self._model.name}, by measured time and divergence"
        )

    def _study(self, name: str, recipes: Sequence[str], **fields: object) -> Study:
        content = {
            "name": f"{self._model.name}-{name}",
            "models": (self.request.model,),
            "recipes": tuple(recipes),
            "engines": (EngineSetup(name=ENGINE, engine=ENGINE),),
            **fields,
        }
        return Study.model_validate(content)

    def _quality(self, times: int = 1, offset: float = 0.0) -> Quality:
        return Quality(
            windows=times * self.request.windows,
            window_tokens=WINDOW_TOKENS,
            offset=offset,
            answer_tokens=0,
        )

    def _run(self, study: Study, folder: StudyFolder) -> StudyFolder:
        """Measure a study and write its report."""
        self.observer.note(f"{study.name}: {len(study.recipes)} variants")
        measured = runner.measure_study(
            StudySource.of(study, self.path), folder, self.observer, self.workplace
        )
        StudyReport(measured, self.workplace.home).write()
        return measured

    def _written(self, recipe: Recipe) -> str:
        """Write a recipe file and return its name for the studies of this search."""
        name = f"{RECIPES}/{recipe.name}.yaml"
        self._folder.write(name, catalog.format_recipe_file(recipe))
        return name

    def _make_config(self, recipe: Recipe) -> Config:
        return Config(variant=f"{self._model.name}/{recipe.name}", engine=ENGINE)

    def _find_variant(self, recipe: Recipe) -> variants.MadeVariant | None:
        home = self.workplace.home
        return variants.find_variant_on_disk(order_variant(self._model, recipe, home), home)

    def _require_room(self, recipes: Sequence[Recipe]) -> None:
        """Raise QuantizeError if the swaps do not fit on the disk.

        All are there at once, and each is as large as the unquantized model.
        """
        home = self.workplace.home
        missing = sum(self._find_variant(recipe) is None for recipe in recipes)
        needed_bytes = missing * self._model.weight_bytes + ROOM_BESIDE_BYTES
        free_bytes = shutil.disk_usage(home).free
        if free_bytes < needed_bytes:
            raise QuantizeError(
                f"{home} has {show_bytes(free_bytes)} free; {missing} variants with one swap each "
                f"need {show_bytes(needed_bytes)} for as long as they are measured; make room, or "
                "ask for fewer --types"
            )

    def _remove(self, swaps: Sequence[Swap]) -> None:
        for swap in swaps:
            variant = self._find_variant(_make_swap_recipe(swap))
            if variant is not None:
                variants.remove_variant(variant)


def _plan_rounds(starts: int) -> Measure:
    """Return fixed numbers of starts and trials: interim analyses would bias the metrics."""
    return Measure(
        starts=Count(min=starts, max=starts), trials=Count(min=ROUNDS, max=ROUNDS), metric="tpot"
    )


def _make_swap_recipe(swap: Swap) -> Recipe:
    return make_mixed_recipe(swap.name, dict.fromkeys(swap.groups, swap.type))


def _collect_divergences(records: StudyRecords) -> dict[str, float]:
    """Return the divergence by recipe, if it was compared with the unquantized model."""
    divergences = {}
    for quality in summarize_quality(records):
        if KL in quality.estimates:
            divergences[_get_recipe_name(quality.config)] = quality.estimates[KL].value
    return divergences


def _require_measured(
    recipes: Set[str], measured: Mapping[str, float], folder: StudyFolder
) -> None:
    """Raise QualityError for the first recipe that was not measured."""
    if missing := sorted(recipes - measured.keys()):
        raise QualityError(
            f"{missing[0]} could not be measured; {folder.path}/report/index.html says why"
        )


def _get_recipe_name(config: Config) -> str:
    return config.variant.rpartition("/")[2]
