"""`bitbench tune`: a race among the configs of a study, then a fresh study of its best against the baseline."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from bitbench.analysis.elapsed import block_ends
from bitbench.analysis.pairs import PairTable
from bitbench.analysis.quality import quality_baseline
from bitbench.analysis.recommend import MEMORIES, recommend
from bitbench.analysis.results.estimate import Estimate, Verdict
from bitbench.analysis.results.recommendation import QUALITY_LOSS, Judged, Limits
from bitbench.analysis.results.summary import MetricDefinition, StudySummary
from bitbench.analysis.sequential import PrimaryMetric, baseline_of, pairs_by_workload, primary_metric_of
from bitbench.analysis.summarize import summarize
from bitbench.api.recommend import recommended_deployment
from bitbench.features.tune.confirmation import ConfirmationPlan, ConfirmationPlanner
from bitbench.features.tune.race import Race, draw_race_configs, race_of
from bitbench.features.tune.types import Confirmed, Fate, Goal, Tried, Tune, Tuning
from bitbench.measure import runner
from bitbench.measure.budget import STOP_S, TOUCH_S
from bitbench.measure.plan import estimator_of, plan_study
from bitbench.measure.runner import StudyPart
from bitbench.measure.workplace import Workplace
from bitbench.ports import Observer
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.reports.document.words import plural
from bitbench.reports.write import StudyReport
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import FEWEST_BLOCKS, Study
from bitbench.study.study_file import StudySource
from bitbench.util.errors import StudyFileError, UsageError

SCREENINGS = FEWEST_BLOCKS  # of every config before one may be dropped
_FATES = list(Fate)


def tune_search_source(file: Path, budget_s: float | None = None) -> StudySource:
    """The file, checked for what a search needs beyond a study."""
    source = StudySource.of(file).with_budget(budget_s)
    if source.study.section(Tune) is None:
        raise source.located(StudyFileError("a search needs a section `tune`; `tune: {}` takes the defaults"))
    if source.study.measure.budget is None:
        raise UsageError("a search needs a budget: --budget 30m, or `measure: {budget: 30m}` in the file")
    return source


def tune(source: StudySource, into: Path | None, observer: Observer, at: Workplace) -> Tuning:
    """Search, then confirm; the same call again continues where it was interrupted. Fills two study folders, `search`
    and `confirmation`, in `into`, by default ./NAME of the study."""
    return _TuneRun(source, into or Path(source.study.name), observer, at).answer()


@dataclass(frozen=True)
class _Searched:
    """The search as its records tell it."""

    records: StudyRecords
    summary: StudySummary
    judged: Mapping[Config, Judged]
    race: Race
    primary_metric: PrimaryMetric

    @property
    def plan(self) -> Plan:
        return self.records.plan

    @property
    def table(self) -> PairTable | None:
        return _table(self.records, self.primary_metric)


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
        space = {point.config for point in plan.points}
        if len(space) < 2:
            raise UsageError("there is nothing to search: of the file's configs fewer than two can run here")
        _require_baseline(plan)
        self._warn_of_unknown_quality(plan)
        folder = runner.measure_study(
            self._search_source(),
            self.place / "search",
            self.observer,
            self.at,
            part=StudyPart(self._drawn, self._going_on),
        )
        StudyReport(folder, self.at.home).write()
        found = self._searched(folder.read())
        baseline, chosen = _require_baseline(found.plan), found.race.leader
        confirmed, confirmation_s = None, 0.0
        if chosen is not None and chosen != baseline:
            fresh = self._confirm(found, chosen, baseline)
            confirmed, confirmation_s = self._confirmed(fresh, found, chosen, baseline), _elapsed_s(fresh.read())
        return Tuning(
            name=self._study.name,
            goal=self._tune.goal,
            primary_metric=MetricDefinition.of(
                next(metric for metric in METRICS.values() if metric.column == found.primary_metric.metric)
            ),
            limits=self._limits,
            price_per_hour=self._tune.price_per_hour,
            workload=self._study.workloads[0].name,
            baseline=baseline,
            space=len(space),
            tried=tuple(_tried(found, baseline)),
            refused=found.plan.refusals,
            end=found.race.end,
            chosen=chosen,
            shortfall=found.race.shortfall,
            within=self._tune.within,
            confidence=self._study.measure.confidence,
            confirmed=confirmed,
            deploy=() if chosen is None else recommended_deployment(found.records, chosen, self.at.home),
            search_folder=str(folder.path),
            budget_s=self._budget_s,
            search_s=_elapsed_s(found.records),
            confirmation_s=confirmation_s,
        )

    def _warn_of_unknown_quality(self, plan: Plan) -> None:
        if self._tune.max_quality_loss is None:
            return
        alone = [
            config for config in plan.quality if config != baseline_of(plan) and quality_baseline(config, plan) is None
        ]
        engines = dict.fromkeys(plan.study.engine(config.engine).engine for config in alone)
        if engines:
            self.observer.warn(
                f"no config on {', '.join(engines)} can meet max_quality_loss, since the study has no unquantized "
                "variant there to compare with; add the recipe bf16, or gguf-bf16 for llama.cpp"
            )

    def _search_source(self) -> StudySource:
        """Three starts of everybody, then only those that may be the best, in the search's share of the budget."""
        measure = self._study.measure.with_budget((1 - self._tune.confirm) * self._budget_s)
        return replace(self.source, study=self._study.model_copy(update={"measure": measure}))

    def _drawn(self, plan: Plan) -> Plan:
        estimator = estimator_of(plan, self.at)
        points = {point.config: point for point in plan.points}

        def screening_s(config: Config) -> float:
            """Starts, each with a warm-up and a round."""
            point = points[config]
            load_s = estimator.warm_up_s(point) + estimator.trial_s(point) + TOUCH_S
            return SCREENINGS * (estimator.start_s(config.engine) + STOP_S + load_s)

        lock = StudyFolder(self.place / "search").lock()
        begun = {point.config for point in lock.plan.points} if lock else set()
        return draw_race_configs(plan, baseline_of(plan), screening_s, (1 - self._tune.confirm) * self._budget_s, begun)

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
        judged = {entry.config: entry for entry in _judged(summary, self._limits)}
        primary_metric = self._primary_metric(records)
        race = race_of(records, judged.values(), primary_metric, self._tune.within)
        return _Searched(records, summary, judged, race, primary_metric)

    def _primary_metric(self, records: StudyRecords) -> PrimaryMetric:
        if self._tune.goal is not Goal.MEMORY:
            return primary_metric_of(records.plan)
        known = (name for name in MEMORIES if any(getattr(trial.memory, name) for trial in records.trials))
        return PrimaryMetric(next(known, MEMORIES[-1]), higher_is_better=False)

    def _confirm(self, found: _Searched, chosen: Config, baseline: Config) -> StudyFolder:
        """In a folder of its own; one that has confirmed another choice stays as it is."""
        both = {chosen, baseline}
        for number in count(1):
            folder = StudyFolder(self.place / ("confirmation" if number == 1 else f"confirmation-{number}"))
            lock = folder.lock()
            if lock is None or {point.config for point in lock.plan.points} == both:
                break
        fresh = ConfirmationPlan.begun(lock) if lock else self._planner(found, chosen, baseline).plan()
        used = {each.engine for each in (*both, *fresh.scored)}
        study = self._study.model_copy(
            update={
                **dict.fromkeys(self._study.sections),
                "quality": fresh.quality,
                "baseline": baseline.name,
                "engines": tuple(setup for setup in self._study.engines if setup.name in used),
                "measure": fresh.measure,
            }
        )
        starts, rounds = fresh.measure.starts.min, fresh.measure.trials.min
        quality = f", and the quality of {fresh.quality.windows} fresh windows" if fresh.quality else ""
        size = f"{plural(starts, 'start')} × {plural(rounds, 'round')}"
        self.observer.note(f"confirming {chosen.name}: {size} beside the baseline{quality}")
        source = StudySource.of(study, self.source.folder)
        part = StudyPart(lambda plan: fresh.part_of(plan, found.plan, both))
        runner.measure_study(source, folder.path, self.observer, self.at, part=part)
        StudyReport(folder, self.at.home).write()
        return folder

    def _planner(self, found: _Searched, chosen: Config, baseline: Config) -> ConfirmationPlanner:
        estimator = estimator_of(found.plan, self.at)
        for instance in found.records.instances:
            estimator.add(instance)
        for trial in found.records.trials:
            estimator.add(trial)
        left_s = self._budget_s - _elapsed_s(found.records)
        return ConfirmationPlanner(self._study, found.records, estimator, chosen, baseline, left_s)

    def _confirmed(self, folder: StudyFolder, found: _Searched, chosen: Config, baseline: Config) -> Confirmed:
        records = folder.read()
        summary = summarize(records)
        windows = next((row.windows for row in summary.quality if row.config == chosen), None)
        scored = records.plan.quality
        limits = self._limits if scored else self._limits.model_copy(update={"quality_loss": None})
        judged = {entry.config: entry for entry in _judged(summary, limits, self._tune.price_per_hour)}
        kept = () if scored else found.judged[chosen].findings
        ratio = _ratio(_table(records, found.primary_metric), chosen, baseline, records)
        best, other = judged[chosen], judged[baseline]
        measure = records.study.measure
        return Confirmed(
            folder=str(folder.path),
            starts=measure.starts.min,
            rounds=measure.trials.min,
            ratio=ratio,
            is_gain=ratio is not None and ratio.is_above(1),
            figure=_figure(best, found.primary_metric),
            baseline_figure=_figure(other, found.primary_metric),
            memory=best.memory,
            cost=best.cost,
            baseline_cost=other.cost,
            findings=(*best.findings, *(finding for finding in kept if finding.name == QUALITY_LOSS)),
            windows=windows or None,
        )


def _require_baseline(plan: Plan) -> Config:
    """What the winner is to be compared with; raises UsageError where it cannot run."""
    baseline = baseline_of(plan)
    assert baseline is not None  # the plan was checked
    if all(point.config != baseline for point in plan.points):
        reasons = [refusal.reason for refusal in plan.refusals if refusal.point.config == baseline]
        raise UsageError(f"the baseline {baseline.name} cannot run here: {'; '.join(reasons)} Name another one.")
    return baseline


def _judged(summary: StudySummary, limits: Limits, price: float | None = None) -> tuple[Judged, ...]:
    return recommend(summary, limits, price_per_hour=price).choices[0].judged


def _table(records: StudyRecords, primary_metric: PrimaryMetric) -> PairTable | None:
    return next(iter(pairs_by_workload(records.trials, primary_metric, baseline_of(records.plan)).values()), None)


def _elapsed_s(records: StudyRecords) -> float:
    return max(block_ends(records.trials, records.starts_and_quality).values(), default=0.0)


def _figure(judged: Judged, primary_metric: PrimaryMetric) -> Estimate | None:
    return judged.memory if primary_metric.metric in MEMORIES else judged.figure


def _tried(found: _Searched, baseline: Config) -> list[Tried]:
    """The best first, then by what became of them and by their ratios."""
    table = found.table
    blocks = {(trial.point.config, trial.block) for trial in found.records.trials if trial.counts}
    starts = Counter(config for config, _ in blocks)
    tried = []
    for config in dict.fromkeys(point.config for point in found.plan.points):
        judged = found.judged[config]
        ratio = None
        if config != baseline:
            ratio = _ratio(table, config, baseline, found.records)
        fate = _fate(found, judged)
        tried.append(
            Tried(
                config=config,
                fate=fate,
                starts=starts[config],
                figure=_figure(judged, found.primary_metric),
                ratio_to_baseline=ratio,
                memory=judged.memory,
                findings=judged.findings,
                beaten_by=found.race.beaten_by.get(config) if fate is Fate.BEATEN else None,
                reason=_reason(judged),
            )
        )
    return sorted(tried, key=lambda entry: (_FATES.index(entry.fate), _place(entry, found.primary_metric)))


def _place(tried: Tried, primary_metric: PrimaryMetric) -> float:
    if tried.figure is None:
        return 0.0
    return -tried.figure.value if primary_metric.higher_is_better else tried.figure.value


def _ratio(table: PairTable | None, config: Config, other: Config, records: StudyRecords) -> Estimate | None:
    """Above 1 where `config` is better."""
    pair = table.between(config, other) if table else None
    return pair.ratio(records.study.measure.confidence) if pair else None


def _fate(found: _Searched, judged: Judged) -> Fate:
    config = judged.config
    if judged.figure is None:
        return Fate.NO_RESULT
    if config == found.race.leader:
        return Fate.BEST
    if judged.failed_trials or judged.verdict is Verdict.MISSED:
        return Fate.RULED_OUT
    return Fate.BEATEN if config in found.race.beaten_by else Fate.LEFT


def _reason(judged: Judged) -> str:
    if judged.figure is None:
        return judged.why_no_result
    return f"{judged.failed_trials} of its {judged.trials} trials failed" if judged.failed_trials else ""
