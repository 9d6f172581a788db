"""Turn other tools' result files into a study folder: a plan with its sources, and records."""

import itertools
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
    make_valid_name,
)
from bitbench.features.interop.readers.tools import read_tool_results
from bitbench.records.folder import StudyFolder
from bitbench.records.lock import HostFacts, Lock
from bitbench.records.trial import InstanceRecord, Outcome, TrialRecord
from bitbench.reports.document.words import format_plain_words
from bitbench.study.metrics import METRICS
from bitbench.study.plan import Config, ImportedFile, ImportSource, Plan, Point
from bitbench.study.study import Count, EngineSetup, Measure, Study
from bitbench.study.study_file import format_study
from bitbench.study.variant import UNKNOWN_RECIPE, Variant
from bitbench.study.workload import Workload
from bitbench.util.errors import StoreError
from bitbench.util.version import __version__


def read_tool_file(tool: Tool, content: bytes) -> Reading:
    """Return the runs of a tool's file.

    Raise ImportFileError if the file has another format, or if it contains no runs.
    """
    text = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    if tool is Tool.PUBLISHED_TABLE:
        reading = published_table.read(text)
    else:
        reading = read_tool_results(tool.value, text)
    if not reading.runs:
        raise ImportFileError("it contains no runs")
    return reading


# The first of these that most points have is the primary metric: speed before latency, as in a
# study that bitbench runs.
PRIMARY_METRICS = ("output_throughput", "tpot", "ttft", "latency")
MOST_COUNTED = 1000  # the limit of `Count` in a study
ASSUMED = {
    ImportedStarts.PER_FILE: "Assumed: each file is one start of the engine, and its runs are "
    "trials of that start.",
    ImportedStarts.PER_RUN: "By --starts: each run was its own start of the engine.",
    ImportedStarts.ONE: "By --starts: all runs are trials of one start of the engine.",
}


@dataclass(frozen=True)
class ImportedStudy:
    """A plan and its records, made from other tools' files."""

    plan: Plan
    trials: tuple[TrialRecord, ...]
    instances: tuple[InstanceRecord, ...]


_Named = TypeVar("_Named", EngineSetup, Workload)


@dataclass
class _Names(Generic[_Named]):
    """The engines or workloads by name. Different ones with the same name get numbers.

    Without the numbers their results would be averaged.
    """

    numbered: str  # the format of a name with a number
    taken: dict[str, _Named] = field(default_factory=dict)
    _by_content: dict[str, str] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def name_of(self, item: _Named) -> str:
        content = item.model_dump_json()
        if content not in self._by_content:
            name = item.name
            while name in self.taken:
                self._counts[item.name] += 1
                name = self.numbered.format(item.name, self._counts[item.name] + 1)
            self._by_content[content] = name
            self.taken[name] = item.model_copy(update={"name": name})
        return self._by_content[content]


def _build_study(
    name: str, readings: Sequence[Reading], starts: ImportedStarts, source: ImportSource
) -> ImportedStudy:
    """Return one plan and its records for all files.

    The notes of `source` get the assumption about starts.
    """
    engines = _Names[EngineSetup]("{} ({})")
    workloads = _Names[Workload]("{}-{}")
    trials: list[TrialRecord] = []
    instances: dict[tuple[Config, int], InstanceRecord] = {}
    variants: dict[str, Variant] = {}
    last_trial: dict[Point, int] = {}
    file_numbers: dict[Config, dict[int, int]] = {}  # files with runs of a config, counted
    for file, reading in enumerate(readings):
        for run in reading.runs:
            config = Config(variant=run.variant, engine=engines.name_of(run.engine))
            point = Point(config=config, workload=workloads.name_of(run.workload))
            index = last_trial.get(point, -1) + 1
            last_trial[point] = index
            numbers = file_numbers.setdefault(config, {})
            file_number = numbers.setdefault(file, len(numbers))
            blocks = {
                ImportedStarts.PER_FILE: file_number,
                ImportedStarts.PER_RUN: index,
                ImportedStarts.ONE: 0,
            }
            block = blocks[starts]
            instance = instances.setdefault(
                (config, block), _make_instance(config, block, len(instances), run)
            )
            trials.append(_make_trial(point, instance, index, run))
            variants.setdefault(run.variant, _make_variant(run))
    study = Study(
        name=name,
        recipes=(UNKNOWN_RECIPE,),
        engines=tuple(engines.taken.values()),
        workloads=tuple(workloads.taken.values()),
        measure=_make_measure(trials, len({block for _, block in instances})),
    )
    plan = Plan(
        study=study,
        variants=tuple(variants.values()),
        points=tuple(last_trial),
        imported_from=source.model_copy(update={"notes": (ASSUMED[starts], *source.notes)}),
    )
    return ImportedStudy(plan, tuple(trials), tuple(instances.values()))


def _make_variant(run: ImportedRun) -> Variant:
    recipe = UNKNOWN_RECIPE
    if run.model:
        recipe = run.variant.removeprefix(f"{run.model}/")
    return Variant(
        name=run.variant,
        model=run.model or run.variant,
        recipe=recipe,
        weight_bytes=run.weight_bytes,
    )


def _make_instance(config: Config, block: int, number: int, run: ImportedRun) -> InstanceRecord:
    return InstanceRecord(
        id=f"i{number + 1:04d}",
        config=config,
        block=block,
        started_at=None,
        outcome=Outcome.OK,
        facts=run.facts,
        log_file=None,
    )


def _make_trial(
    point: Point, instance: InstanceRecord, index: int, run: ImportedRun
) -> TrialRecord:
    outcome = Outcome.INVALID if run.cause else Outcome.OK
    return TrialRecord(
        id="",
        point=point,
        block=instance.block,
        index=index,
        instance_id=instance.id,
        started_at=run.started_at,
        duration_s=run.duration_s,
        outcome=outcome,
        cause=run.cause,
        metrics=run.metrics,
        memory=run.memory,
        requests=run.requests,
    )


def _make_measure(trials: Sequence[TrialRecord], starts: int) -> Measure:
    """Return a schedule with this many starts and the primary metric that most points have."""
    last_trials = {trial.point: trial for trial in trials}
    counts: Counter[str] = Counter()
    for name in PRIMARY_METRICS:
        column = METRICS[name].column
        values = [getattr(trial.metrics, column) for trial in last_trials.values()]
        counts[name] = len(values) - values.count(None)
    starts = min(starts, MOST_COUNTED)
    return Measure.model_validate(
        {"metric": max(counts, key=counts.__getitem__), "starts": Count(min=starts, max=starts)}
    )


REMARK = "Written by `bitbench import`: it can be reported, not run."
# A detailed result of a million requests. A larger file might not fit into memory.
LARGEST_FILE_BYTES = 10**9


def import_files(
    paths: Sequence[Path], tool: Tool, starts: ImportedStarts, into: Path | None
) -> StudyFolder:
    """Fill a new study folder from a tool's files and return it.

    The study has the name of the first file, and so has the folder without `into`. Nothing is
    written before all files are read. Raise ImportFileError if a file cannot be read, and
    StoreError if the folder already contains a study.
    """
    name = make_valid_name(paths[0].stem, "imported")
    contents = [_read_content(path) for path in paths]
    readings: list[Reading] = []
    files: list[ImportedFile] = []
    for path, content in zip(paths, contents, strict=True):
        with _wrap_errors(str(path), tool):
            readings.append(read_tool_file(tool, content))
        files.append(ImportedFile(name=path.name, sha256=sha256(content).hexdigest()))
    notes = itertools.chain.from_iterable(reading.notes for reading in readings)
    folder = StudyFolder(into or Path(name))
    if folder.lock_file.exists() or folder.study_file.exists():
        raise StoreError(f"{folder.path} already contains a study; give another folder with --into")
    source = ImportSource(tool=tool.value, files=tuple(files), notes=tuple(dict.fromkeys(notes)))
    with _wrap_errors(", ".join(map(str, paths)), tool):
        study = _build_study(name, readings, starts, source)
        host = _find_host(readings)
    _write_study(folder, study, host)
    return folder


def _read_content(path: Path) -> bytes:
    """Return the content of a file. Raise ImportFileError if it is too large or unreadable."""
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise ImportFileError(
                f"{path} is larger than {LARGEST_FILE_BYTES // 10**9} GB; export it without "
                "per-request details"
            )
        return path.read_bytes()
    except OSError as error:
        raise ImportFileError(f"{path} cannot be read: {error.strerror or error}") from error


@contextmanager
def _wrap_errors(files: str, tool: Tool) -> Iterator[None]:
    """Raise any error inside as an ImportFileError about the content of these files."""
    try:
        yield
    except ImportFileError as error:
        raise ImportFileError(f"{files}: {format_plain_words(str(error))}") from error
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
            f"({type(error).__name__}: {format_plain_words(str(error))}); check --from"
        ) from error


def _find_host(readings: Sequence[Reading]) -> HostFacts:
    """Return the machine of the files, or an unknown one if the files name different machines."""
    host = readings[0].host
    if any(reading.host != host for reading in readings):
        host = {}
    return HostFacts.model_validate(host)


def _write_study(folder: StudyFolder, study: ImportedStudy, host: HostFacts) -> None:
    with folder.open_writer() as writer:
        for instance in study.instances:
            writer.append_instance(instance)
        for trial in study.trials:
            writer.append_trial(trial, None)
        writer.write_study(f"# {REMARK}\n{format_study(study.plan.study)}")
        writer.write_lock(Lock(bitbench=__version__, host=host, plan=study.plan))
