"""`bitbench tune`: a race among the contenders of a study, then a fresh study of its best against the baseline."""

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from bitbench.core.asked.study import MOST_STARTS, Count, Measure, Study
from bitbench.core.asked.tune import Goal, Tune
from bitbench.core.cell import Cell, Contender, Plan
from bitbench.core.found.metrics import METRICS
from bitbench.core.found.recommendation import Judged, Limits, Recommendation, Standing
from bitbench.core.found.summary import Estimate, MetricDefinition, Ratio, StudySummary
from bitbench.core.found.tuning import Confirmed, Fate, Tried, Tuning
from bitbench.core.ports import Deployable, Launch, Observer
from bitbench.core.recorded.study import StudyRecords
from bitbench.core.secrets import is_secret
from bitbench.ground.errors import StudyFileError, UsageError
from bitbench.lab.pace import PROBE_AND_TOUCH_S, STOP_S
from bitbench.lab.part import StudyPart
from bitbench.lab.source import StudySource
from bitbench.lab.study import Lab
from bitbench.planning.draw import draw
from bitbench.planning.expand import launch_size
from bitbench.planning.kv_cache import as_arguments
from bitbench.statistics.budget_plan import BlockPlan, Design, measured_components, plan_confirmation
from bitbench.statistics.elapsed import block_ends
from bitbench.statistics.fields import fields_of, log_speeds_of
from bitbench.statistics.pairs import PairTable
from bitbench.statistics.race import Race, race_of
from bitbench.statistics.recommend import MEMORIES, recommend
from bitbench.statistics.standing import Headline, baseline_of, headline_of, pair_tables
from bitbench.statistics.summarize import summarize
from bitbench.store.folder import StudyFolder

SCREENINGS = 2  # starts of every contender before one may be dropped
_FATES = list(Fate)


def tune_source(file: Path, budget_s: float | None = None) -> StudySource:
    """The file, checked for what a search needs beyond a study."""
    source = StudySource.of(file).with_budget(budget_s)
    if source.study.tune is None:
        raise source.located(StudyFileError("a search needs a section `tune`; `tune: {}` takes the defaults"))
    if source.study.measure.budget is None:
        raise UsageError("a search needs a budget: --budget 30m, or `measure: {budget: 30m}` in the file")
    return source


def tune(lab: Lab, source: StudySource, into: Path | None, observer: Observer) -> Tuning:
    """Search, then confirm; the same call again continues where it was interrupted. Fills two study folders, `search`
    and `confirmation`, in `into`, by default ./NAME of the study."""
    return _TuneRun(lab, source, into or Path(source.study.name), observer).answer()


@dataclass(frozen=True)
class _Searched:
    """The search as its records tell it."""

    records: StudyRecords
    summary: StudySummary
    judged: Mapping[Contender, Judged]
    race: Race
    headline: Headline

    @property
    def plan(self) -> Plan:
        return self.records.plan

    @property
    def table(self) -> PairTable | None:
        return _table(self.records, self.headline)


@dataclass(frozen=True)
class _TuneRun:
    lab: Lab
    source: StudySource
    place: Path
    observer: Observer

    @property
    def _study(self) -> Study:
        return self.source.study

    @property
    def _tune(self) -> Tune:
        assert self._study.tune is not None
        return self._study.tune

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
        plan = self.lab.plan(self.source)
        space = {cell.contender for cell in plan.cells}
        if len(space) < 2:
            raise UsageError("there is nothing to search: of the file's contenders fewer than two can run here")
        _require_baseline(plan)
        folder = self.lab.run(
            self._search_source(), self.place / "search", self.observer, part=StudyPart(self._drawn, self._going_on)
        )
        self.lab.report(folder)
        found = self._searched(folder.read())
        baseline, chosen = _require_baseline(found.plan), found.race.leader
        confirmed, confirmation_s = None, 0.0
        if chosen is not None and chosen != baseline:
            fresh = self._confirm(found, chosen, baseline)
            confirmed, confirmation_s = self._confirmed(fresh, found, chosen, baseline), _elapsed_s(fresh.read())
        return Tuning(
            name=self._study.name,
            goal=self._tune.goal,
            headline=MetricDefinition.of(METRICS[_metric_name(found.headline)]),
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
            deploy=() if chosen is None else self._deploy(found.plan, chosen),
            search_folder=str(folder.path),
            budget_s=self._budget_s,
            search_s=_elapsed_s(found.records),
            confirmation_s=confirmation_s,
        )

    def _search_source(self) -> StudySource:
        """Two starts of everybody, then only those that may be the best, in the search's share of the budget."""
        measure = self._study.measure
        changes: dict[str, object] = {"budget": (1 - self._tune.confirm) * self._budget_s}
        if "instances" not in measure.model_fields_set:
            changes["instances"] = Count(min=SCREENINGS, max=MOST_STARTS)
        fields = {name: getattr(measure, name) for name in measure.model_fields_set} | changes
        return replace(self.source, study=self._study.model_copy(update={"measure": Measure(**fields)}))

    def _drawn(self, plan: Plan) -> Plan:
        estimator = self.lab.estimator(plan)
        trial_s = {cell.contender: estimator.trial_s(cell) for cell in plan.cells}

        def screening_s(contender: Contender) -> float:
            """Starts, each with a warm-up and a round."""
            once_s = estimator.start_s(contender.engine) + STOP_S + 2 * trial_s[contender] + PROBE_AND_TOUCH_S
            return SCREENINGS * once_s

        return draw(plan, baseline_of(plan), screening_s, (1 - self._tune.confirm) * self._budget_s)

    def _going_on(self, folder: StudyFolder, blocks: int) -> frozenset[Cell]:
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
        self.observer.note(f"{len(left)} of {len(seen.plan.contenders)} contenders may be the best")
        return frozenset(cell for cell in seen.plan.cells if cell.contender in left)

    def _searched(self, records: StudyRecords) -> _Searched:
        summary = summarize(records)
        judged = {one.contender: one for one in _judged(summary, self._limits)}
        headline = self._headline(records)
        return _Searched(
            records, summary, judged, race_of(records, judged.values(), headline, self._tune.within), headline
        )

    def _headline(self, records: StudyRecords) -> Headline:
        if self._tune.goal is not Goal.MEMORY:
            return headline_of(records.plan)
        known = (name for name in MEMORIES if any(getattr(trial.memory, name) for trial in records.trials))
        return Headline(next(known, MEMORIES[-1]), higher_is_better=False)

    def _confirm(self, found: _Searched, chosen: Contender, baseline: Contender) -> StudyFolder:
        """In a folder of its own; one that has confirmed another choice stays as it is."""
        both = {chosen, baseline}
        for number in count(1):
            folder = StudyFolder(self.place / ("confirmation" if number == 1 else f"confirmation-{number}"))
            lock = folder.lock()
            if lock is None or set(lock.plan.contenders) == both:
                break
        measure = lock.plan.study.measure if lock else self._fresh_measure(found, chosen, baseline)
        study = self._study.model_copy(
            update={
                "tune": None,
                "quality": None,
                "profile": None,
                "baseline": baseline.name,
                "engines": tuple(one for one in self._study.engines if one.name in {each.engine for each in both}),
                "measure": measure,
            }
        )
        starts, rounds = measure.instances.min, measure.trials.min
        self.observer.note(f"confirming {chosen.name}: {starts} starts × {rounds} rounds beside the baseline")
        source = StudySource.of(study, self.source.folder)
        self.lab.run(source, folder.path, self.observer, part=StudyPart(lambda plan: plan.only(both)))
        self.lab.report(folder)
        return folder

    def _fresh_measure(self, found: _Searched, chosen: Contender, baseline: Contender) -> Measure:
        """A fixed plan for what is left of the budget: no look ends it early, so that nothing bends its figures."""
        old = self._study.measure
        planned = self._confirmation_plan(found, chosen, baseline)
        return Measure(
            instances=Count(min=planned.blocks, max=planned.blocks),
            trials=Count(min=min(planned.rounds, old.trials.max), max=min(planned.rounds, old.trials.max)),
            schedule=old.schedule,
            confidence=old.confidence,
            headline=old.headline,
        )

    def _confirmation_plan(self, found: _Searched, chosen: Contender, baseline: Contender) -> BlockPlan:
        estimator = self.lab.estimator(found.plan)
        for instance in found.records.instances:
            estimator.add(instance)
        for trial in found.records.trials:
            estimator.add(trial)
        trials_s = sum(estimator.trial_s(cell) for cell in found.plan.cells if cell.contender in (chosen, baseline))
        starts_s = sum(estimator.start_s(one.engine) + STOP_S for one in (chosen, baseline))
        standings = {
            field: field.standing(found.records.trials, found.records.instances) for field in fields_of(found.plan)
        }
        return plan_confirmation(
            Design(contenders=2, starts_s=starts_s + trials_s, round_s=trials_s + 2 * PROBE_AND_TOUCH_S),
            self._budget_s - _elapsed_s(found.records),
            self._study.measure.confidence,
            measured_components(log_speeds_of(standings)),
            target=self._study.measure.target_precision,
        )

    def _confirmed(self, folder: StudyFolder, found: _Searched, chosen: Contender, baseline: Contender) -> Confirmed:
        records = folder.read()
        summary = summarize(records)
        fresh = self._limits.model_copy(update={"quality_loss": None})
        judged = {one.contender: one for one in _judged(summary, fresh, self._tune.price_per_hour)}
        quality = [one for one in found.judged[chosen].findings if one.unit == "share"]
        ratio = _ratio(_table(records, found.headline), chosen, baseline, found.headline, records)
        best, other = judged[chosen], judged[baseline]
        measure = records.study.measure
        return Confirmed(
            folder=str(folder.path),
            starts=measure.instances.min,
            rounds=measure.trials.min,
            ratio=ratio,
            is_gain=_is_gain(ratio, found.headline),
            figure=_figure(best, found.headline),
            baseline_figure=_figure(other, found.headline),
            memory=best.memory,
            cost=best.cost,
            baseline_cost=other.cost,
            findings=(*best.findings, *quality),
        )

    def _deploy(self, plan: Plan, chosen: Contender) -> tuple[str, ...]:
        setup = plan.study.engine(chosen.engine)
        engine = self.lab.engines_of(plan.study)[setup.engine]
        if not isinstance(engine, Deployable):
            return ()
        context_tokens, concurrency = launch_size(plan, setup)
        launch = Launch(
            setup=as_arguments(setup, engine),
            variant=plan.variant(chosen.variant),
            python=None,
            log_file=Path(),
            context_tokens=context_tokens,
            concurrency=concurrency,
            seed=0,
        )
        variables, words = engine.deployment(launch)
        shown = [f"{name}={'•••' if is_secret(name) else shlex.quote(value)}" for name, value in variables.items()]
        return (*shown, *(shlex.quote(word) for word in words))


def _require_baseline(plan: Plan) -> Contender:
    """What the winner is to be compared with; raises UsageError where it cannot run."""
    baseline = baseline_of(plan)
    assert baseline is not None  # the plan was checked
    if all(cell.contender != baseline for cell in plan.cells):
        reasons = [refusal.reason for refusal in plan.refusals if refusal.cell.contender == baseline]
        raise UsageError(f"the baseline {baseline.name} cannot run here: {'; '.join(reasons)} Name another one.")
    return baseline


def _judged(summary: StudySummary, limits: Limits, price: float | None = None) -> tuple[Judged, ...]:
    found: Recommendation = recommend(summary, limits, price_per_hour=price)
    return found.choices[0].judged


def _table(records: StudyRecords, headline: Headline) -> PairTable | None:
    return next(iter(pair_tables(records.trials, headline, baseline_of(records.plan)).values()), None)


def _elapsed_s(records: StudyRecords) -> float:
    return max(block_ends(records.trials, records.instances).values(), default=0.0)


def _metric_name(headline: Headline) -> str:
    return next(name for name, metric in METRICS.items() if metric.column == headline.metric)


def _figure(judged: Judged, headline: Headline) -> Estimate | None:
    return judged.memory if headline.metric in MEMORIES else judged.figure


def _tried(found: _Searched, baseline: Contender) -> list[Tried]:
    """The best first, then by what became of them and by their ratios."""
    table = found.table
    blocks = {(trial.cell.contender, trial.block) for trial in found.records.trials if trial.counts}
    starts = Counter(contender for contender, _ in blocks)
    tried = []
    for contender in dict.fromkeys(cell.contender for cell in found.plan.cells):
        judged = found.judged[contender]
        ratio = None
        if contender != baseline:
            ratio = _ratio(table, contender, baseline, found.headline, found.records)
        fate = _fate(found, judged)
        tried.append(
            Tried(
                contender=contender,
                fate=fate,
                starts=starts[contender],
                figure=_figure(judged, found.headline),
                ratio_to_baseline=ratio,
                memory=judged.memory,
                findings=judged.findings,
                beaten_by=found.race.beaten_by.get(contender) if fate is Fate.BEATEN else None,
                reason=_reason(judged),
            )
        )
    return sorted(tried, key=lambda one: (_FATES.index(one.fate), _place(one, found.headline)))


def _place(tried: Tried, headline: Headline) -> float:
    if tried.figure is None:
        return 0.0
    return -tried.figure.mean if headline.higher_is_better else tried.figure.mean


def _ratio(
    table: PairTable | None, one: Contender, other: Contender, headline: Headline, records: StudyRecords
) -> Ratio | None:
    """Of the figures themselves, one / other, whichever way is better."""
    pair = table.between(*((one, other) if headline.higher_is_better else (other, one))) if table else None
    return pair.ratio(records.study.measure.confidence) if pair else None


def _is_gain(ratio: Ratio | None, headline: Headline) -> bool:
    if ratio is None or ratio.interval is None:
        return False
    return ratio.interval.low > 1 if headline.higher_is_better else ratio.interval.high < 1


def _fate(found: _Searched, judged: Judged) -> Fate:
    contender = judged.contender
    if judged.figure is None:
        return Fate.NO_RESULT
    if contender == found.race.leader:
        return Fate.BEST
    if judged.failed_trials or judged.standing is Standing.BROKEN:
        return Fate.RULED_OUT
    return Fate.BEATEN if contender in found.race.beaten_by else Fate.LEFT


def _reason(judged: Judged) -> str:
    if judged.figure is None:
        return judged.why_no_result
    return f"{judged.failed_trials} of its {judged.trials} trials failed" if judged.failed_trials else ""
