"""Planning of a study: its points, the refused points with reasons, the expected size, and the
parts that are missing before it can run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bitbench.engines.registry import load_study_engines
from bitbench.loadgen.inputs import check_input_files
from bitbench.machine.workplace import Workplace
from bitbench.planning.compatibility import CompatibilityRow, look_up_compatibility
from bitbench.planning.estimate import Estimator
from bitbench.planning.readiness import (
    Readiness,
    list_needed_environments,
    list_needed_packages,
    readiness,
)
from bitbench.planning.variants import VariantStore
from bitbench.ports import Engine, Load, Observer
from bitbench.quality.material import check_quality_files
from bitbench.study.base import Record
from bitbench.study.environment import Device
from bitbench.study.hardware import Capability, Level
from bitbench.study.plan import Config, Expectation, Plan, Point, QualityRefusal, Refusal, Support
from bitbench.study.quality import Quality
from bitbench.study.study import Checkpoint, EngineSetup, Study
from bitbench.study.study_file import StudySource
from bitbench.study.variant import NO_MODEL, Variant
from bitbench.study.workload import Workload
from bitbench.util.errors import RecipeError, StudyFileError
from bitbench.util.text import suggest_name

Resolve = Callable[[str, str | Checkpoint], Variant]


def plan_study_points(
    study: Study,
    engines: Mapping[str, Engine],
    resolve: Resolve,
    device: Device,
    *,
    capability: Capability | None = None,
    level: Level | None = None,
) -> Plan:
    """Return the plan of every model × recipe × engine × workload.

    `resolve` finds the variant on disk for a model and a recipe's name or a checkpoint.
    `capability` is the lowest among the GPUs, or None if none exist or it is unknown.
    `level` is the instruction level of the processor, or None if a GPU computes or it is unknown.
    Raise StudyFileError if the study contradicts itself or an engine's rules.
    """
    _check_names(study, engines)
    _check_shapes(study)
    _check_environments(study, engines)
    with_model = list(_iter_variants(study, resolve))
    without_model = Variant(name=NO_MODEL, model=NO_MODEL, recipe=NO_MODEL)
    verdicts = _Verdicts()
    for index, requested_setup in enumerate(study.engines):
        engine = engines[requested_setup.engine]
        setup = complete_engine_setup(requested_setup, engine, index)
        for variant in with_model if engine.needs_model else [without_model]:
            row = _find_compatibility(variant, setup, device, capability)
            verdicts.add(study, engine, setup, variant, row=row, index=index)
            if level is not None and not level.has_bf16 and _is_in_float32(setup, row):
                verdicts.in_float32.append(Config(variant=variant.name, engine=setup.name))
    used_names = {config.variant for config in verdicts.configs}
    variants = [variant for variant in (*with_model, without_model) if variant.name in used_names]
    timed = {point.config for point in verdicts.points}
    started = {*timed, *verdicts.quality}
    expectations = [item for item in verdicts.expectations if item.config in timed]
    plan = Plan(
        study=study,
        variants=tuple(variants),
        points=tuple(verdicts.points),
        refusals=tuple(verdicts.refusals),
        expectations=tuple(expectations),
        quality=tuple(verdicts.quality),
        quality_refusals=tuple(verdicts.quality_refusals),
        level=level,
        in_float32=tuple(config for config in verdicts.in_float32 if config in started),
    )
    _check_baseline(plan)
    return plan


@dataclass
class _Verdicts:
    """The points and configs that will run, and the refused ones, collected config by config."""

    points: list[Point] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    expectations: list[Expectation] = field(default_factory=list)
    quality: list[Config] = field(default_factory=list)
    quality_refusals: list[QualityRefusal] = field(default_factory=list)
    in_float32: list[Config] = field(default_factory=list)

    @property
    def configs(self) -> list[Config]:
        return [
            *(point.config for point in self.points),
            *(refusal.point.config for refusal in self.refusals),
            *self.quality,
            *(refusal.config for refusal in self.quality_refusals),
        ]

    def add(
        self,
        study: Study,
        engine: Engine,
        setup: EngineSetup,
        variant: Variant,
        *,
        row: CompatibilityRow | None,
        index: int,
    ) -> None:
        """Judge a variant on an engine, which is number `index` of the study."""
        config = Config(variant=variant.name, engine=setup.name)
        for workload in study.workloads:
            point = Point(config=config, workload=workload.name)
            if row and row.refuse:
                reason: str | None = row.why
            else:
                reason = _find_point_refusal(engine, setup, variant, workload, index)
            if reason is None:
                self.points.append(point)
            else:
                self.refusals.append(Refusal(point=point, reason=reason))
        if study.quality is not None:
            reason = _find_quality_refusal(study.quality, engine, setup, variant, row, index=index)
            if reason is None:
                self.quality.append(config)
            else:
                self.quality_refusals.append(QualityRefusal(config=config, reason=reason))
        if row and not row.refuse and row.verdict is not Support.RUNS:
            self.expectations.append(Expectation(config=config, verdict=row.verdict, why=row.why))


def _find_quality_refusal(
    quality: Quality,
    engine: Engine,
    setup: EngineSetup,
    variant: Variant,
    row: CompatibilityRow | None,
    *,
    index: int,
) -> str | None:
    """Return why a config's quality cannot be measured, or None.

    A config that is refused only because it has no speed-up can be measured.
    """
    if not engine.needs_model:
        return f"{engine.name} does not run bitbench's variants."
    if variant.facts.random_weights:
        return describe_random_weights_refusal(variant.model)
    if engine.scoring is None:
        return f"The {engine.name} engine returns no log-probabilities, which quality needs."
    if not engine.scoring_reads_cache and setup.has_quantized_cache:
        return (
            f"{engine.name} gives log-probabilities without its KV cache: "
            f"they do not show what {setup.kv_cache} loses."
        )
    if row is not None and row.refuse and row.verdict is Support.DOES_NOT_RUN:
        return row.why
    longest = Workload(
        name="quality", concurrency=1, input_tokens=quality.context_tokens - 1, output_tokens=1
    )
    return _find_point_refusal(engine, setup, variant, longest, index)


def describe_random_weights_refusal(model: str) -> str:
    """Return the reason why a model with random weights has no quality."""
    return (
        f"The weights of {model} are random: it is for speed, memory and kernels, "
        "and has no quality."
    )


def _find_point_refusal(
    engine: Engine, setup: EngineSetup, variant: Variant, workload: Workload, index: int
) -> str | None:
    """Return why this point cannot run, or None. Raise StudyFileError if the setup is wrong, with
    its location in the study file."""
    try:
        return engine.refuse(setup, variant, workload) or variant.refusal
    except StudyFileError as error:
        raise StudyFileError(str(error), ("engines", index, *error.location)) from error


def _find_compatibility(
    variant: Variant, setup: EngineSetup, device: Device, capability: Capability | None
) -> CompatibilityRow | None:
    """Return the row of the compatibility table that applies to this setup, or None."""
    if not variant.form:
        return None
    row = look_up_compatibility(
        variant.form, setup.engine, device, variant.at_load, capability=capability
    )
    if row is None or not row.refuse:
        return row
    if setup.python is not None and row.is_of_a_version and row.verdict is Support.DOES_NOT_RUN:
        # The study's own environment may have another version than the one that failed.
        return row.model_copy(update={"refuse": False})
    return row if row.refuses(setup.args) else None


def _is_in_float32(setup: EngineSetup, row: CompatibilityRow | None) -> bool:
    """Return True if the engine computes in float32 because the processor would emulate bf16, and
    the study does not choose a type."""
    names_type = any(name.lstrip("-") == "dtype" for name in setup.args)
    return row is not None and row.float32_without_bf16 and not names_type


def _iter_variants(study: Study, resolve: Resolve) -> Iterator[Variant]:
    """Yield each variant under a name that is unique in the study and identifies its configs."""
    by_model = {model: _list_variants_of_model(model, study, resolve) for model in study.models}
    plain_names = {model: variants[0].model_name for model, variants in by_model.items()}
    names = _make_unique_model_names(plain_names)
    for model, variants in by_model.items():
        for variant in variants:
            name = f"{names[model]}/{variant.recipe}"
            yield variant.model_copy(update={"name": name})


def _list_variants_of_model(model: str, study: Study, resolve: Resolve) -> list[Variant]:
    """Return the variants of one model: its recipes' variants, then its checkpoints. Raise
    StudyFileError if two have the same name or a recipe cannot be resolved."""
    requests: list[tuple[str | Checkpoint, str, int]] = []
    for index, recipe in enumerate(study.recipes):
        requests.append((recipe, "recipes", index))
    for index, checkpoint in enumerate(study.variants):
        if checkpoint.of == model:
            requests.append((checkpoint, "variants", index))
    variants: list[Variant] = []
    for request, key, index in requests:
        try:
            variant = resolve(model, request)
        except RecipeError as error:
            raise StudyFileError(str(error), (key, index)) from error
        if any(other.recipe == variant.recipe for other in variants):
            message = f"two {key} are called {variant.recipe}; give each its own name"
            raise StudyFileError(message, (key,))
        variants.append(variant)
    return variants


def _make_unique_model_names(plain: Mapping[str, str]) -> dict[str, str]:
    """Return a unique name for each model of the study: its plain name, or the shortest end of its
    path that no model with the same plain name shares. Raise StudyFileError if one occurs twice."""
    names = dict(plain)
    for model, name in plain.items():
        namesakes = [other for other in plain if plain[other] == name and other != model]
        if not namesakes:
            continue
        parts = Path(model).parts
        others = [Path(other).parts for other in namesakes]
        if parts in others:
            raise StudyFileError(
                f"{model} is in this study twice, spelled differently", ("models",)
            )
        length = 1
        while any(other[-length:] == parts[-length:] for other in others):
            length += 1
        names[model] = Path(*parts[-length:]).as_posix()
    return names


def _check_names(study: Study, engines: Mapping[str, Engine]) -> None:
    """Raise StudyFileError if an engine needs a model and the study has none, or the reverse."""
    needs_model = [setup.name for setup in study.engines if engines[setup.engine].needs_model]
    if needs_model and not study.models:
        raise StudyFileError(
            f"{', '.join(needs_model)} needs a model; add `models: [smollm2-135m]`, "
            "a hub id (ORG/NAME) or a folder",
            ("engines",),
        )
    if study.models and not needs_model:
        raise StudyFileError("no engine of this study runs a model; remove `models`", ("models",))


def _check_shapes(study: Study) -> None:
    """Raise StudyFileError for an imported workload of which an essential part is unknown."""
    for index, workload in enumerate(study.workloads):
        if workload.unknown:
            raise StudyFileError(
                f"{workload.name} was imported without {', '.join(workload.unknown)}; "
                "it can be reported, not run",
                ("workloads", index),
            )


def _check_environments(study: Study, engines: Mapping[str, Engine]) -> None:
    """Raise StudyFileError if `python` is set for an engine that is not a Python package."""
    for index, setup in enumerate(study.engines):
        if setup.python is None:
            continue
        engine = engines[setup.engine]
        environment = engine.own_environment
        has_other_kind = environment is not None and not environment.is_of_python
        if engine.environment is None or has_other_kind:
            raise StudyFileError(
                f"{engine.name} is not a package of a Python environment; remove `python`, "
                "and measure a server of your own with the engine `endpoint`",
                ("engines", index, "python"),
            )


def _check_baseline(plan: Plan) -> None:
    """Raise StudyFileError if the study's baseline matches no config or several."""
    baseline = plan.study.baseline
    if baseline is None:
        return
    configs = dict.fromkeys([*plan.configs, *(refusal.point.config for refusal in plan.refusals)])
    matching = [config for config in configs if baseline in (config.name, config.engine)]
    if not matching:
        names = ", ".join(f"`{config.name}`" for config in configs)
        raise StudyFileError(
            f"{baseline!r} is not a config of this study; they are {names}", ("baseline",)
        )
    if len(matching) > 1:
        names = ", ".join(f"`{config.name}`" for config in matching)
        raise StudyFileError(
            f"{baseline!r} is ambiguous: {names}; give the full name", ("baseline",)
        )


def list_engine_loads(plan: Plan, setup: EngineSetup) -> tuple[Load, ...]:
    """Return the loads on an instance of this setup: its workloads, then its quality requests."""
    points = [point for point in plan.points if point.config.engine == setup.name]
    loads: list[Load] = []
    for name in dict.fromkeys(point.workload for point in points):
        workload = plan.study.workload(name)
        loads.append(Load(workload.concurrency, workload.context_tokens))
    quality = plan.study.quality
    refused = {refusal.config for refusal in plan.quality_refusals}
    # All starts of a study have the same options, so quality counts in every part of the plan.
    if quality is not None and any(
        config.engine == setup.name and config not in refused for config in plan.configs
    ):
        concurrency = max((task.concurrency for task in quality.lm_eval_tasks), default=1)
        loads.append(Load(concurrency, quality.context_tokens))
    return tuple(loads)


def complete_engine_setup(setup: EngineSetup, engine: Engine, index: int = 0) -> EngineSetup:
    """Return the setup with the arguments that choose its KV cache type. `index` is its position in
    the study. Raise StudyFileError if the engine lacks this type or the arguments choose one too.
    """
    if setup.kv_cache is None:
        return setup
    types = engine.kv_cache_types
    if setup.kv_cache not in types:
        advice = "remove `kv_cache`"
        if types:
            advice = f"{suggest_name(setup.kv_cache, types)}it has {', '.join(types)}"
        raise StudyFileError(
            f"{engine.name} has no KV cache type {setup.kv_cache}; {advice}",
            ("engines", index, "kv_cache"),
        )
    cache_arguments = types[setup.kv_cache]
    for name in setup.args:
        option = name.lstrip("-").replace("_", "-")
        if option in cache_arguments:
            message = f"`kv_cache` chooses {option} already; keep one of the two"
            raise StudyFileError(message, ("engines", index, "args", name))
    return setup.model_copy(update={"args": {**cache_arguments, **setup.args}})


def plan_study(study: Path | Study | StudySource, workplace: Workplace) -> Plan:
    """Return the points that a study would run, and the refused ones with the reason. Planning
    starts nothing and needs neither weights nor environments."""
    source = StudySource.of(study)
    return plan_study_source(source, VariantStore(workplace.home, source.folder), workplace)


def plan_study_with_readiness(
    study: Path | Study | StudySource, workplace: Workplace
) -> tuple[Plan, Readiness]:
    """Return the plan, and the parts that are missing on this machine before it can run."""
    source = StudySource.of(study)
    store = VariantStore(workplace.home, source.folder)
    plan = plan_study_source(source, store, workplace)
    return plan, _check_readiness(plan, store, workplace)


def ready_plan(
    source: StudySource,
    store: VariantStore,
    workplace: Workplace,
    observer: Observer,
    part_of: Callable[[Plan], Plan] = lambda plan: plan,
) -> Plan:
    """Return the plan, or its `part_of`, once its variants were made or have failed. Raise
    NotReadyError if an environment or a model is missing."""
    plan = part_of(plan_study_source(source, store, workplace))
    _check_readiness(plan, store, workplace).require()
    return store.make_missing(plan, observer)


def plan_study_source(
    source: StudySource,
    store: VariantStore,
    workplace: Workplace,
    target: Capability | None = None,
) -> Plan:
    """Return the plan of a study, for this machine or for a GPU elsewhere with the capability
    `target`. Raise StudyFileError with the location in the file."""
    study = source.study
    device: Device = "cuda" if target else workplace.device
    level = None if target else workplace.level
    try:
        check_input_files(study.workloads, source.folder)
        if study.quality is not None:
            check_quality_files(study.quality, source.folder)
        return plan_study_points(
            study,
            load_study_engines(study),
            store.variant,
            device,
            capability=target or workplace.capability,
            level=level,
        )
    except StudyFileError as error:
        raise source.locate_error(error) from error


def _check_readiness(plan: Plan, store: VariantStore, workplace: Workplace) -> Readiness:
    return readiness(
        {*list_needed_environments(plan), *store.list_makers(plan)},
        store.missing_models(plan),
        workplace.home,
        device=workplace.device,
        asked_for=workplace.asked_device,
        packages=list_needed_packages(plan),
        making_s=store.making_s(plan),
    )


def make_estimator(plan: Plan, workplace: Workplace) -> Estimator:
    """Return an estimator of how long a plan takes here, before any measurement."""
    return Estimator(plan, load_study_engines(plan.study), workplace.level)


@dataclass(frozen=True)
class Amount:
    """The expected size of a plan. Each pair is the minimum, and the maximum if no question is
    decided early."""

    points: int
    starts: tuple[int, int]
    trials: tuple[int, int]
    seconds: tuple[float, float]  # with the time to create variants
    making_s: float = 0.0  # for variants that are not created yet


class PlanAnswer(Record):
    """The answer of `bitbench plan --json`: the plan, what it needs, and how long it takes."""

    plan: Plan
    environments: dict[str, str | None]  # the problem of each, null if it is installed
    missing_models: tuple[str, ...]  # not downloaded, planned from the catalog's facts
    before_run: tuple[str, ...]  # commands to run before `bitbench run`
    amount: Amount


def estimate_study_size(plan: Plan, estimator: Estimator, making_s: float = 0.0) -> Amount:
    """Return how many points, starts, trials and seconds a plan takes, `making_s` included."""
    measure = plan.study.measure
    configs = len({point.config for point in plan.points})
    started_once = len(plan.configs) - configs  # only their quality is measured
    points = len(plan.points)
    rounds = (measure.trials.min, measure.trials.min)
    if measure.budget is not None:
        rounds = (1, measure.trials.max)
    low_s, high_s = estimator.estimate_range_s()
    return Amount(
        points=points,
        starts=(
            configs * measure.starts.min + started_once,
            configs * measure.starts.max + started_once,
        ),
        trials=(
            points * measure.starts.min * rounds[0],
            points * measure.starts.max * rounds[1],
        ),
        seconds=(low_s + making_s, high_s + making_s),
        making_s=making_s,
    )
