"""Other tools' result files become a study folder: records, a plan that says where they come from, no request rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from bitbench import __version__
from bitbench.analysis.operator_groups import built_in_table
from bitbench.features.interop.readers.reading import LONGEST_NAME, Reading, plain_name
from bitbench.features.interop.readers.tools import read
from bitbench.features.interop.records import ImportedStudy, as_study
from bitbench.features.interop.types import ImportedStarts, ImportFileError, Tool
from bitbench.records.folder import StudyFolder
from bitbench.records.host import HostFacts
from bitbench.records.lock import Lock
from bitbench.records.profile import Operator
from bitbench.records.published import PublishedKernels, PublishedProfile
from bitbench.records.published_files import write_published
from bitbench.reports.document.text import plain
from bitbench.study.imported import ImportedFile, ImportSource
from bitbench.study.write_study import study_text
from bitbench.util.errors import StoreError

REMARK = "Written by `bitbench import`: it can be reported, not run."
LARGEST_FILE_BYTES = (
    1_000_000_000  # a detailed result of a million requests; beyond it, memory would be the first limit
)


def import_files(
    paths: Sequence[Path], tool: Tool, starts: ImportedStarts, into: Path | None, name: str | None = None
) -> StudyFolder:
    """Fill a new folder; it and the study are called `name`, or like the first file. Raises ImportFileError.

    Nothing is written before all of it is understood. A file that holds only a kernel table fills published/ and makes
    no study.
    """
    name = _study_name(name) if name is not None else plain_name(paths[0].stem, "imported")
    contents = [_content(path) for path in paths]
    readings = [_read(tool, content, path) for path, content in zip(paths, contents, strict=True)]
    files = tuple(
        ImportedFile(name=path.name, sha256=sha256(content).hexdigest())
        for path, content in zip(paths, contents, strict=True)
    )
    notes = tuple(dict.fromkeys(note for reading in readings for note in reading.notes))
    folder = StudyFolder(into or Path(name))
    if folder.lock_file.exists() or folder.study_file.exists() or (folder.path / "published").exists():
        raise StoreError(f"{folder.path} already contains a study; give another folder with --into")
    source = ImportSource(tool=tool.value, files=files, notes=notes)
    with _understanding(", ".join(map(str, paths)), tool):
        study = as_study(name, readings, starts, source) if any(reading.runs for reading in readings) else None
        host = _host(readings)
        published = list(_published(readings, source))
    if study is not None:
        _write(folder, study, host)
    for table in published:
        write_published(folder.path, table)
    return folder


def _study_name(asked_for: str) -> str:
    if not asked_for or plain_name(asked_for, "") != asked_for:
        raise ImportFileError(
            f"--name {plain(asked_for, LONGEST_NAME)} cannot be a study's name: use up to {LONGEST_NAME} letters, "
            "digits and - _ . +, beginning and ending with a letter or digit."
        )
    return asked_for


def _published(readings: Sequence[Reading], source: ImportSource) -> Iterator[PublishedKernels | PublishedProfile]:
    """Kernel tables and a profile are no trials: they lie beside the study, or without one."""
    if kernels := [row for reading in readings for row in reading.kernels]:
        yield PublishedKernels(source=source, rows=tuple(kernels))
    profiles = [reading.profile for reading in readings if reading.profile is not None]
    if profiles:
        found = profiles[0]
        groups = built_in_table()
        operators = [Operator(group=groups.group_of(row.name)[0], **vars(row)) for row in found.rows]
        totals = {"self_cpu_s": found.self_cpu_s, "self_device_s": found.self_device_s}
        yield PublishedProfile(source=source, device=found.device, operators=tuple(operators), **totals)


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise ImportFileError(
                f"{path} is larger than {LARGEST_FILE_BYTES // 10**9} GB; export it without per-request details"
            )
        return path.read_bytes()
    except OSError as error:
        raise ImportFileError(f"{path} cannot be read: {error.strerror or error}") from error


def _read(tool: Tool, content: bytes, path: Path) -> Reading:
    with _understanding(str(path), tool):
        return read(tool, content)


@contextmanager
def _understanding(files: str, tool: Tool) -> Iterator[None]:
    """Whatever goes wrong in here is the content of these files."""
    try:
        yield
    except ImportFileError as error:
        raise ImportFileError(f"{files}: {plain(str(error))}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ImportFileError(
            f"{files} is not a known result format of {tool.value} "
            f"({type(error).__name__}: {plain(str(error))}); check --from"
        ) from error


def _host(readings: Sequence[Reading]) -> HostFacts:
    """Files from different machines: which one cannot be said."""
    first = readings[0].host
    return HostFacts.model_validate(first if all(reading.host == first for reading in readings) else {})


def _write(folder: StudyFolder, study: ImportedStudy, host: HostFacts) -> None:
    with folder.writing() as writer:
        for instance in study.instances:
            writer.append_instance(instance)
        for trial in study.trials:
            writer.append_trial(trial, None)
        writer.write_study(f"# {REMARK}\n{study_text(study.plan.study)}")
        writer.write_lock(Lock(bitbench=__version__, host=host, plan=study.plan))
