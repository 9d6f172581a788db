"""Other tools' result files become a study folder: a plan that says where they come from, records, no request rows."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

from bitbench.features.interop.readers import published_table
from bitbench.features.interop.readers.reading import (
    ImportedRun,
    ImportedStarts,
    ImportFileError,
    Reading,
    Tool,
    imported_name,
)
from bitbench.features.interop.readers.tools import read_tool_results
from bitbench.records.folder import StudyFolder
from bitbench.records.lock import HostFacts, Lock
from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.reports.document.words import plain_words
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, ImportedFile, ImportSource, Plan, Point
from bitbench.study.study import Count, EngineSetup, Measure, Study
from bitbench.study.study_file import study_file_text
from bitbench.study.variant import UNKNOWN_RECIPE, Variant
from bitbench.study.workload import Workload
from bitbench.util.errors import StoreError
from bitbench.util.version import __version__


def read_tool_file(tool: Tool, content: bytes) -> Reading:
    """What a file of this tool holds; raises ImportFileError where it is another kind of file, or holds no run."""
    text = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    reading = (
        published_table.read(text)
        if tool is Tool.PUBLISHED_TABLE
        else read_tool_results(tool.value, text)
    )
    if not reading.runs:
        raise ImportFileError("it contains no runs")
    return reading


# By the first of these that the most points have: speed before latency, as in a study of our own.
PRIMARY_METRICS = ("output_throughput", "tpot", "ttft", "latency")
MOST_COUNTED = 1000  # what `Count` of a study allows
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
class _Names(Generic[_Named]):
    """Engines or workloads by name: what differs gets a number, so that it is not averaged with its namesake."""

    numbered: str  # how
    taken: dict[str, _Named] = field(default_factory=dict)
    _given: dict[str, str] = field(default_factory=dict)  # by content
    _counts: Counter[str] = field(default_factory=Counter)

    def name_of(self, thing: _Named) -> str:
        content = thing.model_dump_json()
        if content not in self._given:
            name = thing.name
            while name in self.taken:
                self._counts[thing.name] += 1
                name = self.numbered.format(thing.name, self._counts[thing.name] + 1)
            self._given[content] = name
            self.taken[name] = thing.model_copy(update={"name": name})
        return self._given[content]


def _as_study(
    name: str, readings: Sequence[Reading], starts: ImportedStarts, source: ImportSource
) -> ImportedStudy:
    """One plan and its records from all files. `source` gets the assumption about starts added to its notes."""
    engines, workloads = _Names[EngineSetup]("{} ({})"), _Names[Workload]("{}-{}")
    trials: list[TrialRecord] = []
    instances: dict[tuple[Config, int], InstanceRecord] = {}
    variants: dict[str, Variant] = {}
    seen: dict[Point, int] = {}
    files: dict[Config, dict[int, int]] = {}  # of each config: those with a run of it, counted
    for file, reading in enumerate(readings):
        for run in reading.runs:
            config = Config(variant=run.variant, engine=engines.name_of(run.engine))
            point = Point(config=config, workload=workloads.name_of(run.workload))
            index = seen[point] = seen.get(point, -1) + 1
            own = files.setdefault(config, {})
            nth = own.setdefault(file, len(own))
            block = {
                ImportedStarts.PER_FILE: nth,
                ImportedStarts.PER_RUN: index,
                ImportedStarts.ONE: 0,
            }[starts]
            instance = instances.setdefault(
                (config, block), _instance(config, block, len(instances), run)
            )
            trials.append(_trial(point, instance, index, run))
            variants.setdefault(run.variant, _variant(run))
    study = Study(
        name=name,
        recipes=(UNKNOWN_RECIPE,),
        engines=tuple(engines.taken.values()),
        workloads=tuple(workloads.taken.values()),
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
        name: sum(
            getattr(trial.metrics, METRICS[name].column) is not None for trial in points.values()
        )
        for name in PRIMARY_METRICS
    }
    counted = min(starts, MOST_COUNTED)
    return Measure.model_validate(
        {"metric": max(known, key=known.__getitem__), "starts": Count(min=counted, max=counted)}
    )


REMARK = "Written by `bitbench import`: it can be reported, not run."
LARGEST_FILE_BYTES = (
    10**9
)  # a detailed result of a million requests; beyond it, memory would be the first limit


def import_files(
    paths: Sequence[Path], tool: Tool, starts: ImportedStarts, into: Path | None
) -> StudyFolder:
    """Fill a new folder; it and the study are called like the first file. Raises ImportFileError.

    Nothing is written before all of it is understood.
    """
    name = imported_name(paths[0].stem, "imported")
    contents = [_content(path) for path in paths]
    readings, files = list[Reading](), list[ImportedFile]()
    for path, content in zip(paths, contents, strict=True):
        with _understanding(str(path), tool):
            readings.append(read_tool_file(tool, content))
        files.append(ImportedFile(name=path.name, sha256=sha256(content).hexdigest()))
    notes = tuple(dict.fromkeys(note for reading in readings for note in reading.notes))
    folder = StudyFolder(into or Path(name))
    if folder.lock_file.exists() or folder.study_file.exists():
        raise StoreError(f"{folder.path} already contains a study; give another folder with --into")
    source = ImportSource(tool=tool.value, files=tuple(files), notes=notes)
    with _understanding(", ".join(map(str, paths)), tool):
        study = _as_study(name, readings, starts, source)
        host = _host(readings)
    _write(folder, study, host)
    return folder


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise ImportFileError(
                f"{path} is larger than {LARGEST_FILE_BYTES // 10**9} GB; export it without per-request details"
            )
        return path.read_bytes()
    except OSError as error:
        raise ImportFileError(f"{path} cannot be read: {error.strerror or error}") from error


@contextmanager
def _understanding(files: str, tool: Tool) -> Iterator[None]:
    """Whatever goes wrong in here is the content of these files."""
    try:
        yield
    except ImportFileError as error:
        raise ImportFileError(f"{files}: {plain_words(str(error))}") from error
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ImportFileError(
            f"{files} is not a known result format of {tool.value} "
            f"({type(error).__name__}: {plain_words(str(error))}); check --from"
        ) from error


def _host(readings: Sequence[Reading]) -> HostFacts:
    """Files from different machines: which one cannot be said."""
    first = readings[0].host
    return HostFacts.model_validate(
        first if all(reading.host == first for reading in readings) else {}
    )


def _write(folder: StudyFolder, study: ImportedStudy, host: HostFacts) -> None:
    with folder.writing() as writer:
        for instance in study.instances:
            writer.append_instance(instance)
        for trial in study.trials:
            writer.append_trial(trial, None)
        writer.write_study(f"# {REMARK}\n{study_file_text(study.plan.study)}")
        writer.write_lock(Lock(bitbench=__version__, host=host, plan=study.plan))
