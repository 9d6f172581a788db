"""The acceptance and the gain of drafting tokens ahead, by variant.

The engine counts drafts D and accepted tokens A in each trial. A step that began with a draft
produced 1 + A / D tokens on average: the acceptance length.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bitbench.analysis.absolute import estimate_mean, summarize_trials
from bitbench.analysis.intervals import Sample
from bitbench.analysis.pairs import PairTable
from bitbench.analysis.results.estimate import Estimate
from bitbench.analysis.sequential import PrimaryMetric, collect_pairs_by_workload
from bitbench.analysis.unpaired import estimate_unpaired_ratio, estimate_unpaired_speed_ratio
from bitbench.records.folder import StudyRecords
from bitbench.records.trial import TrialRecord
from bitbench.study.base import Record
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.workload import Workload


class Speculation(Record):
    """A config that drafts tokens ahead, compared with the same config without drafts.

    It is for one workload. Unknown values are None.
    """

    config: Config
    plain: Config | None  # None: the study has it only with drafts
    workload: str
    acceptance_length: Estimate | None = None  # tokens of a step that began with a draft
    against_unquantized: Estimate | None = None  # of the acceptance length, under the same settings
    gain: Estimate | None = None  # of the time per output token: above 1, drafting is faster


class Speculations(Record):
    """The configs that draft tokens ahead in a study that varies drafting, at least one."""

    rows: tuple[Speculation, ...]


STEP = PrimaryMetric("tpot_s", higher_is_better=False)
# The beginnings of arguments about drafts, in any engine: vLLM's speculative-config, llama.cpp's
# spec-type and others.
_ABOUT_DRAFTS = ("spec", "draft", "model-draft")
_OFF = ("none", "off", False, 0)


def summarize_speculation(records: StudyRecords) -> Speculations | None:
    """Return the configs that draft tokens ahead, or None if the study does not vary drafting."""
    families = list(_iter_families(records.plan))
    trials = _Known(records)
    rows = []
    for workload in records.study.workloads:
        for family in families:
            for config in family.drafting:
                if trials.trials(config, workload):
                    rows.append(trials.summary(config, family, workload))
    return Speculations(rows=tuple(rows)) if rows else None


@dataclass(frozen=True)
class _Family:
    """The configs with the same weights and engine settings, except for drafts."""

    plain: Config | None
    drafting: tuple[Config, ...]


def _iter_families(plan: Plan) -> Iterator[_Family]:
    """Yield the groups of configs that differ in drafts only, with at least one that drafts."""
    setups = {setup.name: setup for setup in plan.study.engines}
    groups: dict[tuple[str, str], dict[Config, dict[str, Argument]]] = {}
    for config in plan.configs:
        if config.engine in setups:
            setup = setups[config.engine]
            group = groups.setdefault((config.variant, _format_without_drafts(setup)), {})
            group[config] = _collect_draft_arguments(setup.args)
    for group in groups.values():
        varied = _list_varied_arguments(list(group.values()))
        plain = []
        drafting = []
        for config, arguments in group.items():
            if all(arguments.get(name, False) in _OFF for name in varied):
                plain.append(config)
            else:
                drafting.append(config)
        if varied and drafting:
            yield _Family(next(iter(plain), None), tuple(drafting))


def _list_varied_arguments(settings: Sequence[Mapping[str, Argument]]) -> set[str]:
    """Return the names of arguments that do not have the same value in all settings."""
    names = set(itertools.chain.from_iterable(settings))
    varied = set()
    for name in names:
        values = {repr(arguments.get(name)) for arguments in settings}
        if len(values) > 1:
            varied.add(name)
    return varied


def _normalize_name(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _collect_draft_arguments(args: Mapping[str, Argument]) -> dict[str, Argument]:
    """Return the arguments about drafts, by normalized name."""
    arguments = {_normalize_name(name): value for name, value in args.items()}
    return {name: value for name, value in arguments.items() if name.startswith(_ABOUT_DRAFTS)}


def _format_without_drafts(setup: EngineSetup) -> str:
    """Return a setup without its name and its arguments about drafts, as JSON."""
    args = {}
    for name, value in setup.args.items():
        if not _normalize_name(name).startswith(_ABOUT_DRAFTS):
            args[name] = value
    return setup.model_copy(update={"args": args, "name": setup.engine}).model_dump_json()


def acceptance_length(trial: TrialRecord) -> float | None:
    """Return the tokens of a step that began with a draft, or None if no drafts were counted."""
    metrics = trial.engine_metrics
    if metrics is None or not metrics.drafts or metrics.accepted_tokens is None:
        return None
    return 1 + metrics.accepted_tokens / metrics.drafts


class _Known:
    """The trials of a study that count, and the estimates from them."""

    def __init__(self, records: StudyRecords) -> None:
        self._plan = records.plan
        self._all = [trial for trial in records.trials if trial.counts]
        self._trials: dict[Point, list[TrialRecord]] = {}
        for trial in self._all:
            self._trials.setdefault(trial.point, []).append(trial)
        self._confidence = records.study.measure.confidence

    def trials(self, config: Config, workload: Workload) -> list[TrialRecord]:
        return self._trials.get(Point(config=config, workload=workload.name), [])

    def summary(self, config: Config, family: _Family, workload: Workload) -> Speculation:
        length = self._find_length_sample(config, workload)
        mean_length = estimate_mean(length, self._confidence) if length else None
        return Speculation(
            config=config,
            plain=family.plain,
            workload=workload.name,
            acceptance_length=mean_length,
            against_unquantized=self._compare_to_unquantized(config, workload),
            gain=self._estimate_gain(config, family.plain, workload),
        )

    def _estimate_gain(
        self, config: Config, plain: Config | None, workload: Workload
    ) -> Estimate | None:
        """Return the speed-up of drafting, in time per output token.

        It comes from the blocks in which both ran, or else from their means.
        """
        if plain is None:
            return None
        table = self._pairs.get(workload.name)
        pair = table.between(config, plain) if table is not None else None
        if pair is not None:
            return pair.ratio(self._confidence)
        return estimate_unpaired_speed_ratio(
            self._find_step_sample(config, workload),
            self._find_step_sample(plain, workload),
            self._confidence,
            higher_is_better=False,
        )

    @cached_property
    def _pairs(self) -> Mapping[str, PairTable]:
        return collect_pairs_by_workload(self._all, STEP, None)

    def _compare_to_unquantized(self, config: Config, workload: Workload) -> Estimate | None:
        """Return the acceptance length / the unquantized model's under the same settings.

        Return None if the config is not quantized, or if one of the two is unknown.
        """
        variant = self._plan.variant(config.variant)
        length = self._find_length_sample(config, workload)
        if variant.is_dense or length is None:
            return None
        for dense in self._plan.variants:
            if dense.is_dense and dense.model == variant.model:
                unquantized = Config(variant=dense.name, engine=config.engine)
                dense_length = self._find_length_sample(unquantized, workload)
                if dense_length is not None:
                    return estimate_unpaired_ratio(length, dense_length, self._confidence)
        return None

    def _find_step_sample(self, config: Config, workload: Workload) -> Sample | None:
        return self._sample(config, workload, lambda trial: trial.metrics.tpot_s)

    def _find_length_sample(self, config: Config, workload: Workload) -> Sample | None:
        return self._sample(config, workload, acceptance_length)

    def _sample(
        self, config: Config, workload: Workload, metric: Callable[[TrialRecord], float | None]
    ) -> Sample | None:
        values = []
        for trial in self.trials(config, workload):
            value = metric(trial)
            if value is not None:
                values.append((trial, value))
        return summarize_trials(values)
