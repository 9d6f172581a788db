"""The files that `quality:` names: checked before anything starts, and hashed so that a changed one is noticed."""

import hashlib
from pathlib import Path

from bitbench.quality.corpus import read_corpus
from bitbench.quality.tasks import task_files
from bitbench.study.quality import Quality
from bitbench.util.errors import StudyFileError


def check_quality_files(quality: Quality, folder: Path) -> None:
    """Raises StudyFileError, with the field that names the file, for the first that cannot be used."""
    if quality.corpus:
        read_corpus(quality.corpus, folder)
    for name in task_files(quality):
        if not (folder / name).is_file():
            names = [task if isinstance(task, str) else task.name for task in quality.tasks]
            place = ("quality", "tasks", names.index(name))
            raise StudyFileError(f"no task file {name} beside the study", place)


def hash_quality_files(quality: Quality, folder: Path) -> dict[str, str]:
    """SHA-256 of each file by the name that the study gives it."""
    names = (*quality.corpus, *task_files(quality))
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
