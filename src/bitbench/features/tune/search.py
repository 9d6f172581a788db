"""`bitbench tune`: a race among the configs of a study, then a fresh study of the winner and the
baseline."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from bitbench.analysis.elapsed import collect_block_ends
from bitbench.analysis.quality import find_quality_baseline
from bitbench.analysis.recommend import recommend
from bitbench.analysis.results.estimate import Estimate, Finding, Verdict
from bitbench.analysis.results.recommendation import QUALITY_LOSS, Judged, Limits
from bitbench.analysis.results.summary import MetricDefinition, StudySummary
from bitbench.analysis.sequential import (
    PrimaryMetric,
    collect_pairs_by_workload,
    find_baseline,
    get_primary_metric,
)
from bitbench.analysis.summarize import summarize
from bitbench.api.recommend import make_deployment_command
from bitbench.features.tune.confirmation import ConfirmationPlanner
from bitbench.features.tune.race import Race, judge_race
from bitbench.features.tune.types import Confirmed, Fate, Tried, Tune, Tuning
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import make_estimator, plan_study
from bitbench.ports import Observer
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.reports.document.words import format_count
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

CONFIRMATION_SHARE = 0.3  # share of the budget to re-measure the winner and the baseline
_FATES = list(Fate)


def read_search_source(file: Path, budget_s: float | None = None) -> StudySource:
    """Return the study of the file with this budget. Raise StudyFileError or UsageError if it has
    no section `tune` or no budget."""
    source = StudySource.of(file).replace_budget(budget_s)
    if source.study.section(Tune) is None:
        raise source.locate_error(
            StudyFileError("a search needs a section `tune`; `tune: {}` takes the defaults")
        )
    if source.study.measure.budget is None:
        raise UsageError(
            "a search needs a budget: --budget 30m, or `measure: {budget: 30m}` in the file"
        )
    return source


def tune(
    source: StudySource, into: Path | None, observer: Observer, workplace: Workplace
) -> Tuning:
    """Search for the best config, confirm it, and return the outcome. The same call resumes an
    interrupted run. It fills two study folders in `into`, `search` and `confirmation`. The default
    of `into` is ./NAME of the study."""
    return _TuneRun(source, into or Path(source.study.name), observer, workplace).answer()


@dataclass(frozen=True)
class _Searched:
    """The state of a search, computed from its records."""

    records: StudyRecords
    judged: Mapping[Config, Judged]
    race: Race
    primary_metric: PrimaryMetric


@dataclass(frozen=True)
class _TuneRun:
    """A search and its confirmation in the folder `into`."""

    source: StudySource
    into: Path
    observer: Observer
    workplace: Workplace

    @property
    def _study(self) -> Study:
        return self.source.study

    @property
    def _tune(self) -> Tune:
        section = self._study.section(Tune)
        assert section is not None, "checked by tune_search_source"
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
        """Run or resume the search and the confirmation, and return the outcome."""
        plan = plan_study(self.source, self.workplace)
        if len({point.config for point in plan.points}) < 2:
            raise UsageError(
                "there is nothing to search: of the file's configs fewer than two can run here"
            )
        baseline = _require_baseline(plan)
        self._warn_of_unknown_quality(plan)
        self._warn_of_short_budget(plan)
        search_folder = self._search()
        search = self._summarize_search(search_folder.read())
        winner = search.race.leader
        elapsed_s = _compute_elapsed_s(search.records)
        confirmed = None
        if winner is not None and winner != baseline:
            fresh_folder = self._confirm(search, winner, baseline)
            confirmed = self._summarize_confirmation(fresh_folder, search, winner, baseline)
            elapsed_s += _compute_elapsed_s(fresh_folder.read())
        deploy: tuple[str, ...] = ()
        if winner is not None:
            deploy = make_deployment_command(search.records, winner, self.workplace.home)
        column = search.primary_metric.metric
        metric = next(metric for metric in METRICS.values() if metric.column == column)
        return Tuning(
            name=self._study.name,
            primary_metric=MetricDefinition.of(metric),
            limits=self._limits,
            workload=self._study.workloads[0].name,
            baseline=baseline,
            tried=tuple(_list_tried(search, baseline)),
            refused=search.records.plan.refusals,
            end=search.race.end,
            chosen=winner,
            shortfall=search.race.shortfall,
            confidence=self._study.measure.confidence,
            confirmed=confirmed,
            deploy=deploy,
            search_folder=str(search_folder.path),
            budget_s=self._budget_s,
            took_s=elapsed_s,
        )

    def _search(self) -> StudyFolder:
        """Run or resume the search, write its report, and return its folder."""
        measure = self._study.measure.replace_budget((1 - CONFIRMATION_SHARE) * self._budget_s)
        source = replace(self.source, study=self._study.model_copy(update={"measure": measure}))
        part = StudyPart(self._select_scored_once, self._find_points_left)
        folder = runner.measure_study(
            source, self.into / "search", self.observer, self.workplace, part=part
        )
        StudyReport(folder, self.workplace.home).write()
        return folder

    def _warn_of_unknown_quality(self, plan: Plan) -> None:
        """Warn if the quality loss of an engine's configs cannot be computed, for lack of an
        unquantized variant."""
        if self._tune.max_quality_loss is None:
            return
        baseline = find_baseline(plan)
        engines: list[str] = []
        for config in plan.quality:
            if config != baseline and find_quality_baseline(config, plan) is None:
                engines.append(plan.study.engine(config.engine).engine)
        if engines:
            self.observer.warn(
                f"no config on {', '.join(dict.fromkeys(engines))} can meet max_quality_loss, "
                "since the study has no unquantized variant there to compare with; "
                "add the recipe bf16, or gguf-bf16 for llama.cpp"
            )

    def _warn_of_short_budget(self, plan: Plan) -> None:
        """Warn if the budget is too short for the fewest starts of every config, each with a
        warm-up and a round."""
        estimator = make_estimator(plan, self.workplace)
        needed_s = 0.0
        for point in plan.points:
            load_s = estimator.estimate_warm_up_s(point) + estimator.trial_s(point) + TOUCH_S
            needed_s += FEWEST_BLOCKS * (estimator.start_s(point.config.engine) + STOP_S + load_s)
        if needed_s > (1 - CONFIRMATION_SHARE) * self._budget_s:
            self.observer.warn(
                f"{FEWEST_BLOCKS} starts of each config take about {show_duration(needed_s)}, "
                "more than a search with this budget has; "
                "raise it, or write fewer settings into the file"
            )

    def _select_scored_once(self, plan: Plan) -> Plan:
        """Return the plan with the quality of one setup for each variant, engine and KV cache."""
        timed = {point.config for point in plan.points}
        scored = {_find_scored_config(config, plan) for config in plan.quality if config in timed}
        baselines = {find_quality_baseline(config, plan) for config in scored} - {None}
        return _select_part(plan, timed, scored | baselines)

    def _find_points_left(self, folder: StudyFolder, blocks: int) -> frozenset[Point]:
        """Return the points that may still be the best after so many blocks. None are left when the
        race has ended."""
        records = folder.read()
        records = replace(
            records,
            trials=[trial for trial in records.trials if trial.block < blocks],
            instances=[instance for instance in records.instances if instance.block < blocks],
        )
        race = self._summarize_search(records).race
        if race.end is not None:
            return frozenset()
        left = set(race.left)
        self.observer.note(f"{len(left)} of {len(records.plan.configs)} configs may be the best")
        return frozenset(point for point in records.plan.points if point.config in left)

    def _summarize_search(self, records: StudyRecords) -> _Searched:
        """Return the state of the search. A config whose quality was not measured gets the values
        of the config that was measured for it."""
        summary = summarize(records)
        quality = {row.config: row for row in summary.quality}
        shared = []
        for point in records.plan.points:
            row = quality.get(_find_scored_config(point.config, records.plan))
            if point.config not in quality and row is not None:
                shared.append(row.model_copy(update={"config": point.config}))
        summary = summary.model_copy(update={"quality": (*summary.quality, *shared)})
        judged = {entry.config: entry for entry in _judge_configs(summary, self._limits)}
        primary_metric = get_primary_metric(records.plan)
        race = judge_race(records, judged.values(), primary_metric, self._tune.within)
        return _Searched(records, judged, race, primary_metric)

    def _confirm(self, search: _Searched, winner: Config, baseline: Config) -> StudyFolder:
        """Measure the winner and the baseline in a fresh folder, and return it. A folder that has
        confirmed another winner stays unchanged."""
        both = {winner, baseline}
        for number in count(1):
            name = "confirmation" if number == 1 else f"confirmation-{number}"
            folder = StudyFolder(self.into / name)
            lock = folder.lock()
            if lock is None or {point.config for point in lock.plan.points} == both:
                break
        if lock is None:
            measure, quality = self._make_planner(search, winner, baseline).plan()
        else:  # a started or complete confirmation keeps its plan
            measure = lock.plan.study.measure
            quality = lock.plan.study.quality
        study = self._study.model_copy(
            update={
                **dict.fromkeys(self._study.sections),
                "quality": quality,
                "baseline": baseline.name,
                "measure": measure,
            }
        )
        self.observer.note(
            f"confirming {winner.name}: {format_count(measure.starts.min, 'start')} "
            "beside the baseline"
        )
        part = StudyPart(
            lambda plan: _select_part(plan, both, {winner, find_quality_baseline(winner, plan)})
        )
        source = StudySource.of(study, self.source.folder)
        runner.measure_study(source, folder.path, self.observer, self.workplace, part=part)
        StudyReport(folder, self.workplace.home).write()
        return folder

    def _make_planner(
        self, search: _Searched, winner: Config, baseline: Config
    ) -> ConfirmationPlanner:
        """Return the planner of the confirmation, with the times of the search."""
        records = search.records
        estimator = make_estimator(records.plan, self.workplace)
        for instance in records.instances:
            estimator.add(instance)
        for trial in records.trials:
            estimator.add(trial)
        left_s = self._budget_s - _compute_elapsed_s(records)
        scored_as = _find_scored_config(winner, records.plan)
        return ConfirmationPlanner(
            self._study, records, estimator, winner, scored_as, baseline, left_s
        )

    def _summarize_confirmation(
        self, folder: StudyFolder, search: _Searched, winner: Config, baseline: Config
    ) -> Confirmed:
        """Return the result of the confirmation. Without fresh quality, the quality loss
        comes from the search."""
        records = folder.read()
        summary = summarize(records)
        limits = self._limits
        search_findings: tuple[Finding, ...] = ()
        if not records.plan.quality:
            limits = limits.model_copy(update={"quality_loss": None})
            search_findings = search.judged[winner].findings
        quality_findings = [item for item in search_findings if item.name == QUALITY_LOSS]
        best = next(entry for entry in _judge_configs(summary, limits) if entry.config == winner)
        ratio = _find_ratio(records, search.primary_metric, winner, baseline)
        windows = next((row.windows for row in summary.quality if row.config == winner), None)
        return Confirmed(
            folder=str(folder.path),
            starts=records.study.measure.starts.min,
            rounds=records.study.measure.trials.min,
            ratio=ratio,
            is_gain=ratio is not None and ratio.is_above(1),
            figure=best.figure,
            findings=(*best.findings, *quality_findings),
            windows=windows or None,
        )


def _require_baseline(plan: Plan) -> Config:
    """Return the baseline of the study. Raise UsageError if it cannot run."""
    baseline = find_baseline(plan)
    assert baseline is not None  # the plan was checked
    if all(point.config != baseline for point in plan.points):
        reasons = [refusal.reason for refusal in plan.refusals if refusal.point.config == baseline]
        raise UsageError(
            f"the baseline {baseline.name} cannot run here: {'; '.join(reasons)} Name another one."
        )
    return baseline


def _find_scored_config(config: Config, plan: Plan) -> Config:
    """Return the config whose quality represents `config` in the search: the first with the same
    variant, engine and KV cache."""

    def kind(config: Config) -> tuple[str, str, str | None]:
        setup = plan.study.engine(config.engine)
        return config.variant, setup.engine, setup.kv_cache

    return next((other for other in plan.quality if kind(other) == kind(config)), config)


def _select_part(plan: Plan, timed: Collection[Config], scored: Collection[Config | None]) -> Plan:
    """Return the plan with only the speed of `timed` and the quality of `scored`. Refused points
    stay with their reasons."""
    refused = {refusal.point.config for refusal in plan.refusals}
    selected = {config for config in plan.configs if config in timed or config in scored}
    part = plan.only(selected | refused)
    return part.model_copy(
        update={
            "points": tuple(point for point in part.points if point.config in timed),
            "quality": tuple(config for config in part.quality if config in scored),
        }
    )


def _judge_configs(summary: StudySummary, limits: Limits) -> tuple[Judged, ...]:
    return recommend(summary, limits).choices[0].judged


def _compute_elapsed_s(records: StudyRecords) -> float:
    return max(collect_block_ends(records.trials, records.starts_and_quality).values(), default=0.0)


def _list_tried(search: _Searched, baseline: Config) -> list[Tried]:
    """Return the configs of the search, sorted by fate, then with the best first."""
    records = search.records
    metric = search.primary_metric
    blocks = {(trial.point.config, trial.block) for trial in records.trials if trial.counts}
    starts = Counter(config for config, _ in blocks)
    tried = []
    for config in dict.fromkeys(point.config for point in records.plan.points):
        judged = search.judged[config]
        ratio = None
        if config != baseline:
            ratio = _find_ratio(records, metric, config, baseline)
        tried.append(
            Tried(
                config=config,
                fate=_find_fate(search.race, judged),
                starts=starts[config],
                figure=judged.figure,
                ratio_to_baseline=ratio,
                findings=judged.findings,
                reason=_describe_reason(judged),
            )
        )
    sign = -1 if metric.higher_is_better else 1

    def order(entry: Tried) -> tuple[int, float]:
        value = entry.figure.value if entry.figure else 0.0
        return _FATES.index(entry.fate), sign * value

    return sorted(tried, key=order)


def _find_ratio(
    records: StudyRecords, metric: PrimaryMetric, config: Config, other: Config
) -> Estimate | None:
    """Return how much better `config` is than `other`: above 1 if it is better, None without a
    common block."""
    for table in collect_pairs_by_workload(
        records.trials, metric, find_baseline(records.plan)
    ).values():
        pair = table.between(config, other)
        if pair:
            return pair.ratio(records.study.measure.confidence)
    return None


def _find_fate(race: Race, judged: Judged) -> Fate:
    if judged.figure is None:
        return Fate.NO_RESULT
    if judged.config == race.leader:
        return Fate.BEST
    if judged.failed_trials or judged.verdict is Verdict.MISSED:
        return Fate.RULED_OUT
    return Fate.LEFT if judged.config in race.left else Fate.BEATEN


def _describe_reason(judged: Judged) -> str:
    if judged.figure is None:
        return judged.why_no_result
    if judged.failed_trials:
        return f"{judged.failed_trials} of its {judged.trials} trials failed"
    return ""
