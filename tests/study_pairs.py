"""Pairs of study folders whose truth is known, for asking `bitbench compare` about them."""

from pathlib import Path

import pytest

from bitbench.records.folder import StudyFolder, StudyRecords
from tests.command_line import bitbench


def write_folder(path: Path, study: StudyRecords) -> Path:
    """The files that a kept baseline needs, and no more."""
    with StudyFolder(path).open_writer() as writer:
        writer.write_study("name: made-up\n")
        writer.write_lock(study.lock)
        for instance in study.instances:
            writer.append_instance(instance)
        for trial in study.trials:
            writer.append_trial(trial, None)
    return path


def exit_code(
    capsys: pytest.CaptureFixture[str], before: Path, after: Path, limit: str, *allowed: str
) -> int:
    options = [part for fact in allowed for part in ("--allow", fact)]
    said = bitbench(capsys, "compare", str(before), str(after), "--fail-if", limit, *options)
    assert said.exit_code in (0, 1, 2), said.err
    return said.exit_code
