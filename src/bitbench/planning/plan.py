"""A study made into a plan: its points, the meaningless ones set aside with the reason, how much it is, and what is
missing before it can run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bitbench.engines.registry import registered_engines_of
from bitbench.loadgen.inputs import check_input_files
from bitbench.machine.workplace import Workplace
from bitbench.planning.compatibility import CompatibilityRow, look_up_compatibility
from bitbench.planning.estimate import Estimator
from bitbench.planning.readiness import (
    Readiness,
    readiness,
    readiness_environments,
    readiness_packages,
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
from bitbench.util.text import did_you_mean

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
    """Every model × recipe × engine × workload. `resolve` finds the variant on disk, for a model and a recipe's name or
    a checkpoint in its place; `capability` is the least among the GPUs, `level` that of the processor where it is what
    computes; None where there is none or it is unknown."""
    _check_names(study, engines)
    _check_shapes(study)
    _check_environments(study, engines)
    with_model = list(_variants(study, resolve))
    without = Variant(name=NO_MODEL, model=NO_MODEL, recipe=NO_MODEL)
    found = _Verdicts()
    for index, written in enumerate(study.engines):
        engine = engines[written.engine]
        setup = planned_engine_setup(written, engine, index)
        for variant in with_model if engine.needs_model else [without]:
            row = _known(variant, setup, device, capability)
            found.add(study, engine, setup, variant, row=row, index=index)
            if level is not None and not level.has_bf16 and _wants_float32(setup, row):
                found.in_float32.append(Config(variant=variant.name, engine=setup.name))
    used = {config.variant for config in found.configs}
    tried = {point.config for point in found.points}
    started = {*tried, *found.quality}
    plan = Plan(
        study=study,
        variants=tuple(variant for variant in (*with_model, without) if variant.name in used),
        points=tuple(found.points),
        refusals=tuple(found.refusals),
        expectations=tuple(
            expectation for expectation in found.expectations if expectation.config in tried
        ),
        quality=tuple(found.quality),
        quality_refusals=tuple(found.quality_refusals),
        level=level,
        in_float32=tuple(config for config in found.in_float32 if config in started),
    )
    _check_baseline(plan)
    return plan


@dataclass
class _Verdicts:
    """What is tried and what is refused, config by config."""

    points: list[Point] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    expectations: list[Expectation] = field(default_factory=list)
    quality: list[Config] = field(default_factory=list)
    quality_refusals: list[QualityRefusal] = field(default_factory=list)
    in_float32: list[Config] = field(default_factory=list)

    @property
    def configs(self) -> list[Config]:
        speed = [
            asked.config for asked in (*self.points, *(refusal.point for refusal in self.refusals))
        ]
        return [*speed, *self.quality, *(refusal.config for refusal in self.quality_refusals)]

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
        """Judge a variant on an engine, number `index` of the study."""
        config = Config(variant=variant.name, engine=setup.name)
        for workload in study.workloads:
            point = Point(config=config, workload=workload.name)
            reason = (
                row.why if row and row.refuse else _refused(engine, setup, variant, workload, index)
            )
            if reason is None:
                self.points.append(point)
            else:
                self.refusals.append(Refusal(point=point, reason=reason))
        if study.quality is not None:
            reason = _no_quality(study.quality, engine, setup, variant, row, index=index)
            if reason is None:
                self.quality.append(config)
            else:
                self.quality_refusals.append(QualityRefusal(config=config, reason=reason))
        if row and not row.refuse and row.verdict is not Support.RUNS:
            self.expectations.append(Expectation(config=config, verdict=row.verdict, why=row.why))


def _no_quality(
    quality: Quality,
    engine: Engine,
    setup: EngineSetup,
    variant: Variant,
    row: CompatibilityRow | None,
    *,
    index: int,
) -> str | None:
    """Why a config's quality cannot be measured. What is only without speed-up can, also where it is refused."""
    if not engine.needs_model:
        return f"{engine.name} does not run bitbench's variants."
    if variant.facts.random_weights:
        return no_quality_of_random_weights(variant.model)
    if engine.scoring is None:
        return f"The {engine.name} engine returns no log-probabilities, which quality needs."
    if not engine.scoring_reads_cache and setup.has_quantized_cache:
        return f"{engine.name} gives log-probabilities without its KV cache: they do not show what {setup.kv_cache} loses."
    if row is not None and row.refuse and row.verdict is Support.DOES_NOT_RUN:
        return row.why
    longest = Workload(
        name="quality", concurrency=1, input_tokens=quality.context_tokens - 1, output_tokens=1
    )
    return _refused(engine, setup, variant, longest, index)


def no_quality_of_random_weights(model: str) -> str:
    return f"The weights of {model} are random: it is for speed, memory and kernels, and has no quality."


def _refused(
    engine: Engine, setup: EngineSetup, variant: Variant, workload: Workload, index: int
) -> str | None:
    """Why this cannot run; raises where the setup itself is wrong, with its place in the file."""
    try:
        return engine.refuse(setup, variant, workload) or variant.refusal
    except StudyFileError as error:
        raise StudyFileError(str(error), ("engines", index, *error.location)) from error


def _known(
    variant: Variant, setup: EngineSetup, device: Device, capability: Capability | None
) -> CompatibilityRow | None:
    if not variant.form:
        return None
    row = look_up_compatibility(
        variant.form, setup.engine, device, variant.at_load, capability=capability
    )
    if row is None or not row.refuse:
        return row
    if setup.python is not None and row.is_of_a_version and row.verdict is Support.DOES_NOT_RUN:
        return row.model_copy(
            update={"refuse": False}
        )  # another version than the one that failed: it is tried
    return row if row.refuses(setup.args) else None


def _wants_float32(setup: EngineSetup, row: CompatibilityRow | None) -> bool:
    """Return whether it computes in float32 where bf16 is emulated: not where the study names a type."""
    names_type = any(name.lstrip("-") == "dtype" for name in setup.args)
    return row is not None and row.float32_without_bf16 and not names_type


def _variants(study: Study, resolve: Resolve) -> Iterator[Variant]:
    """Each with a name of its own, which is what tells configs apart from here on."""
    found: dict[str, list[Variant]] = {}
    for model in study.models:
        own = found[model] = []
        asked: list[tuple[str | Checkpoint, tuple[str, int]]] = [
            *((recipe, ("recipes", index)) for index, recipe in enumerate(study.recipes)),
            *(
                (other, ("variants", index))
                for index, other in enumerate(study.variants)
                if other.of == model
            ),
        ]
        for wanted, place in asked:
            try:
                variant = resolve(model, wanted)
            except RecipeError as error:
                raise StudyFileError(str(error), place) from error
            if any(other.recipe == variant.recipe for other in own):
                raise StudyFileError(
                    f"two {place[0]} are called {variant.recipe}; give each its own name", place[:1]
                )
            own.append(variant)
    names = _model_names({model: own[0].model_name for model, own in found.items()})
    for model, own in found.items():
        yield from (
            variant.model_copy(update={"name": f"{names[model]}/{variant.recipe}"})
            for variant in own
        )


def _model_names(plain: Mapping[str, str]) -> dict[str, str]:
    """By the study's word for each model: its plain name, or as much of its path as tells it from its namesakes."""
    names = {}
    for model, name in plain.items():
        others = [Path(other).parts for other in plain if plain[other] == name and other != model]
        parts = Path(model).parts
        if parts in others:
            raise StudyFileError(
                f"{model} is in this study twice, spelled differently", ("models",)
            )
        lengths = range(1, max(len(path) for path in (parts, *others)) + 1)
        needed = next(
            length
            for length in lengths
            if parts[-length:] not in [path[-length:] for path in others]
        )
        names[model] = Path(*parts[-needed:]).as_posix() if others else name
    return names


def _check_names(study: Study, engines: Mapping[str, Engine]) -> None:
    needs_model = [setup.name for setup in study.engines if engines[setup.engine].needs_model]
    if needs_model and not study.models:
        raise StudyFileError(
            f"{', '.join(needs_model)} needs a model; add `models: [smollm2-135m]`, a hub id (ORG/NAME) or a folder",
            ("engines",),
        )
    unused = [setup for setup in study.engines if not engines[setup.engine].needs_model]
    if study.models and len(unused) == len(study.engines):
        raise StudyFileError("no engine of this study runs a model; remove `models`", ("models",))


def _check_shapes(study: Study) -> None:
    for index, workload in enumerate(study.workloads):
        if workload.unknown:
            raise StudyFileError(
                f"{workload.name} was imported without {', '.join(workload.unknown)}; it can be reported, not run",
                ("workloads", index),
            )


def _check_environments(study: Study, engines: Mapping[str, Engine]) -> None:
    """Raises StudyFileError where an engine that is not a package in an environment is asked for in another one."""
    for index, setup in enumerate(study.engines):
        if setup.python is None:
            continue
        engine = engines[setup.engine]
        own = engine.own_environment
        if engine.environment is None or (own is not None and not own.is_of_python):
            raise StudyFileError(
                f"{engine.name} is not a package of a Python environment; remove `python`, and measure a server of "
                "your own with the engine `endpoint`",
                ("engines", index, "python"),
            )


def _check_baseline(plan: Plan) -> None:
    wanted = plan.study.baseline
    if wanted is None:
        return
    configs = dict.fromkeys([*plan.configs, *(refusal.point.config for refusal in plan.refusals)])
    matching = [config for config in configs if wanted in (config.name, config.engine)]
    if not matching:
        names = ", ".join(f"`{config.name}`" for config in configs)
        raise StudyFileError(
            f"{wanted!r} is not a config of this study; they are {names}", ("baseline",)
        )
    if len(matching) > 1:
        names = ", ".join(f"`{config.name}`" for config in matching)
        raise StudyFileError(f"{wanted!r} is ambiguous: {names}; give the full name", ("baseline",))


def planned_engine_loads(plan: Plan, setup: EngineSetup) -> tuple[Load, ...]:
    """Return what an instance of this setup will see: its workloads and the questions about its quality."""
    names = dict.fromkeys(
        point.workload for point in plan.points if point.config.engine == setup.name
    )
    workloads = [plan.study.workload(name) for name in names]
    loads = [Load(workload.concurrency, workload.context_tokens) for workload in workloads]
    quality = plan.study.quality
    refused = {refusal.config for refusal in plan.quality_refusals}
    # Not only where this part of the plan asks for quality: all starts of a study have the same options.
    if quality is not None and any(
        config.engine == setup.name and config not in refused for config in plan.configs
    ):
        at_once = max((task.concurrency for task in quality.lm_eval_tasks), default=1)
        loads.append(Load(at_once, quality.context_tokens))
    return tuple(loads)


def planned_engine_setup(setup: EngineSetup, engine: Engine, index: int = 0) -> EngineSetup:
    """The setup, number `index` of its study, as the engine is started with it: the type of its KV cache among the
    arguments. Raises StudyFileError where the engine has no such type, or where the arguments choose one, too."""
    if setup.kv_cache is None:
        return setup
    types = engine.kv_cache_types
    if setup.kv_cache not in types:
        known = (
            f"{did_you_mean(setup.kv_cache, types)}it has {', '.join(types)}"
            if types
            else "remove `kv_cache`"
        )
        raise StudyFileError(
            f"{engine.name} has no KV cache type {setup.kv_cache}; {known}",
            ("engines", index, "kv_cache"),
        )
    chosen = types[setup.kv_cache]
    for name in setup.args:
        if (option := name.lstrip("-").replace("_", "-")) in chosen:
            message = f"`kv_cache` chooses {option} already; keep one of the two"
            raise StudyFileError(message, ("engines", index, "args", name))
    return setup.model_copy(update={"args": {**chosen, **setup.args}})


def plan_study(study: Path | Study | StudySource, at: Workplace) -> Plan:
    """What a study would run, and what not and why. Runs nothing, and needs neither weights nor environments."""
    source = StudySource.of(study)
    return plan_study_source(source, VariantStore(at.home, source.folder), at)


def plan_study_with_readiness(
    study: Path | Study | StudySource, at: Workplace
) -> tuple[Plan, Readiness]:
    """The plan, and what is missing here before it can run."""
    source = StudySource.of(study)
    store = VariantStore(at.home, source.folder)
    plan = plan_study_source(source, store, at)
    return plan, _readiness(plan, store, at)


def ready_plan(
    source: StudySource,
    store: VariantStore,
    at: Workplace,
    observer: Observer,
    part_of: Callable[[Plan], Plan] = lambda plan: plan,
) -> Plan:
    """The plan, or `part_of` it, once its environments exist and its variants were made, or could not be."""
    plan = part_of(plan_study_source(source, store, at))
    _readiness(plan, store, at).require()
    return store.make_missing(plan, observer)


def plan_study_source(
    source: StudySource, store: VariantStore, at: Workplace, target: Capability | None = None
) -> Plan:
    """The points of a study. `target`: of a GPU elsewhere, instead of what this machine has."""
    study = source.study
    try:
        check_input_files(study.workloads, source.folder)
        if study.quality is not None:
            check_quality_files(study.quality, source.folder)
        return plan_study_points(
            study,
            registered_engines_of(study),
            store.variant,
            "cuda" if target else at.device,
            capability=target or at.capability,
            level=None if target else at.level,
        )
    except StudyFileError as error:
        raise source.located(error) from error


def _readiness(plan: Plan, store: VariantStore, at: Workplace) -> Readiness:
    return readiness(
        {*readiness_environments(plan), *store.makers(plan)},
        store.missing_models(plan),
        at.home,
        device=at.device,
        asked_for=at.asked_device,
        packages=readiness_packages(plan),
        making_s=store.making_s(plan),
    )


def estimator_of(plan: Plan, at: Workplace) -> Estimator:
    """How long a plan takes here, before anything was measured."""
    return Estimator(plan, registered_engines_of(plan.study), at.level)


@dataclass(frozen=True)
class Amount:
    """Each pair: at least, and at most where questions stay open."""

    points: int
    starts: tuple[int, int]
    trials: tuple[int, int]
    seconds: tuple[float, float]  # with the time to create variants
    making_s: float = 0.0  # for those that are not created yet


class PlanAnswer(Record):
    """What would run, what not and why; which environments it needs, and about how long it takes."""

    plan: Plan
    environments: dict[str, str | None]  # what is wrong with each; null: it is installed
    missing_models: tuple[str, ...]  # not downloaded; planned from what the catalog knows
    before_run: tuple[str, ...]  # the commands that are needed before `bitbench run`
    amount: Amount


def amount_of(plan: Plan, estimator: Estimator, making_s: float = 0.0) -> Amount:
    measure = plan.study.measure
    configs = len({point.config for point in plan.points})
    once = len(plan.configs) - configs  # only their quality is measured
    points = len(plan.points)
    has_budget = measure.budget is not None
    blocks = (measure.starts.min, measure.starts.max)
    rounds = (
        1 if has_budget else measure.trials.min,
        measure.trials.max if has_budget else measure.trials.min,
    )
    low_s, high_s = estimator.range_s()
    return Amount(
        points=points,
        starts=(configs * blocks[0] + once, configs * blocks[1] + once),
        trials=(points * blocks[0] * rounds[0], points * blocks[1] * rounds[1]),
        seconds=(low_s + making_s, high_s + making_s),
        making_s=making_s,
    )
