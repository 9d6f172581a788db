"""The files that workloads name: checked before anything starts, and hashed so that a changed one is noticed."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from bitbench.loadgen.texts import Text, choose_texts, read_texts
from bitbench.loadgen.traces import TraceRow, read_trace
from bitbench.study.arrival import Trace
from bitbench.study.prompts import Api
from bitbench.study.workload import Workload
from bitbench.util.errors import StudyFileError


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


def usable_texts(workload: Workload, folder: Path) -> list[Text]:
    assert workload.text is not None
    path = folder / workload.text.file
    texts = read_texts(path)
    if workload.api is not Api.CHAT and not all(isinstance(text, str) for text in texts):
        raise StudyFileError(f"the texts {path} contain `messages`, which need `api: chat`")
    chosen = choose_texts(texts, workload.text)
    if not chosen:
        raise StudyFileError(f"none of the {len(texts)} texts {path} is {workload.text.min_characters} characters long")
    return chosen


def trace_rows(workload: Workload, folder: Path) -> Sequence[TraceRow]:
    """The part of the trace that the workload replays."""
    assert isinstance(workload.arrival, Trace)
    rows = read_trace(folder / workload.arrival.file)
    if workload.duration is not None:
        return [row for row in rows if row.at_s < workload.duration * workload.arrival.speed]
    if workload.requests is not None and len(rows) < workload.requests:
        raise StudyFileError(
            f"the trace {workload.arrival.file} has {len(rows)} requests, but the workload needs {workload.requests}"
        )
    return rows[: workload.requests]
