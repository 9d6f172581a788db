"""What drafting tokens ahead gains, by variant: the acceptance and the gain.

The engine counts drafts D and accepted tokens A in each trial. A step that began with a draft gave 1 + A / D tokens:
the acceptance length.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from bitbench.analysis.absolute import mean_interval, sample_of_trials
from bitbench.analysis.intervals import Sample
from bitbench.analysis.pairs import PairTable
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.sequential import PrimaryMetric, pairs_by_workload
from bitbench.analysis.unpaired import unpaired_ratio, unpaired_speed_ratio
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import TrialRecord
from bitbench.study.base import Record
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.workload import Workload


class Speculation(Record):
    """A config that drafts tokens ahead, compared with the same weights and settings without drafts, on one workload.
    None: unknown."""

    config: Config
    plain: Config | None  # None: the study has it only with drafts
    workload: str
    acceptance_length: Estimate | None = None  # tokens of a step that began with a draft
    against_unquantized: Estimate | None = None  # of the acceptance length, under the same settings
    gain: Estimate | None = (
        None  # measured, by the time per output token; above 1 where drafting is faster
    )


class Speculations(Record):
    """Of configs that draft tokens ahead where the same weights run without; never empty."""

    rows: tuple[Speculation, ...]


STEP = PrimaryMetric("tpot_s", higher_is_better=False)
# How arguments about drafts begin, whatever the engine: vLLM's speculative-config, llama.cpp's spec-type and others.
_ABOUT_DRAFTS = ("spec", "draft", "model-draft")
_OFF = ("none", "off", False, 0)


def summarize_speculation(of: StudyRecords) -> Speculations | None:
    """Of every config that drafts where the same weights run without; None where drafting is no axis of a study."""
    families = list(_families(of.plan))
    known = _Known(of)
    rows = tuple(
        known.summary(config, family, workload)
        for workload in of.study.workloads
        for family in families
        for config in family.drafting
        if known.trials(config, workload)
    )
    return Speculations(rows=rows) if rows else None


@dataclass(frozen=True)
class _Family:
    """The same weights with the same settings of one engine, but for drafts."""

    plain: Config | None
    drafting: tuple[Config, ...]


def _families(plan: Plan) -> Iterator[_Family]:
    setups = {setup.name: setup for setup in plan.study.engines}
    alike: dict[tuple[str, str], list[Config]] = {}
    for config in plan.configs:
        if config.engine in setups:
            alike.setdefault((config.variant, _but_for_drafts(setups[config.engine])), []).append(
                config
            )
    for configs in alike.values():
        drafts = {config: _speculation_arguments(setups[config.engine].args) for config in configs}
        names = {name for own in drafts.values() for name in own}
        axis = {name for name in names if len({repr(own.get(name)) for own in drafts.values()}) > 1}
        plain = [
            config
            for config, own in drafts.items()
            if all(own.get(name, False) in _OFF for name in axis)
        ]
        drafting = tuple(config for config in configs if config not in plain)
        if axis and drafting:
            yield _Family(plain[0] if plain else None, drafting)


def _speculation_arguments(args: Mapping[str, Argument]) -> dict[str, Argument]:
    """Under one spelling."""
    spelled = {name.lstrip("-").replace("_", "-"): value for name, value in args.items()}
    return {name: value for name, value in spelled.items() if name.startswith(_ABOUT_DRAFTS)}


def _but_for_drafts(setup: EngineSetup) -> str:
    drafts = _speculation_arguments(setup.args)
    args = {
        name: value
        for name, value in setup.args.items()
        if name.lstrip("-").replace("_", "-") not in drafts
    }
    return setup.model_copy(update={"args": args, "name": setup.engine}).model_dump_json()


def acceptance_length(trial: TrialRecord) -> float | None:
    """Return the tokens of a step that began with a draft; None if the engine counted no drafts."""
    counted = trial.engine_metrics
    if counted is None or not counted.drafts or counted.accepted_tokens is None:
        return None
    return 1 + counted.accepted_tokens / counted.drafts


class _Known:
    """The trials that count, and what follows from them."""

    def __init__(self, of: StudyRecords) -> None:
        self._plan = of.plan
        self._all = [trial for trial in of.trials if trial.counts]
        self._trials: dict[Point, list[TrialRecord]] = {}
        for trial in self._all:
            self._trials.setdefault(trial.point, []).append(trial)
        self._confidence = of.study.measure.confidence

    def trials(self, config: Config, workload: Workload) -> list[TrialRecord]:
        return self._trials.get(Point(config=config, workload=workload.name), [])

    def summary(self, config: Config, family: _Family, workload: Workload) -> Speculation:
        length = self._length(config, workload)
        return Speculation(
            config=config,
            plain=family.plain,
            workload=workload.name,
            acceptance_length=mean_interval(length, self._confidence) if length else None,
            against_unquantized=self._against_unquantized(config, workload),
            gain=self._gain(config, family.plain, workload),
        )

    def _gain(self, config: Config, plain: Config | None, workload: Workload) -> Estimate | None:
        """By the time of a token: from blocks where both ran, else from their means."""
        if plain is None:
            return None
        table = self._pairs.get(workload.name)
        if table is not None and (pair := table.between(config, plain)) is not None:
            return pair.ratio(self._confidence)
        own, other = self._step(config, workload), self._step(plain, workload)
        return unpaired_speed_ratio(own, other, self._confidence, higher_is_better=False)

    @cached_property
    def _pairs(self) -> Mapping[str, PairTable]:
        return pairs_by_workload(self._all, STEP, None)

    def _against_unquantized(self, config: Config, workload: Workload) -> Estimate | None:
        """Of the acceptance length, under the same settings; None of what is not quantized."""
        variant = self._plan.variant(config.variant)
        if variant.is_dense:
            return None
        same = (
            dense
            for dense in self._plan.variants
            if dense.is_dense and dense.model == variant.model
        )
        others = (
            self._length(Config(variant=dense.name, engine=config.engine), workload)
            for dense in same
        )
        own, other = (
            self._length(config, workload),
            next((length for length in others if length is not None), None),
        )
        return (
            unpaired_ratio(own, other, self._confidence)
            if own is not None and other is not None
            else None
        )

    def _step(self, config: Config, workload: Workload) -> Sample | None:
        return self._sample(config, workload, lambda trial: trial.metrics.tpot_s)

    def _length(self, config: Config, workload: Workload) -> Sample | None:
        return self._sample(config, workload, acceptance_length)

    def _sample(
        self, config: Config, workload: Workload, figure: Callable[[TrialRecord], float | None]
    ) -> Sample | None:
        known = [
            (trial, value)
            for trial in self.trials(config, workload)
            if (value := figure(trial)) is not None
        ]
        return sample_of_trials(known)
