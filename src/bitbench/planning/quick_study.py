"""`bitbench quick` of variants: which study the names on a command line ask for, and what it takes to run it here."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitbench.engines import registry
from bitbench.engines.environments import installed_environments
from bitbench.machine.workplace import Workplace
from bitbench.models import hub
from bitbench.models.catalog import CATALOG
from bitbench.models.hub import parse_hub_reference
from bitbench.models.library import GGUF, source_of
from bitbench.planning import variants
from bitbench.planning.compatibility import baseline_recipe, look_up_compatibility
from bitbench.planning.plan import estimator_of, plan_study
from bitbench.planning.readiness import hub_python, readiness
from bitbench.planning.variants import VariantStore
from bitbench.ports import Engine
from bitbench.quantize import catalog
from bitbench.quantize.backends import guess_backend_s, maker_of
from bitbench.study.model_cost import expected_weight_bytes
from bitbench.study.plan import Config, Support
from bitbench.study.quality import Quality
from bitbench.study.recipe import DENSE_GGUF_TYPES, Backend, Recipe
from bitbench.study.study import Checkpoint, EngineSetup, Measure, Study
from bitbench.study.study_file import StudySource, study_file_text
from bitbench.study.variant import DENSE, AtLoad, ModelFacts, Variant, is_dense_variant_form
from bitbench.study.workload import Workload
from bitbench.util.errors import ModelError, RecipeError, StoreError, UsageError
from bitbench.util.files import SafeFolder, read_bytes
from bitbench.util.text import did_you_mean

SPEED_S, TOTAL_S = 180.0, 300.0  # the budget of the speed trials; with starts and quality, about
WINDOWS = 32  # short ones: a mean over few windows of a skewed loss is understated
AS_IT_IS = (
    "bf16"  # the recipe that changes nothing; of a checkpoint that is quantized, it keeps that
)
EXAMPLE = "bitbench quick smollm2-135m gguf-q4_0 gguf-q8_0"
HEADER = """\
# Written by `bitbench quick`. To go on, edit it, then: bitbench run {file} --into {folder}
# A longer `budget` measures on in the same folder; whatever else is changed needs another one.
"""
# Seconds and bytes, on two cores of a server with the packages near by: a slow network adds to it.
ENVIRONMENTS: dict[str, tuple[float, int]] = {
    "llamacpp": (80.0, 1_210_000_000),
    "openvino": (60.0, 1_500_000_000),
    "quantize": (51.0, 1_260_000_000),
    "transformers": (47.0, 1_010_000_000),
    "vllm": (89.0, 1_920_000_000),
}
CATALOG_S = 30.0  # to download and convert a model of the catalog


@dataclass(frozen=True)
class Size:
    """Tokens of a request, and of a window of text whose quality is measured."""

    input_tokens: int
    output_tokens: int
    window_tokens: int


SIZES = (
    Size(128, 32, 32),
    Size(64, 16, 16),
    Size(32, 8, 8),
)  # the first that fits into the time is taken


# What a person named: recipes, and models or checkpoints (by their path where they are files).
Named = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class QuickField:
    """Who is compared, as far as that is known: a model on a hub counts as unquantized until it is here."""

    origin: (
        str | None
    )  # what recipes start from; None: all are checkpoints, and the largest is the baseline
    recipes: tuple[str, ...]  # the first is the baseline's
    checkpoints: tuple[str, ...]
    engines: tuple[str, ...]

    @property
    def models(self) -> tuple[str, ...]:
        return (*([self.origin] if self.origin else []), *self.checkpoints)


@dataclass(frozen=True)
class MissingPart:
    """Something to install, download or create first; its costs are None where they are unknown."""

    kind: str  # environment, model or variant
    name: str
    seconds: float | None = None
    size_bytes: int | None = None


def quick_study_names(names: Sequence[str]) -> Named:
    """Raises UsageError for a name that means nothing, and where there is nothing to compare."""
    recipes = [
        str(Path(name).resolve()) if catalog.is_recipe_file_name(name) else name
        for name in names
        if _is_recipe(name)
    ]
    models = [_model(name) for name in names if not _is_recipe(name)]
    if recipes and not models:
        raise UsageError(f"name the model before its recipes, such as: {EXAMPLE}")
    if len(names) < 2:
        raise UsageError(f"name what to compare it with, such as: {EXAMPLE}")
    return tuple(dict.fromkeys(recipes)), tuple(dict.fromkeys(models))


def make_quick_field(named: Named, at: Workplace) -> QuickField:
    """Raises UsageError where recipes have no model to start from, or no engine runs one of them."""
    recipes, models = named
    forms = {model: _form(model, at.home) for model in models}
    origin = next(
        (
            model
            for model, form in forms.items()
            if is_dense_variant_form(form) and not _is_gguf(form)
        ),
        None,
    )
    if recipes and origin is None:
        raise UsageError(
            f"{recipes[0]} starts from a model that is not quantized, and {models[0]} is; name that model, or only "
            "checkpoints"
        )
    others = tuple(model for model in models if model != origin)
    made = [catalog.find_recipe(recipe) for recipe in recipes]
    asked = [(recipe.name, recipe.form, recipe.at_load) for recipe in made]
    asked += [(model, forms[model], None) for model in others]
    engines = tuple(
        dict.fromkeys(_engine_for(name, form, at_load, at) for name, form, at_load in asked)
    )
    unquantized = (
        [baseline_recipe(engine, at.device) for engine in engines] if origin else [AS_IT_IS]
    )
    return QuickField(origin, tuple(dict.fromkeys([*unquantized, *recipes])), others, engines)


def missing_for_quick_study(field: QuickField, at: Workplace) -> list[MissingPart]:
    """In an order in which they can be created; variants come last, and the run itself creates them. Raises ModelError
    for a model that its hub does not have."""
    models = [
        model
        for model in field.models
        if (found := _found(model, at.home)) is None or found.path is None
    ]
    made = list(_missing_variants(field, at))
    makers = {maker_of(catalog.find_recipe(variant.name)).environment for variant in made}
    engines = registry.engines()
    needed = {environment for name in field.engines if (environment := engines[name].environment)}
    problems = readiness({*needed, *makers}, models, at.home, device=at.device).environments
    return [
        *(
            MissingPart("environment", name, *ENVIRONMENTS.get(name, ()))
            for name, problem in problems.items()
            if problem
        ),
        *(_missing_model(model, at.home) for model in models),
        *made,
    ]


def make_quick_study(field: QuickField, at: Workplace, name: str) -> Study:
    """Once its models are here: with the longest requests that fit into the time, else the shortest."""
    for size in SIZES:
        study = _study(field, at, name, size)
        plan = plan_study(study, at)
        baseline = Config(variant=plan.variants[0].name, engine=field.engines[0])
        study = study.model_copy(update={"baseline": baseline.name})
        if estimator_of(plan, at).range_s()[1] <= TOTAL_S:
            break
    return study


def write_quick_study(study: Study, folder: Path) -> StudySource:
    """As a file beside the folder that its results go to. Raises StoreError where another file has that name."""
    file = folder.with_name(f"{folder.name}.yaml")
    text = HEADER.format(file=file, folder=folder) + study_file_text(study)
    if file.exists() and read_bytes(file) != text.encode():
        raise StoreError(f"{file} exists and is another study; give another folder with --into")
    return StudySource(study, text, file.parent, SafeFolder(file.parent).write(file.name, text))


def _study(field: QuickField, at: Workplace, name: str, size: Size) -> Study:
    model, *others = (
        field.models
        if field.origin
        else sorted(field.checkpoints, key=lambda name: _bytes(name, at.home))
    )
    engines = registry.engines()
    requests = {"input_tokens": size.input_tokens, "output_tokens": size.output_tokens}
    return Study(
        name=re.sub(r"[^A-Za-z0-9_.+-]", "-", name).lstrip("_.+-")[:80] or "quick",
        description=f"A first look: {', '.join((*field.recipes[1:], *field.checkpoints))}.",
        models=(model,),
        recipes=field.recipes,
        variants=tuple(Checkpoint(of=model, checkpoint=other) for other in others),
        engines=tuple(
            EngineSetup(
                name=engine,
                engine=engine,
                args=dict(engines[engine].quick_args) if at.device == "cpu" else {},
            )
            for engine in field.engines
        ),
        workloads=(
            Workload(name="one", concurrency=1, **requests),
            Workload(name="eight", concurrency=8, **requests),
        ),
        quality=None
        if source_of(model)
        else Quality(windows=WINDOWS, window_tokens=size.window_tokens, answer_tokens=0),
        measure=Measure(budget=SPEED_S),
    )


def _bytes(model: str, home: Path) -> tuple[bool, int]:
    """To be sorted by: what is not quantized first, then the largest."""
    return not is_dense_variant_form(_form(model, home)), -variants.look_up_variant_model(
        model, home
    ).weight_bytes


def _is_recipe(name: str) -> bool:
    if catalog.is_recipe_file_name(name):
        return True
    try:
        catalog.built_in_recipe_file(name)
    except RecipeError:
        return False
    return True


def _model(name: str) -> str:
    """A path keeps its meaning wherever the study file lies."""
    path = Path(name).expanduser()
    if name in CATALOG or source_of(name):
        return name
    if path.exists():
        return str(path.resolve())
    if parse_hub_reference(name) is not None and path.suffix != f".{GGUF}":
        return name
    hint = did_you_mean(name, [*CATALOG, *(recipe.name for recipe in catalog.built_in_recipes())])
    raise UsageError(
        f"{name} is neither a model (a name of `bitbench model list`, ORG/NAME, a folder, a .gguf file) nor a recipe "
        f"(`bitbench recipes`); {hint}".rstrip("; ")
    )


def _form(model: str, home: Path) -> str:
    """What an engine gets to load; of a model on a hub that is not here, what its name promises."""
    reference = parse_hub_reference(model)
    if reference is not None and reference.file is not None and not Path(model).exists():
        return f"{GGUF}/{DENSE}" if reference.file.upper() in DENSE_GGUF_TYPES else GGUF
    found = _found(model, home)
    if found is None:
        return DENSE
    if variants.is_gguf(found) and found.path is not None:
        return variants.gguf_model_content(found.path)[1]
    return found.quantization.form if found.quantization else DENSE


def _is_gguf(form: str) -> bool:
    return form.partition("/")[0] == GGUF


def _engine_for(name: str, form: str, at_load: AtLoad | None, at: Workplace) -> str:
    """Of those that run it: one that is known to, that is installed, that starts soon."""
    installed = {found.name for found in installed_environments(at.home) if found.complete}
    variant = Variant(name=name, model=name, recipe=name, form=form, at_load=at_load)

    def effort(engine: Engine) -> tuple[bool, bool, float] | None:
        row = look_up_compatibility(form, engine.name, at.device, at_load, capability=at.capability)
        setup = EngineSetup(name=engine.name, engine=engine.name)
        shape = Workload(name="one", concurrency=1, input_tokens=1, output_tokens=1)
        if not engine.needs_model or (row and row.refuse) or engine.refuse(setup, variant, shape):
            return None
        is_known = row is not None and row.verdict is Support.RUNS
        return not is_known, engine.environment not in (None, *installed), engine.start_s

    efforts = {
        engine: cost
        for engine, found in registry.engines().items()
        if (cost := effort(found)) is not None
    }
    if not efforts:
        raise UsageError(
            f"no engine that bitbench knows runs {name} on this machine ({form}, {at.device})"
        )
    return min(efforts, key=lambda engine: efforts[engine])


def _found(model: str, home: Path) -> variants.FoundModel | None:
    """None where it is on a hub, and unknown here. Raises ModelError for one that is here and cannot be read."""
    try:
        return variants.look_up_variant_model(model, home)
    except ModelError:
        reference = parse_hub_reference(model)
        if Path(model).exists() or (
            reference is not None and hub.find_hub_model(reference, home) is not None
        ):
            raise
        return None


def _missing_model(model: str, home: Path) -> MissingPart:
    if model in CATALOG:
        return MissingPart("model", model, CATALOG_S, CATALOG[model].weight_bytes)
    reference = None if source_of(model) else parse_hub_reference(model)
    if reference is None:
        return MissingPart(
            "model", model, size_bytes=variants.look_up_variant_model(model, home).weight_bytes
        )
    try:
        python = hub_python(home)
    except ModelError:  # an environment that is to be created will have it
        return MissingPart("model", model)
    return MissingPart("model", model, size_bytes=hub.hub_download_bytes(reference, python=python))


def _missing_variants(field: QuickField, at: Workplace) -> Iterator[MissingPart]:
    store = VariantStore(at.home, Path())
    for name in field.recipes if field.origin else ():
        recipe = catalog.find_recipe(name)
        if recipe.backend in (Backend.NONE, Backend.ENGINE) or field.origin is None:
            continue
        try:
            variant = store.variant(field.origin, name)
        except ModelError:  # not downloaded, and nothing is known of it
            yield MissingPart("variant", name)
            continue
        if variant.path is None:
            seconds = guess_backend_s(recipe, variant.facts.parameters or 0)
            yield MissingPart("variant", name, seconds, _expected_bytes(recipe, variant.facts))


def _expected_bytes(recipe: Recipe, facts: ModelFacts) -> int | None:
    """A GGUF type begins with its bits: Q4_K_M, IQ3_XS."""
    bits = re.search(r"Q(\d)", recipe.gguf_type or "")
    return expected_weight_bytes(facts, f"{GGUF}/w{bits[1]}a16-int" if bits else recipe.form)
