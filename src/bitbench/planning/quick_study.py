"""`bitbench quick` of variants: the study behind the names, and the parts that are missing on this
machine before it can run."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitbench.engines import registry
from bitbench.engines.environments import list_environments, make_environment
from bitbench.machine.workplace import Workplace
from bitbench.models import hub
from bitbench.models.catalog import CATALOG
from bitbench.models.hub import parse_hub_reference
from bitbench.models.library import GGUF, find_source
from bitbench.planning import variants
from bitbench.planning.compatibility import find_baseline_recipe, look_up_compatibility
from bitbench.planning.plan import make_estimator, plan_study
from bitbench.planning.readiness import (
    get_environment,
    hub_python,
    make_model_ready,
    readiness,
)
from bitbench.planning.variants import VariantStore
from bitbench.quantize import catalog
from bitbench.quantize.backends import find_maker, guess_backend_s
from bitbench.study.model_cost import estimate_weight_bytes
from bitbench.study.plan import Config, Support
from bitbench.study.quality import Quality
from bitbench.study.recipe import DENSE_GGUF_TYPES, Backend, Recipe
from bitbench.study.study import Checkpoint, EngineSetup, Measure, Study
from bitbench.study.study_file import StudySource, format_study
from bitbench.study.variant import DENSE, AtLoad, ModelFacts, Variant, is_dense_variant_form
from bitbench.study.workload import Workload
from bitbench.util.errors import ModelError, RecipeError, StoreError, UsageError
from bitbench.util.files import SafeFolder, read_bytes
from bitbench.util.machine_faults import require_native
from bitbench.util.text import suggest_name

SPEED_S = 180.0  # budget of the speed trials
TOTAL_S = 300.0  # about, with starts and quality
WINDOWS = 32  # many short ones: the mean of a skewed loss over few windows is too low
AS_IT_IS = "bf16"  # the recipe that changes nothing, so a quantized checkpoint stays quantized
EXAMPLE = "bitbench quick smollm2-135m gguf-q4_0 gguf-q8_0"
HEADER = """\
# Written by `bitbench quick`. To go on, edit it, then: bitbench run {file} --into {folder}
# A longer `budget` measures on in the same folder; whatever else is changed needs another one.
"""
# Seconds and bytes, on two cores of a server with a nearby package mirror. A slow network adds
# time.
ENVIRONMENTS: dict[str, tuple[float, int]] = {
    "llamacpp": (80.0, 1_210_000_000),
    "openvino": (60.0, 1_500_000_000),
    "quantize": (51.0, 1_260_000_000),
    "transformers": (47.0, 1_010_000_000),
    "vllm": (89.0, 1_920_000_000),
}
CATALOG_S = 30.0  # time to download and convert a model of the catalog


@dataclass(frozen=True)
class Size:
    """The token counts of a request, and of a text window for the quality measurement."""

    input_tokens: int
    output_tokens: int
    window_tokens: int


# The first size that fits into the time is used.
SIZES = (
    Size(128, 32, 32),
    Size(64, 16, 16),
    Size(32, 8, 8),
)


# Recipes, and models or checkpoints (files by their path), as given on the command line.
Named = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class QuickField:
    """The variants and engines to compare. A hub model counts as unquantized until it is
    downloaded."""

    # The model that recipes start from. None if all are checkpoints; the largest is the baseline.
    origin: str | None
    recipes: tuple[str, ...]  # the first is the baseline's
    checkpoints: tuple[str, ...]
    engines: tuple[str, ...]

    @property
    def models(self) -> tuple[str, ...]:
        if self.origin:
            return (self.origin, *self.checkpoints)
        return self.checkpoints


@dataclass(frozen=True)
class MissingPart:
    """A part to install, download or create first. Its costs are None if they are unknown."""

    kind: str  # environment, model or variant
    name: str
    seconds: float | None = None
    size_bytes: int | None = None


def prepare_quick_study(
    names: Sequence[str],
    workplace: Workplace,
    folder: Path,
    *,
    confirm: Callable[[Sequence[MissingPart]], None],
    create: Callable[[MissingPart], None],
) -> StudySource:
    """Create the missing parts, and write the study that compares the names.

    `confirm` is called before parts are created, and raises an error to prevent that. `create` is
    called for each part except a variant, which the run creates. Raise PlatformError if this
    machine cannot measure, and UsageError for names that cannot be compared.
    """
    require_native()
    named = parse_quick_study_names(names)
    candidates = make_quick_field(named, workplace)
    while missing := list_missing_parts(candidates, workplace):
        confirm(missing)
        parts = [part for part in missing if part.kind != "variant"]
        if not parts:
            break
        for part in parts:
            create(part)
        # A downloaded model may differ from what its name promised.
        candidates = make_quick_field(named, workplace)
    study = make_quick_study(candidates, workplace, folder.name)
    return write_quick_study(study, folder)


def create_missing_part(
    part: MissingPart,
    workplace: Workplace,
    *,
    on_step: Callable[[str], None],
    on_progress: hub.OnProgress = lambda _done, _total: None,
) -> None:
    """Install a missing environment, or download or create a missing model."""
    if part.kind == "environment":
        environment = get_environment(part.name)
        make_environment(environment, workplace.home, device=workplace.device, on_step=on_step)
    elif part.kind == "model":
        make_model_ready(part.name, workplace.home, on_step=on_step, on_progress=on_progress)


def parse_quick_study_names(names: Sequence[str]) -> Named:
    """Return the recipes and the models among the names. Raise UsageError for an unknown name, or
    if there is nothing to compare."""
    recipes: list[str] = []
    models: list[str] = []
    for name in names:
        if not _is_recipe(name):
            models.append(_parse_model(name))
        elif catalog.is_recipe_file_name(name):
            recipes.append(str(Path(name).resolve()))
        else:
            recipes.append(name)
    if recipes and not models:
        raise UsageError(f"name the model before its recipes, such as: {EXAMPLE}")
    if len(names) < 2:
        raise UsageError(f"name what to compare it with, such as: {EXAMPLE}")
    return tuple(dict.fromkeys(recipes)), tuple(dict.fromkeys(models))


def make_quick_field(named: Named, workplace: Workplace) -> QuickField:
    """Return the variants and engines to compare. Raise UsageError if recipes have no model to
    start from, or if no engine runs one of the variants."""
    recipes, models = named
    forms = {model: _find_form(model, workplace.home) for model in models}
    origin = None
    for model, form in forms.items():
        if is_dense_variant_form(form) and not _is_gguf(form):
            origin = model
            break
    if recipes and origin is None:
        raise UsageError(
            f"{recipes[0]} starts from a model that is not quantized, and {models[0]} is; "
            "name that model, or only checkpoints"
        )
    checkpoints = tuple(model for model in models if model != origin)
    engine_names: list[str] = []
    for name in recipes:
        recipe = catalog.find_recipe(name)
        engine_names.append(_find_best_engine(recipe.name, recipe.form, recipe.at_load, workplace))
    for checkpoint in checkpoints:
        engine_names.append(_find_best_engine(checkpoint, forms[checkpoint], None, workplace))
    engines = tuple(dict.fromkeys(engine_names))
    unquantized = [AS_IT_IS]
    if origin:
        unquantized = [find_baseline_recipe(engine, workplace.device) for engine in engines]
    return QuickField(origin, tuple(dict.fromkeys([*unquantized, *recipes])), checkpoints, engines)


def list_missing_parts(candidates: QuickField, workplace: Workplace) -> list[MissingPart]:
    """Return the missing parts in an order in which they can be created. Variants come last, and
    the run itself creates them. Raise ModelError for a model that its hub does not have."""
    home = workplace.home
    models: list[str] = []
    for name in candidates.models:
        model = _find_model(name, home)
        if model is None or model.path is None:
            models.append(name)
    made = list(_iter_missing_variants(candidates, workplace))
    environments = {find_maker(catalog.find_recipe(variant.name)).environment for variant in made}
    engines = registry.engines()
    for name in candidates.engines:
        environment = engines[name].environment
        if environment:
            environments.add(environment)
    problems = readiness(environments, models, home, device=workplace.device).environments
    parts: list[MissingPart] = []
    for name, problem in problems.items():
        if problem:
            parts.append(MissingPart("environment", name, *ENVIRONMENTS.get(name, ())))
    return [*parts, *(_describe_missing_model(model, home) for model in models), *made]


def make_quick_study(candidates: QuickField, workplace: Workplace, name: str) -> Study:
    """Return the study with the longest requests that fit into the time, else with the shortest.
    Its models must be here already."""
    for size in SIZES:
        study = _make_sized_study(candidates, workplace, name, size)
        plan = plan_study(study, workplace)
        baseline = Config(variant=plan.variants[0].name, engine=candidates.engines[0])
        study = study.model_copy(update={"baseline": baseline.name})
        if make_estimator(plan, workplace).estimate_range_s()[1] <= TOTAL_S:
            break
    return study


def write_quick_study(study: Study, folder: Path) -> StudySource:
    """Write the study as a file next to its results folder, and return it. Raise StoreError if
    another study is in a file of that name."""
    file = folder.with_name(f"{folder.name}.yaml")
    text = HEADER.format(file=file, folder=folder) + format_study(study)
    if file.exists() and read_bytes(file) != text.encode():
        raise StoreError(f"{file} exists and is another study; give another folder with --into")
    return StudySource(study, text, file.parent, SafeFolder(file.parent).write(file.name, text))


def _make_sized_study(candidates: QuickField, workplace: Workplace, name: str, size: Size) -> Study:
    """Return the study with requests and text windows of one size."""
    models: Sequence[str] = candidates.models
    if not candidates.origin:
        models = sorted(models, key=lambda name: _get_baseline_order(name, workplace.home))
    model, *others = models
    description = ", ".join((*candidates.recipes[1:], *candidates.checkpoints))
    engines = registry.engines()
    setups: list[EngineSetup] = []
    for engine in candidates.engines:
        args = dict(engines[engine].quick_args) if workplace.device == "cpu" else {}
        setups.append(EngineSetup(name=engine, engine=engine, args=args))
    requests = {"input_tokens": size.input_tokens, "output_tokens": size.output_tokens}
    quality = None
    if not find_source(model):
        quality = Quality(windows=WINDOWS, window_tokens=size.window_tokens, answer_tokens=0)
    return Study(
        name=re.sub(r"[^A-Za-z0-9_.+-]", "-", name).lstrip("_.+-")[:80] or "quick",
        description=f"A first look: {description}.",
        models=(model,),
        recipes=candidates.recipes,
        variants=tuple(Checkpoint(of=model, checkpoint=other) for other in others),
        engines=tuple(setups),
        workloads=(
            Workload(name="one", concurrency=1, **requests),
            Workload(name="eight", concurrency=8, **requests),
        ),
        quality=quality,
        measure=Measure(budget=SPEED_S),
    )


def _get_baseline_order(model: str, home: Path) -> tuple[bool, int]:
    """Return a sort key that puts unquantized models first, then the largest."""
    weight_bytes = variants.look_up_variant_model(model, home).weight_bytes
    return not is_dense_variant_form(_find_form(model, home)), -weight_bytes


def _is_recipe(name: str) -> bool:
    if catalog.is_recipe_file_name(name):
        return True
    try:
        catalog.find_built_in_recipe_file(name)
    except RecipeError:
        return False
    return True


def _parse_model(name: str) -> str:
    """Return the model's name in a study file, with a path made absolute. Raise UsageError for an
    unknown name."""
    path = Path(name).expanduser()
    if name in CATALOG or find_source(name):
        return name
    if path.exists():
        return str(path.resolve())
    if parse_hub_reference(name) is not None and path.suffix != f".{GGUF}":
        return name
    hint = suggest_name(
        name, [*CATALOG, *(recipe.name for recipe in catalog.list_built_in_recipes())]
    )
    message = (
        f"{name} is neither a model (a name of `bitbench model list`, ORG/NAME, a folder, "
        f"a .gguf file) nor a recipe (`bitbench recipes`); {hint}"
    )
    raise UsageError(message.rstrip("; "))


def _find_form(model: str, home: Path) -> str:
    """Return the form that an engine would load. The form of an absent hub model is guessed from
    its name."""
    reference = parse_hub_reference(model)
    if reference is not None and reference.file is not None and not Path(model).exists():
        return f"{GGUF}/{DENSE}" if reference.file.upper() in DENSE_GGUF_TYPES else GGUF
    resolved = _find_model(model, home)
    if resolved is None:
        return DENSE
    if variants.is_gguf(resolved) and resolved.path is not None:
        return variants.read_gguf_label_and_form(resolved.path)[1]
    return resolved.quantization.form if resolved.quantization else DENSE


def _is_gguf(form: str) -> bool:
    return form.partition("/")[0] == GGUF


def _find_best_engine(name: str, form: str, at_load: AtLoad | None, workplace: Workplace) -> str:
    """Return the best engine for a form: one that is tested with it, is installed and starts soon,
    in this order. Raise UsageError if no engine runs it."""
    installed: set[str | None] = {None}  # an engine without an environment needs none
    for environment in list_environments(workplace.home):
        if environment.complete:
            installed.add(environment.name)
    variant = Variant(name=name, model=name, recipe=name, form=form, at_load=at_load)
    shape = Workload(name="one", concurrency=1, input_tokens=1, output_tokens=1)
    efforts: dict[str, tuple[bool, bool, float]] = {}
    for engine_name, engine in registry.engines().items():
        row = look_up_compatibility(
            form, engine.name, workplace.device, at_load, capability=workplace.capability
        )
        setup = EngineSetup(name=engine.name, engine=engine.name)
        if not engine.needs_model or (row and row.refuse) or engine.refuse(setup, variant, shape):
            continue
        is_tested = row is not None and row.verdict is Support.RUNS
        is_installed = engine.environment in installed
        efforts[engine_name] = (not is_tested, not is_installed, engine.start_s)
    if not efforts:
        raise UsageError(
            f"no engine that bitbench knows runs {name} on this machine "
            f"({form}, {workplace.device})"
        )
    return min(efforts, key=lambda engine_name: efforts[engine_name])


def _find_model(model: str, home: Path) -> variants.FoundModel | None:
    """Return the model's files or catalog facts, or None for a hub model that is not downloaded.
    Raise ModelError if the model is here and cannot be read."""
    try:
        return variants.look_up_variant_model(model, home)
    except ModelError:
        if Path(model).exists():
            raise
        reference = parse_hub_reference(model)
        if reference is not None and hub.find_hub_model(reference, home) is not None:
            raise
        return None


def _describe_missing_model(model: str, home: Path) -> MissingPart:
    if model in CATALOG:
        return MissingPart("model", model, CATALOG_S, CATALOG[model].weight_bytes)
    reference = None if find_source(model) else parse_hub_reference(model)
    if reference is None:
        size_bytes = variants.look_up_variant_model(model, home).weight_bytes
        return MissingPart("model", model, size_bytes=size_bytes)
    try:
        python = hub_python(home)
    except ModelError:  # an environment that will be created first contains the library
        return MissingPart("model", model)
    return MissingPart("model", model, size_bytes=hub.hub_download_bytes(reference, python=python))


def _iter_missing_variants(candidates: QuickField, workplace: Workplace) -> Iterator[MissingPart]:
    """Yield the variants that the run will have to make."""
    if not candidates.origin:
        return
    store = VariantStore(workplace.home, Path())
    for name in candidates.recipes:
        recipe = catalog.find_recipe(name)
        if recipe.backend in (Backend.NONE, Backend.ENGINE):
            continue
        try:
            variant = store.variant(candidates.origin, name)
        except ModelError:  # not downloaded and not in the catalog
            yield MissingPart("variant", name)
            continue
        if variant.path is None:
            seconds = guess_backend_s(recipe, variant.facts.parameters or 0)
            yield MissingPart(
                "variant", name, seconds, _estimate_variant_bytes(recipe, variant.facts)
            )


def _estimate_variant_bytes(recipe: Recipe, facts: ModelFacts) -> int | None:
    """Return the expected size of the weights, or None. The digit in a GGUF type is its bits, as in
    Q4_K_M and IQ3_XS."""
    bits = re.search(r"Q(\d)", recipe.gguf_type or "")
    form = f"{GGUF}/w{bits[1]}a16-int" if bits else recipe.form
    return estimate_weight_bytes(facts, form)
