"""A study folder on disk, and all of its records after they are read.

Records are only ever appended. A kill at any moment loses at most the trial that was running.

study.yaml  lock.json       the question, and the study it was resolved to
blocks.jsonl                the decisions about each block before it began (`records.block_lines`)
instances.jsonl             one line per engine start
trials.jsonl                one line per trial, appended and synced when it ends
requests/ID.parquet         one row per request of that trial (ID.1.parquet … of more processes)
quality.jsonl               one line per quality measurement, appended and synced when it ends
quality/ID.parquet          one row per scored token of that measurement
quality/windows-MODEL.json  the requests to every variant of that model, as token ids
logs/                       one file per engine instance
profiles/ID.json            one operator profile, made from the Chrome trace in ID.trace.json.gz
tables/TABLE-HASH.parquet   the records as columns for `bitbench query`, with their hash
roof.json                   the roofline of the machine, if `bitbench explain` has measured it
FEATURE/                    files of a feature
report/                     can be rebuilt from the rest
"""

import fcntl
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from bitbench.records.lock import LOCK_FORMAT, Lock
from bitbench.records.profile import PROFILE_FORMAT, OperatorProfile
from bitbench.records.quality import QUALITY_FORMAT, SCORE_COLUMNS, QualityMaterial, QualityRecord
from bitbench.records.request_rows import RequestParts
from bitbench.records.roof import ROOF_FORMAT, MachineRoof
from bitbench.records.strict_reader import (
    parse_next_record_number,
    read_lines,
    read_record_file,
    read_rows_strictly,
    refuse_reading_mixed_machines,
    refuse_reading_unplanned_points,
)
from bitbench.records.tables import REQUEST_COLUMNS
from bitbench.records.trial import (
    RECORD_FORMAT,
    InstanceRecord,
    TrialRecord,
    mark_lost_trial_outcomes,
)
from bitbench.study.base import Record
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Study
from bitbench.util.errors import RowsNotKeptError, StoreError
from bitbench.util.files import SafeFolder, read_bytes


def _refuse_rows(
    record: TrialRecord | QualityRecord, _columns: Sequence[str] | None = None
) -> pa.Table:
    raise RowsNotKeptError(f"the rows of {record.id} were not kept")


@dataclass(frozen=True)
class StudyRecords:
    """All records of a study. Rows are large, so they are read on demand."""

    name: str  # of its folder, as the user gave it
    lock: Lock
    trials: Sequence[TrialRecord] = ()
    instances: Sequence[InstanceRecord] = ()
    quality: Sequence[QualityRecord] = ()
    profiles: Sequence[OperatorProfile] = ()
    roof: MachineRoof | None = None  # None: not measured yet
    # reads the request rows of a trial, only these columns if any are given
    requests_of: Callable[[TrialRecord, Sequence[str] | None], pa.Table] = _refuse_rows
    scores_of: Callable[[QualityRecord], pa.Table] = _refuse_rows

    @property
    def plan(self) -> Plan:
        return self.lock.plan

    @property
    def study(self) -> Study:
        return self.lock.plan.study

    @property
    def starts_and_quality(self) -> list[InstanceRecord | QualityRecord]:
        """Return all records of work other than trials."""
        return [*self.instances, *self.quality]

    def was_running(self, config: Config) -> bool:
        """Return True if bitbench did not start this config. Only its trials are repeated then."""
        instances = [instance for instance in self.instances if instance.config == config]
        return any(instance.facts.was_running for instance in instances)

    def counted(self, point: Point) -> list[TrialRecord]:
        """Return the trials of a point that count in its metrics."""
        return list(self._counted.get(point, ()))

    @cached_property
    def _counted(self) -> dict[Point, list[TrialRecord]]:
        by_point: dict[Point, list[TrialRecord]] = {}
        for trial in self.trials:
            if trial.counts:
                by_point.setdefault(trial.point, []).append(trial)
        return by_point


R = TypeVar("R", bound=Record)
# Names that only bitbench gives. A file with any other name belongs to a person, and stays.
_DOCUMENT = re.compile(r"lock\.json|roof\.json|study\.yaml")
# `rows.parquet` belongs to a trial that is running.
_REQUEST_ROWS = re.compile(r"t\d{5,}(\.\d+)?\.parquet|rows\.parquet", re.ASCII)
_SCORES = re.compile(r"q\d{4,}\.parquet", re.ASCII)
_LOG = re.compile(r"i(\d{4,})\.log", re.ASCII)
_PROFILE = re.compile(r"p(\d{4,})\.json", re.ASCII)

_RESTORE = "restore it, or run the study into another folder"
MOST_SHOWN = 3  # folders that a message names


class StudyFolder:
    """A study folder, for reading. Appending needs `with folder.writing():`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study_file = path / "study.yaml"
        self.lock_file = path / "lock.json"
        self.logs = path / "logs"
        self.requests = path / "requests"
        self.quality = path / "quality"
        self.report = path / "report"
        self.profiles_folder = path / "profiles"
        self.roof_file = path / "roof.json"
        self._trials = path / "trials.jsonl"
        self._instances = path / "instances.jsonl"
        self._quality = path / "quality.jsonl"

    @classmethod
    def existing(cls, path: Path) -> "StudyFolder":
        """Return the folder at this path. Raise StoreError if it is not a study folder."""
        folder = cls(path)
        if not folder.study_file.is_file():
            raise StoreError(f"{path} is not a study folder{_explain_refusal(path)}")
        return folder

    def open_writer(self) -> "Writer":
        return Writer(self)

    def read(self, name: str | None = None) -> StudyRecords:
        """Read all records. Raise StoreError if no run began.

        `name` is the folder's name in messages.
        """
        lock = self.lock()
        if lock is None:
            raise StoreError(
                f"{self.path} has no lock.json: its run stopped before the first trial; run it "
                "again"
            )
        refuse_reading_mixed_machines(lock, self.path)
        trials = self.trials()
        refuse_reading_unplanned_points(lock.plan, trials, self.path)
        return StudyRecords(
            name=name or str(self.path),
            lock=lock,
            trials=trials,
            instances=self.instances(),
            quality=self.read_quality_records(),
            profiles=self.profiles(),
            roof=self.roof(),
            requests_of=self.requests_of,
            scores_of=self.scores_of,
        )

    def trials(self) -> list[TrialRecord]:
        trials = read_lines(self._trials, TrialRecord, RECORD_FORMAT)
        return mark_lost_trial_outcomes(trials, self.instances()) if trials else trials

    def instances(self) -> list[InstanceRecord]:
        return read_lines(self._instances, InstanceRecord, RECORD_FORMAT)

    def read_quality_records(self) -> list[QualityRecord]:
        return read_lines(self._quality, QualityRecord, QUALITY_FORMAT)

    def scores_of(self, record: QualityRecord) -> pa.Table:
        if record.scores_file is None:
            raise StoreError(
                f"measurement {record.id} has no scored tokens: it ended as {record.outcome}"
            )
        return read_rows_strictly(
            self._find_rows_file(record.scores_file),
            SCORE_COLUMNS,
            None,
            f"measurement {record.id}",
        )

    def material(self, model: str) -> QualityMaterial | None:
        """Return the requests to the variants of a model, by its name in the plan, or None."""
        return _read_if_there(
            self.quality / _format_material_name(model), QualityMaterial, QUALITY_FORMAT, _RESTORE
        )

    def profiles(self) -> list[OperatorProfile]:
        profiles = []
        for path in sorted(self.profiles_folder.glob("p*.json")):
            advice = "remove it to continue without it"
            profiles.append(read_record_file(path, OperatorProfile, PROFILE_FORMAT, advice))
        return profiles

    def requests_of(self, trial: TrialRecord, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the request rows of a trial. Only these columns are read, if any are given."""
        if trial.requests_file is None:
            raise RowsNotKeptError(
                f"trial {trial.id} has no request rows: it ended as {trial.outcome}"
            )
        tables = []
        for name in (trial.requests_file, *trial.more_request_files):
            path = self._find_rows_file(name)
            tables.append(read_rows_strictly(path, REQUEST_COLUMNS, columns, f"trial {trial.id}"))
        return pa.concat_tables(tables)

    def _find_rows_file(self, name: str) -> Path:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise StoreError(
                f"a record of {self.path} names rows outside of it ({name}); remove that record"
            )
        return self.path / name

    def roof(self) -> MachineRoof | None:
        return _read_if_there(
            self.roof_file, MachineRoof, ROOF_FORMAT, "remove it, and it is measured again"
        )

    def lock(self) -> Lock | None:
        """Return the lock, or None if no run began."""
        return _read_if_there(self.lock_file, Lock, LOCK_FORMAT, _RESTORE)

    def refuse_records_without_lock(self) -> None:
        """Raise StoreError if a run left records without its lock.

        A new run would overwrite them, or mix them with its own results.
        """
        paths = [self._trials, self._instances, self._quality, self.roof_file, self.report]
        paths += _list_matching(self.requests, _REQUEST_ROWS)
        paths += _list_matching(self.quality, _SCORES)
        paths += _list_matching(self.profiles_folder, _PROFILE)
        for path in paths:
            if path.exists():
                raise StoreError(
                    f"{self.path} contains {path.relative_to(self.path)} but no lock.json, which "
                    "says what it was measured with; restore lock.json, or give another folder "
                    "with --into"
                )


class Writer:
    """The only writer of a folder. A second one is refused.

    It deletes files only in a study folder.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self.folder = folder
        self._files = SafeFolder(folder.path)
        self._guard: IO[bytes] | None = None

    def __enter__(self) -> "Writer":
        self._guard = self._files.open_to_append(".writer")
        try:
            self._open(self._guard)
        except BaseException:
            self._guard.close()
            raise
        return self

    def _open(self, guard: IO[bytes]) -> None:
        folder = self.folder
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(
                f"another bitbench is writing to {folder.path}; wait, or use another folder"
            ) from None
        if folder.lock() is None:
            folder.refuse_records_without_lock()
        else:
            for lines in (folder._trials, folder._instances, folder._quality):
                self._cut_torn_line(lines)
            self._drop_orphans()
        for path in (folder.logs, folder.requests, folder.quality):
            self._files.make_folder(path.name)
        self._next_trial = _find_next_id(folder.trials())
        self._next_quality = _find_next_id(folder.read_quality_records())
        # A start that was killed has only a log, but logs may have been removed to save space.
        recorded = _find_next_id(folder.instances())
        self._next_instance = max(recorded, _find_next_number(folder.logs, _LOG))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._guard is not None:
            self._guard.close()

    def new_instance(self) -> tuple[str, Path]:
        """Return a new id and its log file, which is made at once so that the id stays taken."""
        instance_id = f"i{self._next_instance:04d}"
        self._next_instance += 1
        return instance_id, self._files.create(f"logs/{instance_id}.log")

    def append_log(self, instance_id: str, content: bytes) -> None:
        """Append to the log of an instance on another machine."""
        self._files.append(f"logs/{instance_id}.log", content)

    def append_instance(self, record: InstanceRecord) -> None:
        self._append(self.folder._instances, record)

    def append_trial(self, draft: TrialRecord, rows: RequestParts | None) -> TrialRecord:
        """Give the trial its id, keep its request rows, then write its line."""
        trial_id = f"t{self._next_trial:05d}"
        self._next_trial += 1
        files = self._keep_parts(trial_id, rows)
        requests_file = files[0] if files else None
        update = {
            "id": trial_id,
            "requests_file": requests_file,
            "more_request_files": files[1:],
        }
        return self._append_updated(self.folder._trials, draft, update)

    def _keep_parts(self, trial_id: str, rows: RequestParts | None) -> tuple[str, ...]:
        """Store the parts and return the names of their files, relative to the folder."""
        if rows is None:
            return ()
        names = []
        for number, part in enumerate(rows.parts):
            name = f"requests/{trial_id}.parquet"
            if number:
                name = f"requests/{trial_id}.{number}.parquet"
            if isinstance(part, bytes):
                with self._files.open_replacement(name) as file:
                    file.write(part)
            else:
                self._files.move_in(part, name)
            names.append(name)
        return tuple(names)

    def append_quality(self, draft: QualityRecord, scores: pa.Table | None) -> QualityRecord:
        """Give the measurement its id, keep its scored tokens, then write its line."""
        record_id = f"q{self._next_quality:04d}"
        self._next_quality += 1
        scores_file = self._write_rows(f"quality/{record_id}.parquet", scores)
        update = {"id": record_id, "scores_file": scores_file}
        return self._append_updated(self.folder._quality, draft, update)

    def _write_rows(self, name: str, rows: pa.Table | None) -> str | None:
        """Return the name of the file, relative to the folder. None if it has no rows."""
        if rows is None:
            return None
        with self._files.open_replacement(name) as file:
            pq.write_table(rows, file, compression="zstd")
        return name

    def restore(self, records: StudyRecords) -> None:
        """Write the records of another study with their ids into this empty folder."""
        for trial in records.trials:
            with suppress(RowsNotKeptError):
                self._write_rows(f"requests/{trial.id}.parquet", records.requests_of(trial, None))
        for measured in records.quality:
            with suppress(RowsNotKeptError):
                self._write_rows(f"quality/{measured.id}.parquet", records.scores_of(measured))
        for profile in records.profiles:
            self._write_profile(profile)
        trials = [trial.model_copy(update={"more_request_files": ()}) for trial in records.trials]
        self._write_lines(self.folder._trials, trials)
        self._write_lines(self.folder._quality, records.quality)
        self._write_lines(self.folder._instances, records.instances)
        if records.roof is not None:
            self.write_roof(records.roof)
        self.write_lock(records.lock)

    def write_material(self, model: str, material: QualityMaterial) -> None:
        self._files.write(
            f"quality/{_format_material_name(model)}", material.model_dump_json() + "\n"
        )

    def add_profile(self, draft: OperatorProfile, trace: Path) -> OperatorProfile:
        """Give the profile its id, move its trace into the folder, then write its file."""
        profile_id = f"p{_find_next_number(self.folder.profiles_folder, _PROFILE):04d}"
        trace_file = f"profiles/{profile_id}.trace.json.gz"
        with self._files.open_replacement(trace_file) as target, trace.open("rb") as source:
            shutil.copyfileobj(source, target)
        trace.unlink()
        profile = draft.model_copy(update={"id": profile_id, "trace_file": trace_file})
        self._write_profile(profile)
        return profile

    def _write_profile(self, profile: OperatorProfile) -> None:
        content = profile.model_dump_json(indent=1) + "\n"
        self._files.write(f"profiles/{profile.id}.json", content)

    def _write_lines(self, lines: Path, records: Iterable[Record]) -> None:
        text = "".join(f"{record.model_dump_json()}\n" for record in records)
        self._files.write(lines.name, text)

    def write_study(self, text: str) -> None:
        self._files.write(self.folder.study_file.name, text)

    def write_roof(self, roof: MachineRoof) -> None:
        self._files.write(self.folder.roof_file.name, roof.model_dump_json(indent=1) + "\n")

    def write_lock(self, lock: Lock) -> None:
        self._files.write(self.folder.lock_file.name, lock.model_dump_json(indent=2) + "\n")

    def _append_updated(self, lines: Path, draft: R, update: Mapping[str, object]) -> R:
        """Append the draft with its final fields. Its line makes the record exist, so it comes
        last.
        """
        record = draft.model_copy(update=update)
        self._append(lines, record)
        return record

    def _append(self, lines: Path, record: Record) -> None:
        line = record.model_dump_json(exclude_defaults=False) + "\n"
        self._files.append(lines.name, line.encode())

    def _cut_torn_line(self, lines: Path) -> None:
        """Remove an incomplete last line, left by a killed process. Its trial had not ended."""
        if not lines.exists():
            return
        content = read_bytes(lines)
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            self._files.truncate(lines.name, complete)

    def _drop_orphans(self) -> None:
        """Remove rows of trials without a line, and incomplete documents.

        A trial gets its line when it ends, so such rows are not a result.
        """
        recorded: set[str | None] = set()
        for trial in self.folder.trials():
            recorded |= {trial.requests_file, *trial.more_request_files}
        recorded |= {record.scores_file for record in self.folder.read_quality_records()}
        kept = frozenset(Path(name).name for name in recorded if name is not None)
        self._files.remove_matching("requests", _REQUEST_ROWS, kept)
        self._files.remove_matching("quality", _SCORES, kept)
        documents = (self.folder.lock_file, self.folder.roof_file, self.folder.study_file)
        names = frozenset(path.name for path in documents)
        self._files.remove_matching("", _DOCUMENT, names)


def _read_if_there(path: Path, kind: type[R], newest: int, advice: str) -> R | None:
    if not path.exists():
        return None
    return read_record_file(path, kind, newest, advice)


def _find_next_id(records: Iterable[TrialRecord | QualityRecord | InstanceRecord]) -> int:
    return parse_next_record_number(record.id for record in records)


def _explain_refusal(path: Path) -> str:
    """Return what a path is instead of a study folder, and what to do."""
    if path.is_file():
        return f": it is a file; give the folder that `bitbench run {path}` fills"
    if not path.exists():
        return f": it does not exist; `bitbench run STUDY --into {path}` fills one"
    folders = sorted(study_file.parent.name for study_file in path.glob("*/study.yaml"))
    if folders:
        examples = [str(path / folder) for folder in folders[:MOST_SHOWN]]
        return f": it contains some; give one of them, such as {', '.join(examples)}"
    return f" (no study.yaml in it); `bitbench run STUDY --into {path}` fills one"


def _format_material_name(model: str) -> str:
    return f"windows-{model.replace('/', '--')}.json"


def _list_matching(folder: Path, names: re.Pattern[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if names.fullmatch(path.name)]


def _find_next_number(folder: Path, names: re.Pattern[str]) -> int:
    """Return the number after the highest in the names of a folder, whatever has them."""
    highest = 0
    for path in _list_matching(folder, names):
        if match := names.fullmatch(path.name):
            highest = max(highest, int(match[1]))
    return highest + 1
