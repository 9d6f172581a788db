"""The files that workloads name: checked before anything starts, and hashed so that a changed one is noticed."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from bitbench.core.asked.arrival import Trace
from bitbench.core.asked.workload import Workload
from bitbench.ground.errors import StudyFileError
from bitbench.load.asks import usable_texts
from bitbench.load.requests import trace_rows


def check_files(workloads: Sequence[Workload], folder: Path) -> None:
    """Raises StudyFileError, with the field that names the file, for the first that cannot be used."""
    for index, workload in enumerate(workloads):
        for field, _ in workload.files:
            try:
                if isinstance(workload.arrival, Trace):
                    trace_rows(workload, folder)
                else:
                    usable_texts(workload, folder)
            except StudyFileError as error:
                raise StudyFileError(str(error), ("workloads", index, *field)) from error


def hash_files(workloads: Sequence[Workload], folder: Path) -> dict[str, str]:
    """SHA-256 of each file by the name that the study gives it."""
    hashes = {}
    for name in sorted({name for workload in workloads for _, name in workload.files}):
        with (folder / name).open("rb") as file:
            hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes
