"""A study's figures go where people already look."""

from pathlib import Path

from bitbench.exports.choices import Target
from bitbench.exports.content import exported
from bitbench.exports.targets import exporter
from bitbench.ground.errors import ExportError
from bitbench.lab.study import Lab
from bitbench.store.folder import StudyFolder


def export_study(lab: Lab, path: Path, target: Target, url: str | None) -> str:
    """What the command prints. Raises ExportError, StoreError."""
    export = exporter(target)  # first: a missing package is said before a large study is read
    folder = StudyFolder.existing(path)
    records = folder.read()
    study = exported(lab.summary(folder, records), records.lock)
    if not study.cells:
        raise ExportError(f"{path} has no figures to export; no trial succeeded.")
    return export(study, url)
