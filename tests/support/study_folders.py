"""Small study folders on disk, each with another kind of report: a comparison, a sweep over rates, quality."""

from pathlib import Path

from bitbench.records.folder import StudyFolder, Writer
from tests.support.synthetic import demo_study, make_lock
from tests.unit.test_report_quality import quality_study
from tests.unit.test_report_sweep import sweep_study


def _write_demo(writer: Writer) -> None:
    _, trials, instances, lock = demo_study()
    writer.write_lock(lock)
    for instance in instances:
        writer.append_instance(instance)
    for trial in trials:
        writer.append_trial(trial, None)


def _write_sweep(writer: Writer) -> None:
    plan, trials = sweep_study()
    writer.write_lock(make_lock(plan))
    for trial in trials:
        writer.append_trial(trial, None)


def _write_quality(writer: Writer) -> None:
    plan, measured = quality_study()
    writer.write_lock(make_lock(plan))
    for record, scores in measured:
        writer.append_quality(record, scores)


WRITERS = {"demo": _write_demo, "sweep": _write_sweep, "quality": _write_quality}


def write_folder(kind: str, path: Path) -> StudyFolder:
    folder = StudyFolder(path)
    with folder.open_writer() as writer:
        WRITERS[kind](writer)
        writer.write_study(f"name: {kind}\n")
    return folder
