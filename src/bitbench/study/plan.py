"""The matrix of a study: who is compared (configs), on what (workloads), in which order (groups), and which files it
was imported from."""

from collections.abc import Callable, Collection
from enum import StrEnum

from bitbench.study.base import Record
from bitbench.study.hardware import Level
from bitbench.study.study import Study
from bitbench.study.variant import NO_MODEL, Variant
from bitbench.study.workload import Workload


class ImportedFile(Record):
    name: str  # without its folder
    sha256: str


class ImportSource(Record):
    """Another tool's result files, and everything that was assumed, changed or left out on the way."""

    tool: str
    files: tuple[ImportedFile, ...]
    notes: tuple[str, ...] = ()


UNKNOWN_ENGINE = "unknown"  # an imported file that does not say what ran it


class Config(Record):
    """A variant on an engine: one row of a ranking, and what one instance runs."""

    variant: str
    engine: str

    @property
    def name(self) -> str:
        if self.engine == UNKNOWN_ENGINE:
            return self.variant
        return self.engine if self.variant == NO_MODEL else f"{self.variant} @ {self.engine}"


class Point(Record):
    config: Config
    workload: str

    @property
    def name(self) -> str:
        return f"{self.config.name} · {self.workload}"


class Refusal(Record):
    """A point that would be meaningless or cannot run, known before anything is started."""

    point: Point
    reason: str
    was_tried: bool = False  # its variant could not be made; the next run of the study tries again


class QualityRefusal(Record):
    """A config whose quality cannot be measured, known before anything is started."""

    config: Config
    reason: str


class Support(StrEnum):
    """What is known about a variant on an engine before it is tried."""

    RUNS = "runs"
    RUNS_WITHOUT_SPEEDUP = "runs_without_speedup"
    DOES_NOT_RUN = "does_not_run"


class Expectation(Record):
    """A config that is tried although it is known not to run, or not to gain anything, and why."""

    config: Config
    verdict: Support
    why: str


class Member(Record):
    """A config of a group, and what it is asked there."""

    config: Config
    workloads: tuple[Workload, ...]  # empty where only its quality is left to measure


class Group(Record):
    """Configs of a block that are started together and take turns: one round after the other, in random order.

    A block holds one fresh start of each config. Where they do not fit into memory at once, it has several groups, each
    with a start of the baseline; or each config is a group of its own.
    """

    block: int
    members: tuple[Member, ...]
    rounds: int  # trials of each workload that a member has in this block, those of an interrupted run included
    baseline: Config | None = None  # has a turn wherever another member has one

    @property
    def name(self) -> str:
        return ", ".join(member.config.name for member in self.members)


class Plan(Record):
    """A study, expanded: what will run, and what will not and why."""

    study: Study
    variants: tuple[Variant, ...]
    points: tuple[Point, ...]
    refusals: tuple[Refusal, ...] = ()
    imported_from: ImportSource | None = (
        None  # not run by bitbench, and not to be run: made from another tool's file
    )
    expectations: tuple[Expectation, ...] = ()
    quality: tuple[
        Config, ...
    ] = ()  # whose quality is measured: also of some whose speed would mean nothing
    quality_refusals: tuple[QualityRefusal, ...] = ()
    level: Level | None = (
        None  # of the processor that it was planned for; None: not known, or not computed on
    )
    in_float32: tuple[
        Config, ...
    ] = ()  # since this processor would emulate bf16, and the study names no type

    @property
    def configs(self) -> tuple[Config, ...]:
        """All that are started."""
        return tuple(dict.fromkeys([*(point.config for point in self.points), *self.quality]))

    @property
    def asked(self) -> tuple[Config, ...]:
        """All that are started, then those that were refused."""
        return tuple(
            dict.fromkeys([*self.configs, *(refusal.point.config for refusal in self.refusals)])
        )

    @property
    def models(self) -> tuple[str, ...]:
        """Whose configs are compared with each other, and with no other model's."""
        return tuple(dict.fromkeys(map(self._model_of(), self.asked)))

    @property
    def rounded_before(self) -> dict[str, str]:
        """Models whose unquantized layers had been rounded already, and to what."""
        known = {variant.model_name: variant.facts.rounded_before for variant in self.variants}
        return {model: rounded for model, rounded in known.items() if rounded is not None}

    def of_model(self, model: str) -> "Plan":
        """The same without the configs of other models."""
        model_of = self._model_of()
        return self.model_copy(update=self._asked_of(lambda config: model_of(config) == model))

    def only(self, configs: Collection[Config]) -> "Plan":
        """The same without all other configs."""
        variants = {config.variant for config in configs}
        return self.model_copy(
            update={
                **self._asked_of(configs.__contains__),
                "variants": tuple(variant for variant in self.variants if variant.name in variants),
                "expectations": tuple(
                    noted for noted in self.expectations if noted.config in configs
                ),
                "quality_refusals": tuple(
                    refusal for refusal in self.quality_refusals if refusal.config in configs
                ),
            }
        )

    def _asked_of(self, is_wanted: Callable[[Config], bool]) -> dict[str, object]:
        return {
            "points": tuple(point for point in self.points if is_wanted(point.config)),
            "refusals": tuple(
                refusal for refusal in self.refusals if is_wanted(refusal.point.config)
            ),
            "quality": tuple(config for config in self.quality if is_wanted(config)),
        }

    def _model_of(self) -> Callable[[Config], str]:
        known = {variant.name: variant.compared_as for variant in self.variants}
        return lambda config: known.get(config.variant, "")

    @property
    def chosen_dtypes(self) -> dict[Config, str]:
        """What configs compute in because of the processor; of others the engine's default or the study decides."""
        return dict.fromkeys(self.in_float32, "float32")

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)
