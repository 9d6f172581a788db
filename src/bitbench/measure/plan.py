"""What a study would run here, how much that is, and what is missing before it can."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bitbench.engines.registry import engines_of
from bitbench.loadgen.inputs import check_files
from bitbench.measure.estimate import Estimator
from bitbench.measure.expand import expand
from bitbench.measure.readiness import Readiness, environments_of, packages_of, readiness
from bitbench.measure.variants import VariantStore
from bitbench.measure.workplace import Workplace
from bitbench.ports import Observer
from bitbench.quality.files import check_quality_files
from bitbench.study.base import Record
from bitbench.study.capability import Capability
from bitbench.study.plan import Plan
from bitbench.study.source import StudySource
from bitbench.study.study import Study
from bitbench.util.errors import StudyFileError


def plan_study(study: Path | Study | StudySource, at: Workplace) -> Plan:
    """What a study would run, and what not and why. Runs nothing, and needs neither weights nor environments."""
    source = StudySource.of(study)
    return expand_source(source, VariantStore(at.home, source.folder), at)


def look_ahead(study: Path | Study | StudySource, at: Workplace) -> tuple[Plan, Readiness]:
    """The plan, and what is missing here before it can run."""
    source = StudySource.of(study)
    store = VariantStore(at.home, source.folder)
    plan = expand_source(source, store, at)
    return plan, _readiness(plan, store, at)


def ready_plan(
    source: StudySource,
    store: VariantStore,
    at: Workplace,
    observer: Observer,
    part_of: Callable[[Plan], Plan] = lambda plan: plan,
) -> Plan:
    """The plan, or `part_of` it, once its environments exist and its variants were made, or could not be."""
    plan = part_of(expand_source(source, store, at))
    _readiness(plan, store, at).require()
    return store.make_missing(plan, observer)


def expand_source(source: StudySource, store: VariantStore, at: Workplace, target: Capability | None = None) -> Plan:
    """The points of a study. `target`: of a GPU elsewhere, instead of what this machine has."""
    study = source.study
    try:
        check_files(study.workloads, source.folder)
        if study.quality is not None:
            check_quality_files(study.quality, source.folder)
        return expand(
            study,
            engines_of(study),
            store.variant,
            "cuda" if target else at.device,
            capability=target or at.capability,
            level=None if target else at.level,
        )
    except StudyFileError as error:
        raise source.located(error) from error


def _readiness(plan: Plan, store: VariantStore, at: Workplace) -> Readiness:
    return readiness(
        {*environments_of(plan), *store.makers(plan)},
        store.missing_models(plan),
        at.home,
        device=at.device,
        asked_for=at.asked_device,
        packages=packages_of(plan),
        making_s=store.making_s(plan),
    )


def estimator_of(plan: Plan, at: Workplace) -> Estimator:
    """How long a plan takes here, before anything was measured."""
    return Estimator(plan, engines_of(plan.study), at.level)


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
    rounds = (1 if has_budget else measure.trials.min, measure.trials.max if has_budget else measure.trials.min)
    low_s, high_s = estimator.range_s()
    return Amount(
        points=points,
        starts=(configs * blocks[0] + once, configs * blocks[1] + once),
        trials=(points * blocks[0] * rounds[0], points * blocks[1] * rounds[1]),
        seconds=(low_s + making_s, high_s + making_s),
        making_s=making_s,
    )
