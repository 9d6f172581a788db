"""`bitbench tune`: a race among the configs of a study, then a fresh study of its best against the baseline."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from bitbench.analysis.elapsed import block_ends
from bitbench.analysis.quality import quality_baseline
from bitbench.analysis.recommend import recommend
from bitbench.analysis.results.estimate import Estimate, Verdict
from bitbench.analysis.results.recommendation import QUALITY_LOSS, Judged, Limits
from bitbench.analysis.results.summary import MetricDefinition, StudySummary
from bitbench.analysis.sequential import (
    PrimaryMetric,
    baseline_of,
    pairs_by_workload,
    primary_metric_of,
)
from bitbench.analysis.summarize import summarize
from bitbench.api.recommend import recommended_deployment
from bitbench.features.tune.confirmation import ConfirmationPlanner
from bitbench.features.tune.race import Race, race_of
from bitbench.features.tune.types import Confirmed, Fate, Tried, Tune, Tuning
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import estimator_of, plan_study
from bitbench.ports import Observer
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.reports.document.words import plural
from bitbench.reports.write import StudyReport
from bitbench.running import runner
from bitbench.running.block_planner import STOP_S, TOUCH_S
from bitbench.running.runner import StudyPart
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import FEWEST_BLOCKS, Study
from bitbench.study.study_file import StudySource
from bitbench.util.errors import StudyFileError, UsageError
from bitbench.util.units import show_duration

CONFIRMATION_SHARE = 0.3  # of the budget, for measuring the best against the baseline anew
_FATES = list(Fate)


def tune_search_source(file: Path, budget_s: float | None = None) -> StudySource:
    """The file, checked for what a search needs beyond a study."""
    source = StudySource.of(file).with_budget(budget_s)
    if source.study.section(Tune) is None:
        raise source.located(
            StudyFileError("a search needs a section `tune`; `tune: {}` takes the defaults")
        )
    if source.study.measure.budget is None:
        raise UsageError(
            "a search needs a budget: --budget 30m, or `measure: {budget: 30m}` in the file"
        )
    return source


def tune(source: StudySource, into: Path | None, observer: Observer, at: Workplace) -> Tuning:
    """Search, then confirm; the same call again continues where it was interrupted. Fills two study folders, `search`
    and `confirmation`, in `into`, by default ./NAME of the study."""
    return _TuneRun(source, into or Path(source.study.name), observer, at).answer()


@dataclass(frozen=True)
class _Searched:
    """The search as its records tell it."""

    records: StudyRecords
    judged: Mapping[Config, Judged]
    race: Race
    primary_metric: PrimaryMetric


@dataclass(frozen=True)
class _TuneRun:
    source: StudySource
    place: Path
    observer: Observer
    at: Workplace

    @property
    def _study(self) -> Study:
        return self.source.study

    @property
    def _tune(self) -> Tune:
        section = self._study.section(Tune)
        assert section is not None, "tune_source has looked"
        return section

    @property
    def _budget_s(self) -> float:
        assert self._study.measure.budget is not None
        return self._study.measure.budget

    @property
    def _limits(self) -> Limits:
        return Limits(
            objectives=self._study.objectives,
            memory_bytes=self._tune.max_memory,
            quality_loss=self._tune.max_quality_loss,
        )

    def answer(self) -> Tuning:
        plan = plan_study(self.source, self.at)
        if len({point.config for point in plan.points}) < 2:
            raise UsageError(
                "there is nothing to search: of the file's configs fewer than two can run here"
            )
        baseline = _require_baseline(plan)
        self._warn_of_unknown_quality(plan)
        self._warn_of_short_budget(plan)
        measure = self._study.measure.with_budget((1 - CONFIRMATION_SHARE) * self._budget_s)
        source = replace(self.source, study=self._study.model_copy(update={"measure": measure}))
        part = StudyPart(self._scored_once, self._going_on)
        folder = runner.measure_study(
            source, self.place / "search", self.observer, self.at, part=part
        )
        StudyReport(folder, self.at.home).write()
        found = self._searched(folder.read())
        chosen, took_s = found.race.leader, _elapsed_s(found.records)
        confirmed = None
        if chosen is not None and chosen != baseline:
            fresh = self._confirm(found, chosen, baseline)
            confirmed = self._confirmed(fresh, found, chosen, baseline)
            took_s += _elapsed_s(fresh.read())
        return Tuning(
            name=self._study.name,
            primary_metric=MetricDefinition.of(
                next(
                    metric
                    for metric in METRICS.values()
                    if metric.column == found.primary_metric.metric
                )
            ),
            limits=self._limits,
            workload=self._study.workloads[0].name,
            baseline=baseline,
            tried=tuple(_tried(found, baseline)),
            refused=found.records.plan.refusals,
            end=found.race.end,
            chosen=chosen,
            shortfall=found.race.shortfall,
            confidence=self._study.measure.confidence,
            confirmed=confirmed,
            deploy=()
            if chosen is None
            else recommended_deployment(found.records, chosen, self.at.home),
            search_folder=str(folder.path),
            budget_s=self._budget_s,
            took_s=took_s,
        )

    def _warn_of_unknown_quality(self, plan: Plan) -> None:
        if self._tune.max_quality_loss is None:
            return
        alone = [
            config
            for config in plan.quality
            if config != baseline_of(plan) and quality_baseline(config, plan) is None
        ]
        engines = dict.fromkeys(plan.study.engine(config.engine).engine for config in alone)
        if engines:
            self.observer.warn(
                f"no config on {', '.join(engines)} can meet max_quality_loss, since the study has no unquantized "
                "variant there to compare with; add the recipe bf16, or gguf-bf16 for llama.cpp"
            )

    def _warn_of_short_budget(self, plan: Plan) -> None:
        """Warn if it does not pay for the fewest starts of every config, each with a warm-up and a round."""
        estimator, needed_s = estimator_of(plan, self.at), 0.0
        for point in plan.points:
            load_s = estimator.warm_up_s(point) + estimator.trial_s(point) + TOUCH_S
            needed_s += FEWEST_BLOCKS * (estimator.start_s(point.config.engine) + STOP_S + load_s)
        if needed_s > (1 - CONFIRMATION_SHARE) * self._budget_s:
            self.observer.warn(
                f"{FEWEST_BLOCKS} starts of each config take about {show_duration(needed_s)}, more than a search with "
                "this budget has; raise it, or write fewer settings into the file"
            )

    def _scored_once(self, plan: Plan) -> Plan:
        """Return the plan with the quality of one setup for each variant, engine and KV cache."""
        timed = {point.config for point in plan.points}
        spoken_for = {_scored_as(config, plan) for config in plan.quality if config in timed}
        baselines = {quality_baseline(config, plan) for config in spoken_for} - {None}
        return _part_of(plan, timed, spoken_for | baselines)

    def _going_on(self, folder: StudyFolder, blocks: int) -> frozenset[Point]:
        records = folder.read()
        seen = replace(
            records,
            trials=[trial for trial in records.trials if trial.block < blocks],
            instances=[instance for instance in records.instances if instance.block < blocks],
        )
        found = self._searched(seen).race
        if found.end is not None:
            return frozenset()
        left = set(found.left)
        self.observer.note(f"{len(left)} of {len(seen.plan.configs)} configs may be the best")
        return frozenset(point for point in seen.plan.points if point.config in left)

    def _searched(self, records: StudyRecords) -> _Searched:
        summary = summarize(records)
        known = {row.config: row for row in summary.quality}
        shared = [
            known[scored].model_copy(update={"config": point.config})
            for point in records.plan.points
            if point.config not in known
            and (scored := _scored_as(point.config, records.plan)) in known
        ]
        summary = summary.model_copy(update={"quality": (*summary.quality, *shared)})
        judged = {entry.config: entry for entry in _judged(summary, self._limits)}
        primary_metric = primary_metric_of(records.plan)
        race = race_of(records, judged.values(), primary_metric, self._tune.within)
        return _Searched(records, judged, race, primary_metric)

    def _confirm(self, found: _Searched, chosen: Config, baseline: Config) -> StudyFolder:
        """In a folder of its own; one that has confirmed another choice stays as it is."""
        both = {chosen, baseline}
        for number in count(1):
            folder = StudyFolder(
                self.place / ("confirmation" if number == 1 else f"confirmation-{number}")
            )
            lock = folder.lock()
            if lock is None or {point.config for point in lock.plan.points} == both:
                break
        if lock is None:
            measure, quality = self._planner(found, chosen, baseline).plan()
        else:  # one that is under way, or complete, stays as it was planned
            measure, quality = lock.plan.study.measure, lock.plan.study.quality
        study = self._study.model_copy(
            update={
                **dict.fromkeys(self._study.sections),
                "quality": quality,
                "baseline": baseline.name,
                "measure": measure,
            }
        )
        self.observer.note(
            f"confirming {chosen.name}: {plural(measure.starts.min, 'start')} beside the baseline"
        )
        part = StudyPart(
            lambda plan: _part_of(plan, both, {chosen, quality_baseline(chosen, plan)})
        )
        source = StudySource.of(study, self.source.folder)
        runner.measure_study(source, folder.path, self.observer, self.at, part=part)
        StudyReport(folder, self.at.home).write()
        return folder

    def _planner(self, found: _Searched, chosen: Config, baseline: Config) -> ConfirmationPlanner:
        estimator = estimator_of(found.records.plan, self.at)
        for instance in found.records.instances:
            estimator.add(instance)
        for trial in found.records.trials:
            estimator.add(trial)
        left_s = self._budget_s - _elapsed_s(found.records)
        scored_as = _scored_as(chosen, found.records.plan)
        return ConfirmationPlanner(
            self._study, found.records, estimator, chosen, scored_as, baseline, left_s
        )

    def _confirmed(
        self, folder: StudyFolder, found: _Searched, chosen: Config, baseline: Config
    ) -> Confirmed:
        records = folder.read()
        summary = summarize(records)
        scored = records.plan.quality
        limits = self._limits if scored else self._limits.model_copy(update={"quality_loss": None})
        best = next(entry for entry in _judged(summary, limits) if entry.config == chosen)
        kept = () if scored else found.judged[chosen].findings
        ratio = _ratio(records, found.primary_metric, chosen, baseline)
        return Confirmed(
            folder=str(folder.path),
            starts=records.study.measure.starts.min,
            rounds=records.study.measure.trials.min,
            ratio=ratio,
            is_gain=ratio is not None and ratio.is_above(1),
            figure=best.figure,
            findings=(
                *best.findings,
                *(finding for finding in kept if finding.name == QUALITY_LOSS),
            ),
            windows=next((row.windows for row in summary.quality if row.config == chosen), None)
            or None,
        )


def _require_baseline(plan: Plan) -> Config:
    """What the winner is to be compared with; raises UsageError where it cannot run."""
    baseline = baseline_of(plan)
    assert baseline is not None  # the plan was checked
    if all(point.config != baseline for point in plan.points):
        reasons = [refusal.reason for refusal in plan.refusals if refusal.point.config == baseline]
        raise UsageError(
            f"the baseline {baseline.name} cannot run here: {'; '.join(reasons)} Name another one."
        )
    return baseline


def _scored_as(config: Config, plan: Plan) -> Config:
    """Return whose quality stands for a config's in the search: the first with its variant, engine and KV cache."""

    def kind(config: Config) -> tuple[str, str, str | None]:
        setup = plan.study.engine(config.engine)
        return config.variant, setup.engine, setup.kv_cache

    return next((other for other in plan.quality if kind(other) == kind(config)), config)


def _part_of(plan: Plan, timed: Collection[Config], scored: Collection[Config | None]) -> Plan:
    """The plan with the speed of some configs and the quality of others; what was refused stays, with its reason."""
    refused = {refusal.point.config for refusal in plan.refusals}
    wanted = {config for config in plan.configs if config in timed or config in scored}
    part = plan.only(wanted | refused)
    return part.model_copy(
        update={
            "points": tuple(point for point in part.points if point.config in timed),
            "quality": tuple(config for config in part.quality if config in scored),
        }
    )


def _judged(summary: StudySummary, limits: Limits) -> tuple[Judged, ...]:
    return recommend(summary, limits).choices[0].judged


def _elapsed_s(records: StudyRecords) -> float:
    return max(block_ends(records.trials, records.starts_and_quality).values(), default=0.0)


def _tried(found: _Searched, baseline: Config) -> list[Tried]:
    """By what became of them, then the best first."""
    records, metric = found.records, found.primary_metric
    blocks = {(trial.point.config, trial.block) for trial in records.trials if trial.counts}
    starts = Counter(config for config, _ in blocks)
    tried = []
    for config in dict.fromkeys(point.config for point in records.plan.points):
        judged = found.judged[config]
        tried.append(
            Tried(
                config=config,
                fate=_fate(found.race, judged),
                starts=starts[config],
                figure=judged.figure,
                ratio_to_baseline=None
                if config == baseline
                else _ratio(records, metric, config, baseline),
                findings=judged.findings,
                reason=_reason(judged),
            )
        )
    best_first = -1 if metric.higher_is_better else 1
    return sorted(
        tried,
        key=lambda entry: (
            _FATES.index(entry.fate),
            best_first * (entry.figure.value if entry.figure else 0.0),
        ),
    )


def _ratio(
    records: StudyRecords, metric: PrimaryMetric, config: Config, other: Config
) -> Estimate | None:
    """Above 1 where `config` is better."""
    for table in pairs_by_workload(records.trials, metric, baseline_of(records.plan)).values():
        if pair := table.between(config, other):
            return pair.ratio(records.study.measure.confidence)
    return None


def _fate(race: Race, judged: Judged) -> Fate:
    if judged.figure is None:
        return Fate.NO_RESULT
    if judged.config == race.leader:
        return Fate.BEST
    if judged.failed_trials or judged.verdict is Verdict.MISSED:
        return Fate.RULED_OUT
    return Fate.LEFT if judged.config in race.left else Fate.BEATEN


def _reason(judged: Judged) -> str:
    if judged.figure is None:
        return judged.why_no_result
    return (
        f"{judged.failed_trials} of its {judged.trials} trials failed"
        if judged.failed_trials
        else ""
    )
