"""Runs of other tools as a plan and records, so that everything that reads a study folder can read them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bitbench.features.interop.readers.reading import ImportedRun, Reading
from bitbench.features.interop.types import ImportedStarts
from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.study.imported import ImportSource
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Count, EngineSetup, Measure, Study
from bitbench.study.variant import UNKNOWN_RECIPE, Variant
from bitbench.study.workload import Workload

# By the first of these that the most points have: speed before latency, as in a study of our own.
PRIMARY_METRICS = ("output_throughput", "tpot", "ttft", "latency")
MOST_COUNTED = 1000  # what core.asked.study allows for a count


ASSUMED = {
    ImportedStarts.PER_FILE: "Assumed: each file is one start of the engine, and its runs are trials of that start.",
    ImportedStarts.PER_RUN: "By --starts: each run was its own start of the engine.",
    ImportedStarts.ONE: "By --starts: all runs are trials of one start of the engine.",
}


@dataclass(frozen=True)
class ImportedStudy:
    plan: Plan
    trials: tuple[TrialRecord, ...]
    instances: tuple[InstanceRecord, ...]


_Named = TypeVar("_Named", EngineSetup, Workload)


@dataclass
class _Names:
    """Engines and workloads by name: what differs gets a number, so that it is not averaged with its namesake."""

    engines: dict[str, EngineSetup] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)
    _given: dict[tuple[str, str], str] = field(default_factory=dict)  # by kind and content
    _counted: dict[tuple[str, str], int] = field(default_factory=dict)  # by kind and name

    def engine(self, setup: EngineSetup) -> str:
        return self._named("engine", setup, self.engines, "{} ({})")

    def workload(self, shape: Workload) -> str:
        return self._named("workload", shape, self.workloads, "{}-{}")

    def _named(self, kind: str, thing: _Named, taken: dict[str, _Named], numbered: str) -> str:
        content = (kind, thing.model_dump_json())
        if content not in self._given:
            name, counted = thing.name, (kind, thing.name)
            while name in taken:
                self._counted[counted] = self._counted.get(counted, 1) + 1
                name = numbered.format(thing.name, self._counted[counted])
            self._given[content] = name
            taken[name] = thing.model_copy(update={"name": name})
        return self._given[content]


def as_study(name: str, readings: Sequence[Reading], starts: ImportedStarts, source: ImportSource) -> ImportedStudy:
    """One plan and its records from all files. `source` gets the assumption about starts added to its notes."""
    names, trials = _Names(), list[TrialRecord]()
    instances: dict[tuple[Config, int], InstanceRecord] = {}
    variants: dict[str, Variant] = {}
    seen: dict[Point, int] = {}
    for file, reading in enumerate(readings):
        for run in reading.runs:
            config = Config(variant=run.variant, engine=names.engine(run.engine))
            point = Point(config=config, workload=names.workload(run.workload))
            index = seen[point] = seen.get(point, -1) + 1
            block = {ImportedStarts.PER_FILE: file, ImportedStarts.PER_RUN: index, ImportedStarts.ONE: 0}[starts]
            instance = instances.setdefault((config, block), _instance(config, block, len(instances), run))
            trials.append(_trial(point, instance, index, run))
            variants.setdefault(
                run.variant,
                _variant(run),
            )
    study = Study(
        name=name,
        recipes=(UNKNOWN_RECIPE,),
        engines=tuple(names.engines.values()),
        workloads=tuple(names.workloads.values()),
        measure=_measure(trials, len({block for _, block in instances})),
    )
    plan = Plan(
        study=study,
        variants=tuple(variants.values()),
        points=tuple(seen),
        imported_from=source.model_copy(update={"notes": (ASSUMED[starts], *source.notes)}),
    )
    return ImportedStudy(plan, tuple(trials), tuple(instances.values()))


def _variant(run: ImportedRun) -> Variant:
    model = run.model or run.variant
    recipe = run.variant.removeprefix(f"{run.model}/") if run.model else UNKNOWN_RECIPE
    return Variant(name=run.variant, model=model, recipe=recipe, weight_bytes=run.weight_bytes)


def _instance(config: Config, block: int, number: int, run: ImportedRun) -> InstanceRecord:
    return InstanceRecord(
        id=f"i{number + 1:04d}",
        config=config,
        block=block,
        started_at=None,
        outcome=Outcome.OK,
        facts=run.facts,
        log_file=None,
    )


def _trial(point: Point, instance: InstanceRecord, index: int, run: ImportedRun) -> TrialRecord:
    return TrialRecord(
        id="",
        point=point,
        block=instance.block,
        index=index,
        instance_id=instance.id,
        started_at=run.started_at,
        duration_s=run.duration_s,
        outcome=Outcome.INVALID if run.cause else Outcome.OK,
        cause=run.cause,
        metrics=run.metrics,
        memory=run.memory,
        requests=run.requests,
    )


def _measure(trials: Sequence[TrialRecord], starts: int) -> Measure:
    points: dict[Point, TrialRecord] = {trial.point: trial for trial in trials}
    known = {
        name: sum(getattr(trial.metrics, METRICS[name].column) is not None for trial in points.values())
        for name in PRIMARY_METRICS
    }
    counted = min(starts, MOST_COUNTED)
    return Measure.model_validate(
        {"metric": max(known, key=known.__getitem__), "starts": Count(min=counted, max=counted)}
    )
