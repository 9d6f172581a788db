"""The matrix of a study: configs, workloads, the order of the groups, and the imported files."""

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum

from bitbench.study.base import Record
from bitbench.study.hardware import Level
from bitbench.study.study import Study
from bitbench.study.variant import NO_MODEL, Variant
from bitbench.study.workload import Workload


class ImportedFile(Record):
    """A result file of another tool."""

    name: str  # without its folder
    sha256: str


class ImportSource(Record):
    """The result files of another tool, with notes on all assumptions, changes and omissions."""

    tool: str
    files: tuple[ImportedFile, ...]
    notes: tuple[str, ...] = ()


UNKNOWN_ENGINE = "unknown"  # the engine of an imported file that does not name it


class Config(Record):
    """A variant on an engine: one row of a ranking, and one instance at a time."""

    variant: str
    engine: str

    @property
    def name(self) -> str:
        if self.engine == UNKNOWN_ENGINE:
            return self.variant
        if self.variant == NO_MODEL:
            return self.engine
        return f"{self.variant} @ {self.engine}"


class Point(Record):
    """A config on a workload."""

    config: Config
    workload: str

    @property
    def name(self) -> str:
        return f"{self.config.name} · {self.workload}"


class Refusal(Record):
    """A point that is skipped before anything starts, because it is meaningless or cannot run."""

    point: Point
    reason: str
    was_tried: bool = False  # True if its variant could not be made. The next run tries again.


class QualityRefusal(Record):
    """A config whose quality cannot be measured, as is clear before anything starts."""

    config: Config
    reason: str


class Support(StrEnum):
    """The support of a variant by an engine, as far as it is clear before a trial."""

    RUNS = "runs"
    RUNS_WITHOUT_SPEEDUP = "runs_without_speedup"
    DOES_NOT_RUN = "does_not_run"


class Expectation(Record):
    """A config that is tried although it is expected to fail or to gain nothing."""

    config: Config
    verdict: Support
    why: str


class Member(Record):
    """A config of a group, with the workloads that it runs there."""

    config: Config
    workloads: tuple[Workload, ...]  # empty if only its quality is left to measure


class Group(Record):
    """Configs of a block that start together and take turns, each round in random order.

    A block contains one fresh start of each config. If they do not fit into memory at once, the
    block has several groups. Then each group has a start of the baseline, or each config is a
    group.
    """

    block: int
    members: tuple[Member, ...]
    # trials per member and workload in this block, including trials of an interrupted run
    rounds: int
    baseline: Config | None = None  # has a turn whenever another member has one

    @property
    def name(self) -> str:
        return ", ".join(member.config.name for member in self.members)


def _drop_repeats(configs: Iterable[Config]) -> tuple[Config, ...]:
    return tuple(dict.fromkeys(configs))


class Plan(Record):
    """An expanded study: the points that will run, and the skipped points with their reasons."""

    study: Study
    variants: tuple[Variant, ...]
    points: tuple[Point, ...]
    refusals: tuple[Refusal, ...] = ()
    # set for a plan made from another tool's file, which bitbench neither ran nor can run
    imported_from: ImportSource | None = None
    expectations: tuple[Expectation, ...] = ()
    # configs whose quality is measured, including some whose speed would be meaningless
    quality: tuple[Config, ...] = ()
    quality_refusals: tuple[QualityRefusal, ...] = ()
    # level of the processor that it was planned for, or None if it is unknown or not used
    level: Level | None = None
    # configs that compute in float32: the processor would emulate bf16, and no type was chosen
    in_float32: tuple[Config, ...] = ()

    @property
    def configs(self) -> tuple[Config, ...]:
        """Return all configs that are started."""
        return _drop_repeats([*(point.config for point in self.points), *self.quality])

    @property
    def asked(self) -> tuple[Config, ...]:
        """Return all configs that are started, then the refused configs."""
        return _drop_repeats([*self.configs, *(refusal.point.config for refusal in self.refusals)])

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models. Configs are compared only with configs of the same model."""
        return tuple(dict.fromkeys(map(self._make_model_lookup(), self.asked)))

    @property
    def rounded_before(self) -> dict[str, str]:
        """Return the models whose unquantized layers had already been rounded, and to what."""
        by_model = {variant.model_name: variant.facts.rounded_before for variant in self.variants}
        return {model: rounded for model, rounded in by_model.items() if rounded is not None}

    def select_model(self, model: str) -> "Plan":
        """Return the plan without the configs of other models."""
        model_of = self._make_model_lookup()
        configs = {config for config in self.asked if model_of(config) == model}
        return self.model_copy(update=self._select_parts(configs))

    def only(self, configs: Collection[Config]) -> "Plan":
        """Return the plan without all other configs."""
        names = {config.variant for config in configs}
        variants = [variant for variant in self.variants if variant.name in names]
        expectations = [noted for noted in self.expectations if noted.config in configs]
        refused = [refusal for refusal in self.quality_refusals if refusal.config in configs]
        return self.model_copy(
            update={
                **self._select_parts(configs),
                "variants": tuple(variants),
                "expectations": tuple(expectations),
                "quality_refusals": tuple(refused),
            }
        )

    def _select_parts(self, configs: Collection[Config]) -> dict[str, object]:
        """Return the points, refusals and quality measurements of these configs, by field."""
        points = [point for point in self.points if point.config in configs]
        refusals = [refusal for refusal in self.refusals if refusal.point.config in configs]
        quality = [config for config in self.quality if config in configs]
        return {"points": tuple(points), "refusals": tuple(refusals), "quality": tuple(quality)}

    def _make_model_lookup(self) -> Callable[[Config], str]:
        by_variant = {variant.name: variant.compared_as for variant in self.variants}
        return lambda config: by_variant.get(config.variant, "")

    @property
    def chosen_dtypes(self) -> dict[Config, str]:
        """Return the types chosen because of the processor. The engine or study chose others."""
        return dict.fromkeys(self.in_float32, "float32")

    def variant(self, name: str) -> Variant:
        """Return the variant with this name. It must exist."""
        return next(variant for variant in self.variants if variant.name == name)
